"""What more workers, more images and more classes cost: steps, refresh and mixtures of the library's own fit.

Workers are processes over gloo on this machine, without Ray. Images are synthetic token rows of `test_vit` on
disk, which all workers map. Times are the slowest worker's, the best of ``--rounds``; exponents are least-squares
slopes of log seconds against log N, C or workers. Figures that are in ``--out`` already are not measured again.

    python benchmarks/workers.py [--out FILE] [--largest 100000] [--workers 1,2,4] [--rounds 2] [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from partgcd.backbone.load import Backbone, load_backbone
from partgcd.backbone.tokens import CHUNK, TokenStore
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings, Settings
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import Look, assign, compute_features, refit_bank
from partgcd.discovery.step import Trainee, Views, step_loss
from partgcd.methods import partgcd
from partgcd.methods.method import Moment, Scene
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection
from partgcd.run.device import autocast
from partgcd.run.folder import RunFolder
from partgcd.run.torch_world import TorchWorld

CPU = torch.device("cpu")
SIZE, PARTS, STEPS, BATCH = 64, 5, 6, 64


@dataclass(frozen=True)
class Case:
    """One point: how many workers, images and classes."""

    workers: int
    images: int
    classes: int

    @property
    def name(self) -> str:
        return f"workers={self.workers} images={self.images} classes={self.classes}"


def cases(workers: list[int], largest: int, small: bool) -> list[Case]:
    """Along workers, along images and along classes, from one middle."""
    if small:
        return [Case(n, 300, 6) for n in workers] + [Case(workers[-1], 600, 6), Case(workers[-1], 300, 12)]
    middle = (10_000, 200)
    images = [n for n in (1_000, 3_000, 10_000, 30_000, 100_000) if n <= largest]
    found = [Case(n, *middle) for n in workers]
    found += [Case(2, n, middle[1]) for n in images]
    found += [Case(2, middle[0], c) for c in (50, 200, 500, 1000, 2000)]
    return list(dict.fromkeys(found))


def settings_of() -> Settings:
    return load_settings(
        assignments=["loss.projector_hidden=256", "train.precision=fp32", f"parts.count={PARTS}"]
    )


def backbone_of() -> Backbone:
    return load_backbone(BackboneSettings(name="test_vit", random_weights=True), SIZE, CPU)


def write_store(folder: Path, images: int, shape: tuple[int, int], classes: int) -> None:
    """Rows that fall into clusters, one a class."""
    store = TokenStore(folder, images, 1, shape, "benchmark")
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 1, shape[1], generator=draw)
    for chunk in range(-(-images // CHUNK)):
        rows = torch.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, images))
        noise = torch.randn(len(rows), *shape, generator=draw)
        store.write(0, chunk, 0, centres[rows % classes] + 0.7 * noise)


def measure(rank: int, case: Case, folder: Path, meeting: Path, rounds: int) -> None:
    """One worker's part of a case; rank 0 writes the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=case.workers)
    world = TorchWorld(RunFolder.open(folder / "run"), CPU)
    settings, cast = settings_of(), autocast("fp32", CPU)
    backbone = backbone_of()
    model = DiscoveryModel(backbone, case.classes, PARTS, settings)
    shape = tuple(backbone.trunk(torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)).shape[1:])
    store = TokenStore(
        folder / f"tokens-{case.images}-{case.classes}", case.images, 1, (shape[0], shape[1]), "benchmark"
    )
    old = case.classes // 2
    index = torch.arange(case.images)
    labels = torch.where(
        (index % case.classes < old) & (index // case.classes % 2 == 0), index % case.classes, -1
    )
    sample = backbone.frozen_patches(store.read(np.arange(min(256, case.images)), CPU)).flatten(0, 1)
    projection = fit_projection(sample, 32, 0)
    draw = torch.Generator().manual_seed(1)
    shared = Mixture(
        torch.full((PARTS,), -1.6),
        0.1 * torch.randn(PARTS, 32, generator=draw),
        torch.full((PARTS, 32), 0.02),
    )
    bank = GMMBank.all_shared(shared, case.classes)
    course = partgcd.begin(Scene(model, labels, old, settings))
    trained = [value for value in model.parameters() if value.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=1e-4)
    seconds: dict[str, list[float]] = {"step": [], "features": [], "assign": [], "mixtures": []}

    def timed(name: str, began: float) -> None:
        seconds[name].append(max(world.all_gather_object(time.perf_counter() - began)))

    look = Look(store, CPU, cast, lambda done, total: None, world)
    for number in range(rounds):
        world.barrier()
        began = time.perf_counter()
        features = compute_features(model, look)
        timed("features", began)
        began = time.perf_counter()
        assignment = assign(model, features, labels, old, settings, world)
        timed("assign", began)
        began = time.perf_counter()
        before = PartModel(bank, projection)
        made, _, _ = refit_bank(model, before, assignment.candidates, features.attention, settings, look)
        timed("mixtures", began)
        rows = np.random.default_rng(number).integers(0, case.images, (STEPS, BATCH))
        world.barrier()
        began = time.perf_counter()
        for batch in rows:
            shares = np.array_split(batch, case.workers)
            mine = np.concatenate([shares[rank], shares[rank]])
            whole = torch.from_numpy(batch)
            views = Views(
                store.read(mine, CPU), assignment.assigned[torch.from_numpy(shares[rank])], whole, labels[whole],
                [len(share) for share in shares],
            )  # fmt: skip
            trainee = Trainee(model, PartModel(made, projection), course, settings, cast)
            loss = step_loss(trainee, views, Moment(0.05, 1.0, True), world)
            optimiser.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
            world.sum_gradients(trained)
            optimiser.step()
        timed("step", began)
    memory = world.all_gather_object(private_mb())
    if rank == 0:
        best = {name: min(values) for name, values in seconds.items()}
        (folder / "found.json").write_text(json.dumps({
            **asdict(case),
            "images_per_second": round(STEPS * BATCH / best["step"], 1),
            "refresh_seconds": round(best["features"] + best["assign"], 4),
            **{f"{name}_seconds": round(best[name], 4) for name in ("features", "assign", "mixtures")},
            "private_mb_a_worker": memory,
        }))  # fmt: skip
    dist.destroy_process_group()


def private_mb() -> float:
    """Memory of this process alone, without the files it shares with others, 2^20 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def exponents(found: list[dict[str, Any]]) -> dict[str, float]:
    """Slopes of log seconds along each axis, the other two held at the most common value."""
    slopes = {}
    for axis, others in (
        ("workers", ("images", "classes")), ("images", ("workers", "classes")), ("classes", ("workers", "images")),
    ):  # fmt: skip
        groups: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for each in found:
            groups.setdefault(tuple(each[name] for name in others), []).append(each)
        line = max(groups.values(), key=len)
        if len(line) < 2:
            continue
        x = np.log([each[axis] for each in line])
        for name in ("features", "assign", "refresh", "mixtures"):
            y = np.log([max(each[f"{name}_seconds"], 1e-4) for each in line])
            slopes[f"{name} ~ {axis}^"] = round(float(np.polyfit(x, y, 1)[0]), 2)
    return slopes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a few hundred images, to see that it works")
    args = parser.parse_args()
    known: dict[str, Any] = (
        json.loads(args.out.read_text())["cases"] if args.out and args.out.exists() else {}
    )
    tokens, dim = backbone_of().trunk(torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)).shape[1:]
    with TemporaryDirectory(prefix="partgcd-workers-") as scratch:
        folder = Path(scratch)
        RunFolder.create(folder / "run", settings_of(), folder, {})
        for number, case in enumerate(
            cases([int(n) for n in args.workers.split(",")], args.largest, args.small)
        ):
            if case.name in known:
                continue
            place = folder / f"tokens-{case.images}-{case.classes}"
            write_store(place, case.images, (tokens, dim), case.classes)
            mp.spawn(measure, (case, folder, folder / f"meeting-{number}", args.rounds), nprocs=case.workers)  # type: ignore[no-untyped-call]
            known[case.name] = json.loads((folder / "found.json").read_text())
            print(json.dumps(known[case.name]), flush=True)
            for file in place.iterdir():
                file.unlink()
            place.rmdir()
            if args.out:
                args.out.write_text(json.dumps({"cores": os.cpu_count(), "cases": known}, indent=1) + "\n")
    slopes = exponents(list(known.values()))
    print(json.dumps(slopes, indent=1))
    if args.out:
        args.out.write_text(
            json.dumps({"cores": os.cpu_count(), "exponents": slopes, "cases": known}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
