"""What an epoch leaves in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

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


def unlabelled_loss(loss: Mapping[str, float]) -> float:
    """What grades a checkpoint without a label: the losses that unlabelled images have, class head and contrast."""
    return sum(loss[name] for name in ("cls_unsupervised", "mean_entropy", "rep_unsupervised"))


class Pace(NamedTuple):
    """How fast an epoch went: what took how many seconds (``steps`` among it), and the images its steps have seen."""

    seconds: Mapping[str, float]
    images: int
    device: torch.device


def epoch_line(
    epoch: int, rates: Mapping[str, float], losses: Mapping[str, float], extra: Mapping[str, Any], pace: Pace
) -> dict[str, Any]:
    """The line of ``epoch``.

    Args:
        rates: step size, alpha and teacher temperature.
        losses: every term's mean over the steps.
        extra: what the epoch's refresh says of itself.
    """
    line: dict[str, Any] = {
        "epoch": epoch,
        **rates,
        "loss": dict(losses),
        "seconds": {name: round(value, 3) for name, value in pace.seconds.items()},
        "images_per_second": round(pace.images / max(pace.seconds["steps"], 1e-9), 2),
        "peak_memory_mb": round(peak_memory_mb(pace.device), 1),
    }
    return line | {key: extra[key] for key in ("sizes", "changed", "gmm_log_likelihood") if key in extra}
