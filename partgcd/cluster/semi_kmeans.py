"""Semi-supervised k-means: labelled images stay with their class, the rest is clustered (Vaze et al. 2022)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus


def semi_kmeans(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    old: int,
    classes: int,
    seed: int,
    starts: int = 5,
    iterations: int = 50,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Cluster centres with the first ``old`` of them held to the labelled classes.

    Old centres start at their class means, new ones by k-means++ among the unlabelled images farthest from
    every old centre. Of several starts the one with the least squared distance is returned.

    Args:
        features: [N, D] unit norm.
        labels: [N] label index, -1 for none.
        old: number of labelled classes.
        classes: number of clusters, at least ``old``.
        seed: of the starts.

    Returns:
        centres [C, D] with unit norm, and clusters [N] (a labelled image's is its label).
    """
    known = labels >= 0
    fixed = (
        np.stack([features[labels == label].mean(axis=0) for label in range(old)]) if old else features[:0]
    )
    best: tuple[float, NDArray[np.float32], NDArray[np.int64]] | None = None
    for start in range(starts):
        centres = _start(features[~known], fixed, classes - old, (seed * starts + start) % 2**32)
        clusters = labels.copy()
        for _ in range(iterations):
            distance = 2.0 - 2.0 * features @ centres.T
            found = distance.argmin(axis=1)
            found[known] = labels[known]
            if (found == clusters).all():
                break
            clusters = found
            centres = _means(features, clusters, centres)
        inertia = float(np.take_along_axis(distance, found[:, None], axis=1).sum())
        if best is None or inertia < best[0]:
            best = (inertia, centres, found)
    assert best is not None
    return best[1], best[2]


def _start(pool: NDArray[np.float32], fixed: NDArray[np.float32], new: int, seed: int) -> NDArray[np.float32]:
    fixed = _unit(fixed)
    if new == 0:
        return fixed
    if len(fixed):
        # Images that no old class claims are the likeliest to be new ones.
        strange = (pool @ fixed.T).max(axis=1)
        pool = pool[np.argsort(strange, kind="stable")[: max(new, len(pool) * 2 // 3)]]
    centres, _ = kmeans_plusplus(pool, min(new, len(pool)), random_state=seed)
    if len(centres) < new:
        centres = np.resize(centres, (new, pool.shape[1]))
    return np.concatenate([fixed, _unit(centres)]).astype(np.float32)


def _means(
    features: NDArray[np.float32], clusters: NDArray[np.int64], before: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Unit-norm means; a cluster that lost its images stays where it was."""
    sums = np.zeros_like(before)
    np.add.at(sums, clusters, features)
    empty = np.bincount(clusters, minlength=len(before)) == 0
    sums[empty] = before[empty]
    return _unit(sums)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit
