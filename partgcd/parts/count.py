"""Choice of K, the number of parts, by the mean silhouette over classes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partgcd.parts.em import fit_mixtures
from partgcd.parts.exact import exact_products
from partgcd.parts.mixture import Mixture, hard_mixture, kmeans, log_joint, sample_rows

_FLOOR = 1e-3
"""Smallest variance, as a share of the pooled variance."""

_ITERATIONS = 10
"""Of EM for each K."""


@dataclass(frozen=True)
class PartCount:
    """The chosen K, the mean silhouette (-1..1) of every K tried, how many classes counted, the seconds."""

    k: int
    silhouettes: dict[int, float]
    classes: int
    seconds: float


def silhouette(distances: Tensor, labels: Tensor, clusters: int) -> float:
    """Mean silhouette coefficient; 0 where all points share one cluster.

    (b - a) / max(a, b) a point, with a its mean distance to the rest of its cluster and b to the nearest
    other one; 0 for a point alone in its cluster. All distances are computed once for every K: hence not
    scikit-learn's.

    Shape: distances [n, n], labels [n] in 0..clusters-1.
    """
    member = torch.nn.functional.one_hot(labels, clusters).to(distances)
    count = member.sum(0)
    if int((count > 0).sum()) < 2:
        return 0.0
    total = distances @ member
    own = count[labels]
    inside = total.gather(1, labels.unsqueeze(1)).squeeze(1) / (own - 1).clamp_min(1)
    outside = (total / count).masked_fill((member > 0) | (count == 0), torch.inf).amin(1)
    score = (outside - inside) / torch.maximum(inside, outside).clamp_min(torch.finfo(distances.dtype).tiny)
    return float(score.masked_fill(own == 1, 0.0).mean())


@torch.no_grad()
def choose_parts(
    patches: Sequence[Tensor],
    k_min: int,
    k_max: int,
    patches_per_class: int = 2000,
    seed: int = 0,
    max_classes: int = 30,
) -> PartCount:
    """The K whose parts are told apart best: highest silhouette, averaged over classes; of equals the
    smaller.

    For every K, each class gets a mixture of its own (EM from k-means) and every patch the part of its
    largest responsibility.

    Args:
        patches: filtered, projected patches [n, d] of each old class; without labels, one pseudo-class.
        k_min, k_max: the K tried, 2 or more, both included.
        patches_per_class: patches of a class that are looked at (seeded draw).
        max_classes: classes that are looked at (seeded draw).

    Raises:
        ValueError: k_min is below 2 or above k_max, or no class has k_max + 1 patches.
    """
    if not 2 <= k_min <= k_max:
        raise ValueError(f"k_min is {k_min} and k_max is {k_max}: wanted 2 <= k_min <= k_max")
    begin = time.perf_counter()
    enough = [c for c, one in enumerate(patches) if len(one) > k_max]
    if not enough:
        raise ValueError(f"no class has the {k_max + 1} patches that trying {k_max} parts takes")
    chosen = [enough[i] for i in sample_rows(len(enough), max_classes, seed)]
    drawn = [
        patches[c][
            torch.from_numpy(sample_rows(len(patches[c]), patches_per_class, seed + c)).to(patches[c].device)
        ]
        for c in chosen
    ]
    flat = torch.cat(drawn).to(torch.promote_types(drawn[0].dtype, torch.float32))
    sizes = torch.tensor([len(one) for one in drawn])
    by_class = torch.split(flat, [len(one) for one in drawn])
    arrays = [one.cpu().double().numpy() for one in by_class]
    floor = (_FLOOR * flat.var(0)).clamp_min(1e-12)
    totals: dict[int, list[float]] = {k: [] for k in range(k_min, k_max + 1)}
    fits: dict[int, Mixture] = {}
    for k in totals:
        labels = [torch.from_numpy(kmeans(one, k, seed, iterations=20)[1]).to(flat.device) for one in arrays]
        starts = [hard_mixture(x, label, k, floor) for x, label in zip(by_class, labels, strict=True)]
        start = Mixture(
            torch.stack([s.log_pi for s in starts]),
            torch.stack([s.mu for s in starts]),
            torch.stack([s.var for s in starts]),
        )
        fits[k] = fit_mixtures(flat, sizes, start, _ITERATIONS, 1e-3, floor).mixture
    with exact_products(flat.device):
        for c, x in enumerate(by_class):
            centred = x - x.mean(0)
            distances = torch.cdist(centred, centred)
            distances.fill_diagonal_(0.0)
            for k, fit in fits.items():
                one = Mixture(fit.log_pi[c], fit.mu[c], fit.var[c])
                totals[k].append(silhouette(distances, log_joint(one, x).argmax(-1), k))
    means = {k: float(np.mean(scores)) for k, scores in totals.items()}
    best = max(means, key=lambda k: (means[k], -k))
    return PartCount(best, means, len(by_class), time.perf_counter() - begin)
