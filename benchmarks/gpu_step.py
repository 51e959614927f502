"""A training epoch on one card: a faithful plain step against this library's, exact and with a pool of views.

The plain side cuts fresh views on the CPU and turns them into normalised floats there, runs the whole backbone,
trains its last block, and recomputes the evaluation pass of all images every epoch with the whole backbone. Ours
runs the library's own fit: frozen trunk and trainable block apart, crops cut on the card from uint8, evaluation
tokens stored once; with a pool, cached views. Losses and batches are the same. Both sides in fp32 (without tf32)
and in bf16. Random weights, synthetic images: nothing to fetch, neither ray nor faiss nor photos. No side decodes
or resizes images.

    python benchmarks/gpu_step.py [--out FILE]            one card, some minutes
    python benchmarks/gpu_step.py --small                 a CPU, seconds, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.backbone.tokens import generations
from partgcd.config.load import load_settings
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.views import random_crops
from partgcd.discovery.fit import fill_pool, view_tokens
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import BATCH, Look, assign, compute_features, refit_bank
from partgcd.discovery.setup import Setup, prepare
from partgcd.discovery.step import Trainee, Views, step_loss
from partgcd.methods.method import Moment
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.world import ALONE, SoloWorld

_THREADS = min(8, os.cpu_count() or 1)


class Bench:
    """One precision: a set-up of the library's own, and both sides' steps on it."""

    def __init__(self, folder: Path, settings: Settings, catalog: Catalog, device: torch.device) -> None:
        self.settings, self.catalog, self.device = settings, catalog, device
        run = RunFolder.create(folder, settings, folder, {"protocol": None, "split": None})
        (folder / "store").symlink_to(folder.parent / "store")
        self.world = SoloWorld(run, device)
        began = self.now()
        self.setup: Setup = prepare(settings, catalog, self.world)
        self.prepared = self.now() - began
        self.bank = self.setup.bank
        self.assigned = torch.zeros(len(catalog), dtype=torch.long, device=device)
        self.optimiser = torch.optim.SGD(self.setup.trained, lr=1e-4, momentum=0.9)
        draw = np.random.default_rng(0)
        size = min(settings.train.batch_size, len(catalog))
        self.batches = draw.integers(0, len(catalog), (256, size))

    def now(self) -> float:
        """Seconds, once the card has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def descend(self, tokens: Tensor, rows: NDArray[np.int64]) -> None:
        """Losses, gradient and step, the same for both sides."""
        picked = torch.from_numpy(rows).to(self.device)
        setup = self.setup
        assert setup.course is not None
        trainee = Trainee(
            setup.model, setup.part_model(self.bank), setup.course, self.settings, setup.autocast
        )
        views = Views(tokens, self.assigned[picked], picked, setup.labels[picked], [len(rows)])
        loss = step_loss(trainee, views, Moment(0.05, 1.0, True), ALONE)
        self.optimiser.zero_grad(set_to_none=True)
        loss.total.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def floats(self, rows: NDArray[np.int64], step: int) -> Tensor:
        """Both views as a data loader's worker makes them: cut, float, normalised, [2B, 3, S, S] on the host."""
        size, keys = self.settings.data.image_size, self.catalog.keys[rows]
        shapes, cut = self.setup.pixels.shape(rows), []
        for view in (0, 1):
            crops = random_crops(0, 1, step, keys, view, shapes, size)
            cut.append(self.setup.pixels.crop(rows, crops.top, crops.left, crops.flip, size))
        info = self.setup.model.backbone.info
        mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (info.mean, info.std))
        made = (torch.from_numpy(np.concatenate(cut)).float() / 255 - mean) / std
        return made.pin_memory() if self.device.type == "cuda" else made

    def whole_trunk(self, normalised: Tensor) -> Tensor:
        """The frozen blocks on pixels that are normalised already."""
        with torch.no_grad(), self.setup.autocast():
            tokens: Tensor = self.setup.model.backbone.layers.trunk(normalised)
        return tokens.float()

    def plain_steps(self, steps: int) -> Iterator[None]:
        """Steps of the plain side; views of later steps are made meanwhile, by several threads."""
        with ThreadPoolExecutor(_THREADS) as pool:
            ahead = [pool.submit(self.floats, self.batches[i], i) for i in range(min(steps, 2 * _THREADS))]
            for step in range(steps):
                views = ahead[step].result().to(self.device, non_blocking=True)
                if len(ahead) < steps:
                    ahead.append(pool.submit(self.floats, self.batches[len(ahead)], len(ahead)))
                self.descend(self.whole_trunk(views), self.batches[step])
                yield

    def our_steps(self, steps: int) -> Iterator[None]:
        """Steps of the library."""
        for step in range(steps):
            rows = self.batches[step]
            self.descend(view_tokens(self.setup, self.catalog, rows, 1, step, self.settings), rows)
            yield

    def images_a_second(self, run: Callable[[int], Iterator[None]], steps: int, warm: int) -> float:
        """Over ``steps`` steps, after ``warm`` that do not count."""
        began = 0.0
        for done, _ in enumerate(run(warm + steps), start=1):
            if done == warm:
                began = self.now()
        return steps * self.batches.shape[1] / (self.now() - began)

    @torch.no_grad()
    def plain_evaluation(self, images: int) -> float:
        """Seconds an image of the evaluation pass with the whole backbone."""
        size, model = self.settings.data.image_size, self.setup.model
        began = 0.0
        for start in range(-BATCH, images, BATCH):
            if start == 0:
                began = self.now()
            rows = np.arange(max(start, 0), min(max(start, 0) + BATCH, images))
            pixels = torch.from_numpy(self.setup.pixels.centre(rows, size)).to(self.device)
            with self.setup.autocast():
                model(model.backbone.trunk(pixels), None)
        return (self.now() - began) / images

    def refresh(self) -> tuple[float, float]:
        """Seconds of features and assignment, and of the mixtures, the second time round."""
        found = (0.0, 0.0)
        for _ in range(2):
            began = self.now()
            setup = self.setup
            look = Look(setup.evaluation, self.device, setup.autocast, lambda done, total: None)
            features = compute_features(setup.model, look)
            assignment = assign(setup.model, features, setup.labels, setup.old, self.settings)
            middle = self.now()
            assert self.bank is not None and setup.projection is not None
            before = PartModel(self.bank, setup.projection)
            self.bank, _, _ = refit_bank(
                setup.model, before, assignment.candidates, features.attention, self.settings, look
            )
            self.assigned = assignment.assigned
            found = (middle - began, self.now() - middle)
        return found

    def peak_mb(self) -> float:
        """Largest memory since the last question, 2^20 bytes; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0.0
        peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        torch.cuda.reset_peak_memory_stats(self.device)
        return round(peak, 1)


def measure(
    folder: Path, catalog: Catalog, precision: str, args: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Everything in one precision."""
    settings = load_settings(assignments=[
        f"backbone.name={args.backbone}", "backbone.random_weights=true", f"data.image_size={args.image_size}",
        f"train.batch_size={args.batch_size}", f"train.precision={precision}", "train.view_pool=0", "parts.count=5",
        f"discovery.classes={args.classes}", "discovery.prototype_start=random", "parts.search=dense",
    ])  # fmt: skip
    bench = Bench(folder / precision, settings, catalog, device)
    images, steps, warm = len(catalog), args.steps, args.warm
    refresh, mixtures = bench.refresh()
    bench.peak_mb()
    plain = bench.images_a_second(bench.plain_steps, steps, warm)
    evaluation = bench.plain_evaluation(min(images, 4 * BATCH)) * images
    plain_peak = bench.peak_mb()
    exact = bench.images_a_second(bench.our_steps, steps, warm)
    exact_peak = bench.peak_mb()
    compiled = _compiled(bench, steps, warm) if args.compile and device.type == "cuda" else None
    pooled = settings.model_copy(update={"train": settings.train.model_copy(update={"view_pool": 2})})
    pool_bench = _with_pool(bench, pooled)
    began = bench.now()
    fill_pool(bench.setup, catalog, 1, pool_bench, bench.world)
    filled = bench.now() - began
    pool = bench.images_a_second(bench.our_steps, steps, warm)
    pool_peak = bench.peak_mb()

    def side(images_a_second: float, once_an_epoch: float, peak: float) -> dict[str, float]:
        epoch = images / images_a_second + once_an_epoch
        return {
            "step_images_per_second": round(images_a_second, 1),
            "epoch_images_per_second": round(images / epoch, 1),
            "epoch_seconds": round(epoch, 2),
            "peak_memory_mb": peak,
        }

    found: dict[str, Any] = {
        "precision": precision,
        "plain": side(plain, evaluation, plain_peak),
        "exact": side(exact, refresh + mixtures, exact_peak),
        "pool": side(pool, refresh + mixtures, pool_peak),
        "refresh_seconds": round(refresh, 3),
        "mixture_seconds": round(mixtures, 3),
        "plain_evaluation_seconds": round(evaluation, 2),
        "fill_pool_seconds": round(filled, 2),
        "prepare_seconds": round(bench.prepared, 2),
    }
    if compiled is not None:
        found["exact_with_compiled_trunk_images_per_second"] = compiled
    found["mixtures_share_of_exact_epoch"] = round(mixtures / found["exact"]["epoch_seconds"], 4)
    found["mixtures_share_of_pool_epoch"] = round(mixtures / found["pool"]["epoch_seconds"], 4)
    return found


def _with_pool(bench: Bench, settings: Settings) -> Settings:
    """Give the bench's set-up a pool of views, as `prepare` would have."""
    from partgcd.backbone.tokens import TokenStore

    setup = bench.setup
    blank = torch.zeros(
        1, 3, settings.data.image_size, settings.data.image_size, dtype=torch.uint8, device=bench.device
    )
    _, tokens, dim = setup.model.backbone.trunk(blank).shape
    views = int(settings.train.view_pool)
    setup.pool = TokenStore(
        bench.world.folder.cache / "pool", len(bench.catalog), views, (tokens, dim), "pool"
    )
    setup.device_pixels = None
    assert generations(1, views, len(bench.catalog), 0.0).shape[0] == views
    return settings


def _compiled(bench: Bench, steps: int, warm: int) -> float | str:
    """Images a second of exact steps with torch.compile on the frozen trunk, or why there are none."""
    layers = bench.setup.model.backbone.layers
    plain = layers.trunk
    try:
        layers.trunk = torch.compile(plain)  # type: ignore[method-assign]
        return round(bench.images_a_second(bench.our_steps, steps, warm), 1)
    except Exception as error:  # whatever a compiler's absence looks like here
        return f"not measured: {str(error).splitlines()[0][:120]}"
    finally:
        layers.trunk = plain  # type: ignore[method-assign]


