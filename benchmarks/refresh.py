"""Seconds of an epoch's refresh from stored trunk tokens, against running the whole backbone again.

Both sides give class tokens and class attention of the same images' evaluation view; the largest difference
is printed beside the ratio. Rounds alternate between the sides and the best of each counts.

    python benchmarks/refresh.py [--images 128] [--image-size 154] [--precision fp32] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from partgcd.backbone.load import load_backbone
from partgcd.backbone.tokens import Material, TokenStore, fill, generations
from partgcd.config.tree import BackboneSettings, Settings
from partgcd.data.pixels import PixelStore
from partgcd.discovery.refresh import BATCH, Look, compute_features
from partgcd.model.module import DiscoveryModel
from partgcd.run.device import autocast, pick_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=154)
    parser.add_argument("--backbone", default="offline/vit-small")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = pick_device("auto")
    backbone = load_backbone(
        BackboneSettings(name=args.backbone, random_weights=args.random_weights), args.image_size, device
    )
    model = DiscoveryModel(backbone, 2, None, Settings()).to(device)
    side = round(args.image_size / 0.875)
    flat = np.random.default_rng(0).integers(0, 256, args.images * 3 * side * side, dtype=np.uint8)
    index = np.array([[i * 3 * side * side, side, side] for i in range(args.images)], dtype=np.int64)
    pixels = PixelStore(flat, index)
    keys = np.arange(args.images, dtype=np.uint64)
    results = []
    for precision in ["fp32", "bf16"] if args.precision == "both" else [args.precision]:
        cast = autocast(precision, device)
        with tempfile.TemporaryDirectory() as scratch:
            shape = tuple(
                backbone.trunk(torch.from_numpy(pixels.centre(np.arange(1), args.image_size))).shape[1:]
            )
            store = TokenStore(Path(scratch), args.images, 1, (shape[0], shape[1]), precision)
            fill(
                store,
                Material(backbone, pixels, keys, cast, device),
                generations(1, 1, args.images, 0.0),
                None,
                _silent,
            )
            best = {"stored": float("inf"), "whole": float("inf")}
            for _ in range(args.rounds):
                began = time.perf_counter()
                stored = compute_features(model, Look(store, device, cast, _silent))
                best["stored"] = min(best["stored"], time.perf_counter() - began)
                began = time.perf_counter()
                whole = _whole_forward(model, pixels, args.images, args.image_size, device, cast)
                best["whole"] = min(best["whole"], time.perf_counter() - began)
        results.append({
            "precision": precision,
            "images": args.images,
            "stored_seconds": round(best["stored"], 3),
            "whole_seconds": round(best["whole"], 3),
            "ratio": round(best["whole"] / best["stored"], 2),
            "largest_difference": float((stored.cls - whole).abs().max()),
            "threads": torch.get_num_threads(),
        })  # fmt: skip
        print(json.dumps(results[-1]))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


@torch.no_grad()
def _whole_forward(
    model: DiscoveryModel, pixels: PixelStore, images: int, size: int, device: torch.device, cast: object
) -> torch.Tensor:
    found = []
    for start in range(0, images, BATCH):
        rows = np.arange(start, min(start + BATCH, images))
        with cast():  # type: ignore[operator]
            tokens = model.backbone.trunk(torch.from_numpy(pixels.centre(rows, size)).to(device))
            out = model.backbone.block(tokens)
        found.append(torch.nn.functional.normalize(out.cls.float(), dim=1))
    return torch.cat(found)


def _silent(done: int, total: int) -> None:
    return None


if __name__ == "__main__":
    main()
