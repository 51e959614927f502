"""A flat picture of the feature space: N points of D dimensions drawn as N points of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

TSNE_LIMIT = 3000
_MIN_FOR_TSNE = 10
_PCA_DIMENSIONS = 50


@dataclass(frozen=True)
class Embedding:
    """``points`` [N,2] float32 in -1..1 on the longer axis, and the ``method`` that placed them."""

    points: NDArray[np.float32]
    method: str


def embed(features: NDArray[np.floating], seed: int) -> Embedding:
    """Place features [N,D] on a plane so that near ones stay near.

    t-SNE on the first 50 principal components up to 3000 rows, the first two principal components above
    that (and below 10 rows or 2 dimensions, where t-SNE has nothing to estimate). Rows are L2-normalised
    first, as the cosine classifier sees them; values that are not finite count as 0. Equal input and seed
    give equal points.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rows = np.nan_to_num(features.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    count, dimensions = rows.shape
    spread = float(np.ptp(rows, axis=0).max()) if count else 0.0
    if count < 2 or spread == 0.0:
        return Embedding(np.zeros((count, 2), np.float32), "PCA")
    keep = min(_PCA_DIMENSIONS, dimensions, count)
    # The full solver is exact and cheap at this size; the randomised one is for many rows.
    solver = "full" if count <= TSNE_LIMIT else "randomized"
    reduced = PCA(keep, svd_solver=solver, random_state=seed).fit_transform(rows)
    if count > TSNE_LIMIT or count < _MIN_FOR_TSNE or keep < 2:
        return Embedding(_fit_square(reduced[:, :2]), "PCA")
    tsne = TSNE(
        2,
        perplexity=min(30.0, (count - 1) / 3.0),
        init="pca",
        learning_rate="auto",
        max_iter=500,
        random_state=seed,
        n_jobs=1,
    )
    # One thread: the sums keep their order, and idle threads do not spin on a busy machine.
    with threadpool_limits(1):
        return Embedding(_fit_square(tsne.fit_transform(reduced)), "t-SNE")


def _fit_square(points: NDArray[np.floating]) -> NDArray[np.float32]:
    flat = np.zeros((len(points), 2), np.float32)
    flat[:, : points.shape[1]] = points
    low, high = flat.min(axis=0), flat.max(axis=0)
    scale = max(float((high - low).max()) / 2.0, 1e-12)
    return cast("NDArray[np.float32]", ((flat - (low + high) / 2.0) / scale).astype(np.float32))