def write_images(folder: Path, images: int, classes: int, image_size: int) -> Catalog:
    """A pixel store of noise and its catalog: half of the classes old, half of their images labelled."""
    side = round(image_size / 0.875)
    folder.mkdir(parents=True)
    each = 3 * side * side
    draw = np.random.default_rng(0)
    with (folder / "pixels.u8").open("wb") as file:
        for _ in range(images):
            file.write(draw.bytes(each))
    index = np.array([[number * each, side, side] for number in range(images)], np.int64)
    np.save(folder / "index.npy", index, allow_pickle=False)
    (folder / "store.json").write_text(json.dumps({"images": images, "bytes": images * each}))
    number = np.arange(images)
    old = classes // 2
    known = (number % classes < old) & (number // classes % 2 == 0)
    return Catalog(
        root=folder,
        paths=[f"{i:06d}" for i in range(images)],
        keys=draw.integers(0, 2**63, images, dtype=np.uint64),
        labels=np.where(known, number % classes, -1).astype(np.int64),
        label_names=[f"class {i:04d}" for i in range(old)],
        sizes=np.full((images, 2), side, np.int32),
    )


def ratios(found: list[dict[str, Any]]) -> dict[str, float]:
    """The aims: whole epochs, and steps alone, against the plain fp32 side and at equal precision."""
    plain = found[0]["plain"]
    told = {}
    for each in found:
        for mode in ("exact", "pool"):
            for what in ("epoch", "step"):
                key = f"{what}_images_per_second"
                told[f"{mode} {each['precision']} / plain fp32, {what}"] = round(
                    each[mode][key] / plain[key], 2
                )
                told[f"{mode} / plain, both {each['precision']}, {what}"] = round(
                    each[mode][key] / each["plain"][key], 2
                )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="vit_base_patch16_224.dino")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--small", action="store_true", help="a tiny model and few images, for a CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.small:
        args.backbone, args.image_size, args.images, args.classes = "test_vit", 96, 60, 6
        args.batch_size, args.steps, args.warm = 8, 2, 1
    device = pick_device("auto")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "tf32": False,
        **{
            key: getattr(args, key)
            for key in ("backbone", "images", "classes", "image_size", "batch_size", "steps")
        },
    }
    began = time.perf_counter()
    with TemporaryDirectory(prefix="partgcd-gpu-") as scratch:
        catalog = write_images(Path(scratch) / "store", args.images, args.classes, args.image_size)
        found = []
        for precision in ("fp32", "bf16"):
            found.append(measure(Path(scratch), catalog, precision, args, device))
            print(json.dumps(found[-1], indent=1), flush=True)
    result |= {"found": found, "ratios": ratios(found), "seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(result["ratios"], indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
