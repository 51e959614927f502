"""Calibrated class prototypes (Eq. 5): where a class lies by the adjusted predictions, not by the classifier.

Letters: N images, C classes, D dimensions of the class token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 8192  # images of one matrix product; bounds the extra memory


def calibrated_prototypes(features: Tensor, q: Tensor, top_if_empty: int, normalise: bool = True) -> Tensor:
    """W~: the mean of the features of the images predicted to a class, weighted by the prediction (Eq. 5).

    Q_c holds the images whose most probable class under ``q`` is c (the smaller class where two are equal).
    For an empty Q_c it is the ``top_if_empty`` images with the highest q for c (the smaller row where two are
    equal), all weighted alike should those q be zero.

    With ``normalise`` (the default) the mean is scaled to unit norm, as the classifier's own prototypes are.
    The mean of unit vectors is the shorter the more they spread, so that under Eq. 6 the paper's literal mean
    (``normalise=False``) lowers the scores of just those classes that are still scattered, the new ones.

    Sums are matrix products added up in float64: equal inputs give equal bits on one machine, a GPU included.

    Shape: features [N, D], L2-normalised inside; q [N, C] probabilities -> [C, D] float32.

    Raises ValueError for no images or ``top_if_empty`` < 1.
    """
    images, classes = q.shape
    if not images or top_if_empty < 1:
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
    for empty in (members == 0).nonzero().flatten().tolist():
        top = q[:, empty].sort(descending=True, stable=True).indices[:top_if_empty]
        weights = q[top, empty].double()
        if not bool(weights.sum() > 0):
            weights = torch.ones_like(weights)
        total[empty] = weights @ unit[top].double()
        weight[empty] = weights.sum()
    mean = total / weight[:, None]
    return (F.normalize(mean, dim=1) if normalise else mean).float()
