"""What share of the images each class gets where Sinkhorn deals them out.

Letters: N images, C classes of which the first ``old`` are labelled ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from partgcd.run.world import World


def class_shares(
    log_p: Tensor, labels: Tensor, old: int, power: float | Literal["auto"], world: World | None = None
) -> Tensor | None:
    """The classes' masses under the prediction to ``power``; None where all get the same.

    In between equal shares (0, the paper's) and the predicted ones (1) a rare class stays rare, and is not
    starved by what training took from it so far. 'auto' takes the power that gives the shares the spread of
    `size_spread`: equal ones where labelled classes are of one size, or nothing is labelled.

    In a ``world`` of many ranks ``log_p`` holds this rank's images alone.

    Shape: log_p [N, C]; labels [N] int64 of all images, -1 for an unlabelled one -> [C] float64, of any sum.
    """
    spread = size_spread(labels, old) if power == "auto" else 0.0
    if power == 0 or (power == "auto" and spread == 0):
        return None
    mass = log_p.double().exp().sum(dim=0)
    if world is not None:
        mass = world.all_reduce(mass)
    if power == "auto":
        predicted = float(mass.clamp_min(torch.finfo(mass.dtype).tiny).log().std(correction=0))
        power = spread / predicted if predicted > spread else 1.0
    return mass**power


def size_spread(labels: Tensor, old: int) -> float:
    """How much the sizes of classes differ: the standard deviation of their logarithm, by the labelled ones.

    Of sizes n_c drawn with Poisson noise the variance of log n_c has about the mean of 1 / n_c too much; that is
    taken off, so that few labels, drawn at random from equal classes, do not look like a long tail.
    """
    sizes = torch.bincount(labels[labels >= 0], minlength=old)[:old].double()
    sizes = sizes[sizes > 0]
    if len(sizes) < 2:
        return 0.0
    surplus = sizes.log().var(correction=1) - (1 / sizes).mean()
    return float(surplus.clamp_min(0).sqrt())
