"""Calibrated class prototypes (Eq. 5): where a class lies by the adjusted predictions, not by the classifier.

Letters: N images, C classes, D dimensions of the class token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from partgcd.run.world import ALONE, Ranks

CHUNK = 8192  # images of one matrix product; bounds the extra memory


def calibrated_prototypes(
    features: Tensor, q: Tensor, top_if_empty: int, normalise: bool = True, world: Ranks = ALONE
) -> Tensor:
    """W~: the mean of the features of the images predicted to a class, weighted by the prediction (Eq. 5).

    Q_c holds the images whose most probable class under ``q`` is c (the smaller class where two are equal).
    For an empty Q_c it is the ``top_if_empty`` images with the highest q for c (the smaller row where two are
    equal), all weighted alike should those q be zero.

    With ``normalise`` (the default) the mean is scaled to unit norm, as the classifier's own prototypes are.
    The mean of unit vectors is the shorter the more they spread, so that under Eq. 6 the paper's literal mean
    (``normalise=False``) lowers the scores of just those classes that are still scattered, the new ones.

    In a ``world`` of many ranks each passes its own images, contiguous and in rank order, and gets W~ of all.

    Sums are matrix products added up in float64: equal inputs give equal bits on one machine, a GPU included.

    Shape: features [N, D], L2-normalised inside; q [N, C] probabilities -> [C, D] float32.

    Raises ValueError for no images or ``top_if_empty`` < 1.
    """
    images, classes = q.shape
    many = world.size > 1
    if (not images and not many) or top_if_empty < 1:
        raise ValueError(
            f"prototypes need at least one image and top_if_empty >= 1, got {images}, {top_if_empty}"
        )
    unit = F.normalize(features.float(), dim=1)
    total = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    weight = torch.zeros(classes, dtype=torch.float64, device=features.device)
    members = torch.zeros(classes, dtype=torch.int64, device=features.device)
    for rows, share in zip(torch.split(unit, CHUNK), torch.split(q, CHUNK), strict=True):
        largest, chosen = share.float().max(dim=1)
        weights = torch.zeros_like(share, dtype=torch.float32).scatter_(1, chosen[:, None], largest[:, None])
        total += (weights.T @ rows).double()
        weight += weights.sum(dim=0, dtype=torch.float64)
        members += torch.bincount(chosen, minlength=classes)
    if many:
        joined = world.all_reduce(torch.cat([total, weight[:, None], members[:, None].double()], dim=1))
        total, weight, members = joined[:, :-2].contiguous(), joined[:, -2], joined[:, -1]
    empties = (members == 0).nonzero().flatten()
    if not len(empties):
        return _mean(total, weight, normalise)
    columns, first = q[:, empties], 0
    if many:
        first = sum(world.all_gather_object(len(columns))[: world.rank])
        columns = world.all_gather(columns)
    filled = torch.zeros(len(empties), features.shape[1], dtype=torch.float64, device=features.device)
    for place, column in enumerate(columns.unbind(dim=1)):
        top = column.sort(descending=True, stable=True).indices[:top_if_empty]
        weights = column[top].double()
        if not bool(weights.sum() > 0):
            weights = torch.ones_like(weights)
        weight[empties[place]] = weights.sum()
        here = (top >= first) & (top < first + images)
        filled[place] = weights[here] @ unit[top[here] - first].double()
    total[empties] = world.all_reduce(filled)
    return _mean(total, weight, normalise)


def _mean(total: Tensor, weight: Tensor, normalise: bool) -> Tensor:
    mean = total / weight[:, None]
    return (F.normalize(mean, dim=1) if normalise else mean).float()
