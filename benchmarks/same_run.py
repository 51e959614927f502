"""Is a run of many workers the run of one? The same training by one process, by 1, 2 and 4 gloo workers, and nudged.

Prints, against the one process: the largest relative difference of a step's loss over the first 20 steps, and that of
some of them; whether candidates are the same at every refresh; the largest difference of the banks of the first
refreshes; and how many images are assigned otherwise at the end.

How much of that is the workers' and how much the training's own? Each of ``--nudges`` runs is the one process once
more, with every trained weight moved by one unit in the last place before the first step, up or down as its seed
says. Nothing else differs, so what comes of it is rounding, amplified by the training. Whether the workers' part is
the same is told by size and by direction: how far the trained weights are off after every epoch, and how parallel
that is to what the first nudge came to (the cosine's absolute value: 1 is the same line, 0 nothing in common).

    python benchmarks/same_run.py --photos FOLDER [--workers 1,2,4] [--nudges 6] [--case NAME ...] [--out FILE]
                                  [--work FOLDER]

The photos' folder has a folder ``cub16`` with class folders, of which the cases take ten photos each. What is in
``--out`` already is not compared again; ``--work`` keeps the runs, and what is finished there is not trained again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from partgcd.config.load import load_settings
from partgcd.discovery import fit as fitting
from partgcd.discovery.discover import discover
from partgcd.discovery.outputs import predicted_classes
from partgcd.discovery.task import Task
from partgcd.disk.files import read_json, write_json
from partgcd.run.checkpoint import list_checkpoints
from partgcd.run.folder import RunFolder
from partgcd.run.torch_world import TorchWorld
from partgcd.run.world import SoloWorld, World

STEPS, REFRESHES, A_CLASS = 20, 2, 10
TOLD = (1, 5, 10, 15, 20)
"""The steps whose difference is told."""
CPU = torch.device("cpu")
COMMON = ("train.threads=1", "train.precision=fp32", "train.device=cpu", "train.keep_checkpoints=1000")


@dataclass(frozen=True)
class Case:
    """Which images, and the settings they are trained with."""

    images: Callable[[Path, Path], None]
    protocol: str | None
    settings: tuple[str, ...]


def stripes(photos: Path, folder: Path) -> None:
    """36 striped pictures of four colours: two labelled classes of 6, and 24 without a label."""
    draw = np.random.default_rng(0)
    colours = np.array([[200, 60, 50], [50, 80, 200], [60, 180, 70], [210, 180, 60]])
    for number in range(36):
        kind = number % 2 if number < 12 else number % 4
        place = folder / (("ash", "birch")[kind] if number < 12 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        noise = draw.normal(0, 25, (48, 48, 3)) + 30 * np.sin(np.arange(48) * (kind + 1) / 3)[:, None, None]
        image = Image.fromarray((colours[kind] + noise).clip(0, 255).astype(np.uint8))
        image.save(place / f"{number}.png")


def birds(photos: Path, folder: Path) -> None:
    """Links to ten photos of each of 16 classes."""
    for kind in sorted(path for path in (photos / "cub16").iterdir() if path.is_dir()):
        (folder / kind.name).mkdir(parents=True)
        for photo in sorted(kind.iterdir())[:A_CLASS]:
            (folder / kind.name / photo.name).symlink_to(photo.resolve())


_BIRDS = (
    "backbone.name=offline/vit-small", "data.image_size=112", "train.epochs=6", "train.batch_size=32",
    "train.view_pool=2", "loss.projector_hidden=512", "discovery.classes=16",
)  # fmt: skip
CASES = {
    "36 striped pictures, test_vit": Case(stripes, None, (
        "backbone.name=test_vit", "backbone.random_weights=true", "data.image_size=160", "train.epochs=6",
        "train.batch_size=8", "train.view_pool=2", "train.pool_refresh=0.5", "loss.projector_hidden=16",
        "loss.projector_out=8", "parts.count=3", "parts.projection=8", "discovery.classes=4",
    )),
    "160 bird photos, vit-small at 112 px, train.lr=0.01": Case(birds, "gcd", (*_BIRDS, "train.lr=0.01")),
    "160 bird photos, vit-small at 112 px, train.lr=0.03": Case(birds, "gcd", (*_BIRDS, "train.lr=0.03")),
}  # fmt: skip


def train(rank: int, size: int, path: Path, meeting: Path, nudge: int | None = None) -> None:
    """The run in ``path``, as rank ``rank`` of ``size``; 0 is this process alone."""
    torch.set_num_threads(1)
    run = RunFolder.open(path)
    losses: list[dict[str, float]] = []
    step_loss, prepare = fitting.step_loss, fitting.prepare

    def watched(*what: Any) -> Any:
        loss = step_loss(*what)
        losses.append(loss.terms)
        return loss

    def nudged(*what: Any) -> Any:
        setup = prepare(*what)
        if nudge is not None:
            move(setup.trained, nudge)
        return setup

    if size:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    world: World = TorchWorld(run, CPU) if size else SoloWorld(run, CPU)
    with patch.object(fitting, "step_loss", watched), patch.object(fitting, "prepare", nudged):
        discover(run, run.settings(), world)
    if rank == 0:
        (path / "losses.json").write_text(json.dumps(losses))
    if size:
        dist.destroy_process_group()


@torch.no_grad()
def move(weights: list[Any], seed: int) -> None:
    """Every element to the next float32 above or below it."""
    draw = torch.Generator().manual_seed(seed)
    for value in weights:
        ahead: Tensor = torch.randint(0, 2, value.shape, generator=draw, dtype=torch.bool)
        value.copy_(torch.nextafter(value, torch.where(ahead, torch.inf, -torch.inf)))


def weights(run: RunFolder) -> list[Tensor]:
    """All trained weights as one vector, after every epoch."""
    found = []
    for path in list_checkpoints(run.checkpoints):
        tensors = load_file(path / "tensors.safetensors")
        names = sorted(name for name in tensors if name.startswith("model."))
        found.append(torch.cat([tensors[name].double().reshape(-1) for name in names]))
    return found


def differences(one: RunFolder, other: RunFolder, nudged: RunFolder) -> dict[str, Any]:
    """How far ``other`` is from ``one``, and whether it went where ``nudged`` went."""
    losses = [[terms["total"] for terms in read_json(run.path / "losses.json")] for run in (one, other)]
    apart = [abs(a - b) / abs(a) for a, b in list(zip(*losses, strict=True))[:STEPS]]
    refreshes = zip(one.read_epochs(), other.read_epochs(), strict=True)
    same = [
        all(np.array_equal(a[name], b[name]) for name in ("candidate_rows", "candidate_classes"))
        for (_, a), (_, b) in refreshes
    ]
    banks = []
    checkpoints = zip(list_checkpoints(one.checkpoints), list_checkpoints(other.checkpoints), strict=True)
    for paths in list(checkpoints)[:REFRESHES]:
        a, b = (load_file(path / "tensors.safetensors") for path in paths)
        names = [name for name in a if name.startswith("bank.") and a[name].is_floating_point()]
        banks.append(max((float((a[name] - b[name]).abs().max()) for name in names), default=0.0))
    off, parallel = [], []
    for a, b, c in zip(weights(one), weights(other), weights(nudged), strict=True):
        off.append(float((b - a).norm() / a.norm()))
        parallel.append(abs(float(torch.cosine_similarity(b - a, c - a, dim=0))))
    images = len(one.read_epochs()[0][1]["predicted"])
    found = [predicted_classes(run, images) for run in (one, other)]
    return {
        "steps": len(apart),
        "loss_relative": max(apart),
        "loss_relative_at": {str(step): apart[step - 1] for step in TOLD},
        "same_candidates": same,
        "bank_absolute": banks,
        "weights_relative": off,
        "parallel_to_nudged_0": parallel,
        "images": images,
        "assigned_otherwise": int((found[0] != found[1]).sum()),
    }


def compare(
    case: Case, photos: Path, sizes: list[int], nudges: int, work: Path, told: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run of a case against its one process, one after the other, but those told already."""
    wanted: dict[str, tuple[int, int | None]] = {f"nudged {seed}": (0, seed) for seed in range(nudges)}
    wanted |= {f"{size} workers": (size, None) for size in sizes}
    wanted = {name: how for name, how in wanted.items() if name not in told}
    if not wanted:
        return
    first: dict[str, tuple[int, int | None]] = {"one process": (0, None), "nudged 0": (0, 0)}
    data = work / "images"
    if not data.exists():
        case.images(photos, data)
    settings = load_settings(assignments=[*COMMON, *case.settings])
    runs: dict[str, RunFolder] = {}
    for name, (size, nudge) in (first | wanted).items():
        path = work / name
        began = time.perf_counter()
        if not (path / "losses.json").exists():
            shutil.rmtree(path, ignore_errors=True)
            RunFolder.create(path, settings, data, Task(data, case.protocol).request())
            if nudge is not None:  # what comes before the first step is the same: tokens, parts
                shutil.copytree(work / "one process" / "cache", path / "cache", dirs_exist_ok=True)
            if size:
                meeting = path / "meeting"
                mp.spawn(train, (size, path, meeting), nprocs=size)  # type: ignore[no-untyped-call]
            else:
                train(0, 0, path, path, nudge)
        runs[name] = RunFolder.open(path)
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
        if name in wanted:
            yield name, differences(runs["one process"], runs[name], runs["nudged 0"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--nudges", type=int, default=6)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--work", type=Path, help="where the runs are kept; without it nowhere")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = read_json(args.out) if args.out is not None and args.out.exists() else {}
    sizes = [int(size) for size in args.workers.split(",")]
    for title in args.case or CASES:
        case = CASES[title]
        if found.get(title, {}).get("settings") != list(case.settings):
            found[title] = {"settings": list(case.settings), "against_one_process": {}}
        told = found[title]["against_one_process"]
        print(title, flush=True)
        with TemporaryDirectory(prefix="partgcd-same-") as scratch:
            work = (args.work or Path(scratch)) / title
            for name, apart in compare(case, args.photos, sizes, args.nudges, work, told):
                told[name] = apart
                print(json.dumps(apart), flush=True)
                if args.out is not None:
                    write_json(args.out, found)


if __name__ == "__main__":
    main()
