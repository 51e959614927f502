"""Seconds of the trained block where parts leave out the background: patches that count alone, against all of them.

Both sides give the part features of the same photographs (evaluation view, untrained block, weights of
`parts.foreground_pooling`); the largest difference is printed beside the ratios of a training step (forward and
backward) and of the forward pass alone. Rounds alternate between the sides and the best of each counts.

    PARTGCD_PHOTOS=/path/to/data-sets python benchmarks/foreground.py [--set cub16] [--images 64] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from partgcd.backbone.load import load_backbone
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings
from partgcd.model.module import DiscoveryModel, Outputs
from partgcd.parts.maps import foreground_weight
from partgcd.run.device import autocast

_PARTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="cub16")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=154)
    parser.add_argument("--backbone", default="offline/vit-small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    backbone = load_backbone(BackboneSettings(name=args.backbone), args.image_size, "cpu")
    settings = load_settings(assignments=["parts.foreground_pooling=true"])
    model = DiscoveryModel(backbone, 50, _PARTS, settings)
    tokens = backbone.trunk(
        _photos(Path(os.environ["PARTGCD_PHOTOS"]) / args.set, args.images, args.image_size)
    )
    patches = backbone.info.grid[0] * backbone.info.grid[1]
    maps = torch.rand(len(tokens), patches, _PARTS, generator=torch.Generator().manual_seed(0)).softmax(-1)

    def few() -> Outputs:
        found: Outputs = model(tokens, maps)
        return found

    def every() -> Outputs:
        cls, seen, attention = backbone.block(tokens)
        weight = model.pooling_weight(attention)
        return Outputs(cls, attention, *model.part_branch(tokens, weight, maps, seen), weight)

    results = []
    for precision in ("fp32", "bf16"):
        cast = autocast(precision, torch.device("cpu"))
        with cast(), torch.no_grad():
            one, other = few(), every()
        assert one.parts is not None and other.parts is not None
        best = dict.fromkeys(("few", "every", "few_forward", "every_forward"), float("inf"))
        for _ in range(args.rounds):
            for name, side in (("few", few), ("every", every)):
                best[name] = min(best[name], _seconds(partial(_step, model, side, cast)))
                with torch.no_grad(), cast():
                    best[f"{name}_forward"] = min(best[f"{name}_forward"], _seconds(side))
        results.append({
            "set": args.set, "backbone": args.backbone, "precision": precision, "views": len(tokens),
            "patches_that_count": round(float((foreground_weight(one.attention) > 0).float().mean()), 3),
            "step_ratio": round(best["every"] / best["few"], 2),
            "forward_ratio": round(best["every_forward"] / best["few_forward"], 2),
            "step_seconds": round(best["few"], 3),
            "largest_difference": float((one.parts - other.parts).abs().max()),
            "threads": args.threads,
        })  # fmt: skip
        print(json.dumps(results[-1]))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


def _photos(folder: Path, count: int, size: int) -> Tensor:
    """[B, 3, S, S] uint8, spread over the classes."""
    files = sorted(folder.glob("*/*.jpg"))
    picked = [files[index] for index in np.linspace(0, len(files) - 1, count).astype(int)]
    images = [np.asarray(Image.open(file).convert("RGB").resize((size, size))) for file in picked]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def _step(model: DiscoveryModel, side: Callable[[], Outputs], cast: Callable[[], torch.autocast]) -> None:
    model.zero_grad()
    with cast():
        out = side()
    assert out.part is not None
    (out.part.float().square().sum() + out.cls.float().square().sum()).backward()


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
