"""What an epoch leaves in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from partgcd.run.device import peak_memory_mb


def class_sizes(predicted: Tensor, classes: int) -> dict[str, float]:
    """Largest and smallest class, how many are empty, and the entropy of the sizes (1 is uniform)."""
    counts = torch.bincount(predicted.cpu(), minlength=classes).double()
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * share.log()).sum() / math.log(max(classes, 2)))
    return {
        "largest": int(counts.max()),
        "smallest": int(counts.min()),
        "empty": int((counts == 0).sum()),
        "entropy": entropy,
    }


def unlabelled_loss(loss: dict[str, float]) -> float:
    """What grades a checkpoint without a label: the losses that unlabelled images have, class head and contrast."""
    return sum(loss[name] for name in ("cls_unsupervised", "mean_entropy", "rep_unsupervised"))


def epoch_line(
    epoch: int,
    sums: Mapping[str, float],
    extra: Mapping[str, Any],
    steps: int,
    lr: float,
    teacher_temperature: float,
    seconds: Mapping[str, float],
    images: int,
    device: torch.device,
) -> dict[str, Any]:
    """The line of ``epoch``.

    Args:
        sums: of every step's ``loss.*`` terms and of ``alpha``, over ``steps`` steps.
        extra: what the epoch's refresh found.
        seconds: what took how long, ``steps`` among it.
        images: that the steps have seen.
    """
    line: dict[str, Any] = {
        "epoch": epoch,
        "lr": lr,
        "alpha": sums["alpha"] / steps,
        "teacher_temperature": teacher_temperature,
        "loss": {
            name.removeprefix("loss."): value / steps
            for name, value in sums.items()
            if name.startswith("loss.")
        },
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "images_per_second": round(images / max(seconds["steps"], 1e-9), 2),
        "peak_memory_mb": round(peak_memory_mb(device), 1),
    }
    return line | {key: extra[key] for key in ("sizes", "changed", "gmm_log_likelihood") if key in extra}
