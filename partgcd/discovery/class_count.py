"""A first estimate of how many categories a folder holds.

k-means over the frozen class tokens for a range of k. With labels, the k is taken at which labelled images
cluster best by class (the search of Vaze et al., CVPR 2022, by the same clustering accuracy), and of equally
good ones that of the best silhouette over all images: labels alone cannot tell how many unlabelled groups were
merged. Without labels, the k of the best silhouette.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from partgcd.discovery.metrics import clustering_accuracy


class ClassCount(NamedTuple):
    """The estimate ``classes``, the score by k, how it was made, and the seconds it took."""

    classes: int
    scores: dict[int, float]
    by: str
    seconds: float


def estimate_classes(
    features: NDArray[np.float32], labels: NDArray[np.int64], old: int, largest: int, seed: int
) -> ClassCount:
    """Estimate the number of categories, old and new together.

    Args:
        features: [N, D] unit-norm class tokens.
        labels: [N] label index, -1 for none.
        old: number of labelled classes.
        largest: no k above this is tried, nor above N / 4.
        seed: of k-means.
    """
    began = time.perf_counter()
    known = labels >= 0
    low = max(old, 2)
    high = max(low + 1, min(largest, len(features) // 4, max(4 * old, 50)))
    scores: dict[int, float] = {}
    silhouettes: dict[int, float] = {}

    def score(k: int) -> float:
        if k not in scores:
            found = KMeans(k, n_init=2, max_iter=60, random_state=seed).fit_predict(features)
            silhouettes[k] = _silhouette(features, found, seed)
            scores[k] = clustering_accuracy(labels[known], found[known]) if known.any() else silhouettes[k]
        return scores[k]

    # Coarse to fine: the curve is noisy, so a neighbourhood of the best is searched, not one point.
    grid = np.unique(np.geomspace(low, high, 10).round().astype(int))
    for k in grid:
        score(int(k))
    while True:
        best = max(scores, key=lambda k: (scores[k], silhouettes[k], -k))
        tried = sorted(scores)
        at = tried.index(best)
        around = [(tried[i] + best) // 2 for i in (at - 1, at + 1) if 0 <= i < len(tried)]
        fresh = [k for k in around if k not in scores and low <= k <= high]
        if not fresh or len(scores) >= 24:
            break
        for k in fresh:
            score(k)
    by = "labelled accuracy over k-means" if known.any() else "silhouette over k-means"
    return ClassCount(int(best), dict(sorted(scores.items())), by, time.perf_counter() - began)


def _silhouette(features: NDArray[np.float32], found: NDArray[np.int32], seed: int) -> float:
    """Mean silhouette of up to 2000 images, -1 (the worst) where it is not defined."""
    few = min(2000, len(features))
    if not 2 <= len(np.unique(found)) < few:
        return -1.0
    return float(silhouette_score(features, found, sample_size=few, random_state=seed))
