"""What share of the images each class gets where Sinkhorn deals them out.

Letters: N images, C classes of which the first ``old`` are labelled ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from partgcd.run.world import ALONE, Ranks, share_of


def class_shares(
    log_p: Tensor, labels: Tensor, old: int, power: float | Literal["auto"], world: Ranks = ALONE
) -> Tensor | None:
    """The classes' masses under the prediction to ``power``; None where all get the same.

    In between equal shares (0, the paper's) and the predicted ones (1) a rare class stays rare, and is not
    starved by what training took from it so far. 'auto' takes the power, 1 at most, that gives the shares the
    spread of `size_spread`.

    In a ``world`` of many ranks ``log_p`` holds this rank's images alone.

    Shape: log_p [N, C]; labels [N] int64 of all images, -1 for an unlabelled one -> [C] float64, of any sum.
    """
    if power == 0:
        return None
    share = share_of(len(labels), world)
    unlabelled = labels[share.start : share.stop] < 0
    p = log_p.double().exp()
    masses = torch.stack([p[~unlabelled].sum(dim=0), p[unlabelled].sum(dim=0)])
    masses = world.all_reduce(masses).clamp_min(torch.finfo(masses.dtype).tiny)
    mass = masses.sum(dim=0)
    if power == "auto":
        spread = size_spread(torch.bincount(labels[labels >= 0], minlength=old)[:old], masses[1, :old])
        if spread == 0:
            return None
        predicted = float(mass.log().std(correction=0))
        power = spread / predicted if predicted > spread else 1.0
    return mass**power


def size_spread(sizes: Tensor, masses: Tensor) -> float:
    """How much classes differ in size: the standard deviation of the logarithm, by what labels and predictions share.

    Labelled classes are of different sizes because they are, or because somebody labelled more of one than of another.
    What the predictions of unlabelled images say of the same classes errs in another way, so that the covariance of
    the two logarithms is the variance of the true one. It is held below what the labels alone show, less 1 / n_c on
    average, which is about the variance of log n_c where labels are drawn at random: few labels of classes of one
    size look like no tail.

    Args:
        sizes: [old] labelled images of each class.
        masses: [old] unlabelled images that are predicted to each, above 0.
    """
    there = sizes > 0
    if int(there.sum()) < 2:
        return 0.0
    labelled = sizes[there].double()
    both = torch.cov(torch.stack([labelled.log(), masses[there].double().log()]))
    surplus = both[0, 0] - (1 / labelled).mean()
    return float(torch.minimum(both[0, 1], surplus).clamp_min(0).sqrt())
