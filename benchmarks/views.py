"""Seconds of a training step from a pool of cached views, against one that cuts fresh views.

Both sides run the fit loop's own `view_tokens`, `step_loss`, backward and optimiser on the same batches of
synthetic images, part branch included. Rounds alternate; the best of each side counts.

    python benchmarks/views.py [--images 256] [--batch-size 128] [--image-size 154] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from partgcd.config.load import load_settings
from partgcd.data.catalog import Catalog
from partgcd.discovery.discover import build_catalog
from partgcd.discovery.fit import fill_pool, view_tokens
from partgcd.discovery.setup import Setup, prepare
from partgcd.discovery.step import Trainee, Views, step_loss
from partgcd.discovery.task import Task
from partgcd.methods.method import Moment
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.world import ALONE, SoloWorld


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=154)
    parser.add_argument("--backbone", default="offline/vit-small")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "images"
        _draw(data, args.images, round(args.image_size / 0.875))
        for precision in ("fp32", "bf16"):
            results.append(_measure(Path(scratch), data, precision, args))
            print(json.dumps(results[-1]))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


def _draw(folder: Path, images: int, side: int) -> None:
    draw = np.random.default_rng(0)
    for i in range(images):
        kind = "unlabelled" if i % 2 else f"class-{i % 8}"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(
            folder / kind / f"{i}.png"
        )


def _measure(scratch: Path, data: Path, precision: str, args: argparse.Namespace) -> dict[str, object]:
    flags = {
        "backbone.name": args.backbone,
        "backbone.random_weights": args.random_weights or None,
        "data.image_size": args.image_size,
        "train.batch_size": args.batch_size,
        "train.view_pool": 2,
        "train.precision": precision,
        "parts.count": 5,
        "discovery.classes": 16,
    }
    settings = load_settings(flags=flags)
    run = RunFolder.create(scratch / precision, settings, data, Task(data).request())
    world = SoloWorld(run, pick_device("auto"))
    catalog = build_catalog(run, settings, world)
    setup = prepare(settings, catalog, world)
    fill_pool(setup, catalog, 1, settings, world)
    pool = setup.pool
    optimiser = torch.optim.SGD(setup.trained, lr=1e-4)
    rows = np.arange(min(args.batch_size, len(catalog)), dtype=np.int64)
    best = {"pool": float("inf"), "fresh": float("inf")}
    for step in range(args.rounds):
        for side in best:
            setup.pool = pool if side == "pool" else None
            began = time.perf_counter()
            tokens = view_tokens(setup, catalog, rows, 1, step, settings)
            _descend(setup, catalog, tokens, rows, optimiser)
            best[side] = min(best[side], time.perf_counter() - began)
    return {
        "precision": precision,
        "views": 2 * len(rows),
        "pool_seconds": round(best["pool"], 3),
        "fresh_seconds": round(best["fresh"], 3),
        "ratio": round(best["fresh"] / best["pool"], 2),
        "threads": torch.get_num_threads(),
    }


def _descend(
    setup: Setup, catalog: Catalog, tokens: torch.Tensor, rows: np.ndarray, optimiser: torch.optim.Optimizer
) -> None:
    labels = setup.labels[torch.from_numpy(rows)]
    assigned = labels.clamp_min(0)
    assert setup.course is not None
    trainee = Trainee(setup.model, setup.part_model(setup.bank), setup.course, setup.settings, setup.autocast)
    views = Views(tokens, assigned, torch.from_numpy(rows), labels, [len(rows)])
    loss = step_loss(trainee, views, Moment(0.05, 2.0, True), ALONE)
    optimiser.zero_grad(set_to_none=True)
    loss.total.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


if __name__ == "__main__":
    main()
