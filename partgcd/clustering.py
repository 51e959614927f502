"""Clustering of ready embeddings in scikit-learn's conventions, and how labels are read.

``y`` holds what is known: -1, None or NaN says that a row is unlabelled.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from partgcd.cluster.class_count import ClassCount
from partgcd.cluster.class_count import estimate_classes as _estimate
from partgcd.cluster.semi_kmeans import semi_kmeans


def estimate_classes(X: Any, y: Any = None, largest: int = 1000, random_state: Any = 0) -> ClassCount:
    """Estimate the number of categories among embeddings, labelled and new ones together.

    Shape:
        X: [N, D], of any norm; y: [N] or None.

    Raises:
        ValueError: fewer than 8 rows, or X and y do not belong together.

    >>> import numpy as np
    >>> X = np.repeat(np.eye(5), 20, axis=0) + 0.05 * np.random.default_rng(0).normal(size=(100, 5))
    >>> estimate_classes(X, [0] * 20 + [1] * 20 + [2] * 20 + [-1] * 40).classes
    5
    """
    points = unit_rows(np.asarray(X, dtype=np.float32))
    if len(points) < 8:
        raise ValueError(
            f"{len(points)} rows are too few to estimate a number of categories: give at least 8"
        )
    names, codes = label_codes(y, len(points))
    return _estimate(points, codes, len(names), largest, seed_of(random_state))


class SemiSupervisedKMeans(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """k-means on the sphere that holds labelled rows to their class (Vaze et al. 2022).

    Attributes:
        labels_: [N] cluster of each row; a labelled one's is its label's.
        classes_: [C] what the clusters are called: first the labels of ``y``, sorted, then new ones.
        cluster_centers_: [C, D] of unit norm.

    >>> import numpy as np
    >>> X = np.repeat(np.eye(3), 10, axis=0) + 0.05 * np.random.default_rng(0).normal(size=(30, 3))
    >>> found = SemiSupervisedKMeans(n_clusters=3).fit(X, ["oak"] * 5 + [None] * 25)
    >>> found.classes_.tolist()
    ['oak', 'new 1', 'new 2']
    """

    def __init__(
        self, n_clusters: int = 8, n_init: int = 5, iterations: int = 50, random_state: Any = 0
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.iterations = iterations
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of X [N, D], of which those with a label in ``y`` [N] stay with it.

        There are as many clusters as labels where ``n_clusters`` is less, and where every row has a label.

        Raises:
            ValueError: fewer rows than clusters.
        """
        points = unit_rows(validate_data(self, X, dtype=np.float32, ensure_min_samples=2))
        names, codes = label_codes(y, len(points))
        classes = int(self.n_clusters)
        if classes > len(points):
            raise ValueError(f"n_clusters={classes} is more than the n_samples={len(points)} rows")
        if classes < len(names):
            warnings.warn(
                f"n_clusters={classes} is below the {len(names)} labels of y: each has one", stacklevel=2
            )
        classes = clusters_for(codes, len(names), classes)
        self.cluster_centers_, codes = semi_kmeans(
            points, codes, len(names), classes, seed_of(self.random_state), self.n_init, self.iterations
        )
        self.classes_ = class_names(names, classes)
        self.labels_ = self.classes_[codes]
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The nearest centre's name for each row of X [N, D]."""
        check_is_fitted(self)
        points = unit_rows(validate_data(self, X, dtype=np.float32, reset=False))
        found: NDArray[Any] = self.classes_[(points @ self.cluster_centers_.T).argmax(axis=1)]
        return found


def label_codes(y: Any, rows: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels there are, sorted, and each row's place among them, -1 for none: [old], [N].

    Raises:
        ValueError: y is not [N].
    """
    codes = np.full(rows, -1, dtype=np.int64)
    if y is None:
        return np.empty(0, dtype=np.int64), codes
    given = np.asarray(y, dtype=object)
    if given.shape != (rows,):
        raise ValueError(f"y has shape {given.shape}: expected ({rows},)")
    known = np.array([not _is_unknown(each) for each in given.tolist()])
    values = [each.item() if isinstance(each, np.generic) else each for each in given[known].tolist()]
    values = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
    if not values:
        return np.empty(0, dtype=np.int64), codes
    if len({isinstance(each, str) for each in values}) > 1:
        values = [str(each) for each in values]
    names, codes[known] = np.unique(np.array(values), return_inverse=True)
    return names, codes


def _is_unknown(label: Any) -> bool:
    return label is None or (not isinstance(label, str) and (label == -1 or label != label))


def clusters_for(codes: NDArray[np.int64], old: int, asked: int) -> int:
    """How many clusters there are: at least one a label, and no other where nothing is unlabelled."""
    return old if len(codes) and bool((codes >= 0).all()) else max(asked, old)


def class_names(names: NDArray[Any], classes: int) -> NDArray[Any]:
    """The labels that are known, and names of their kind for the other classes."""
    more = classes - len(names)
    if names.dtype.kind not in "iub":
        taken = set(names.tolist())
        fresh = (f"new {number}" for number in range(1, classes + len(taken) + 1))
        return as_names([*names.tolist(), *[each for each in fresh if each not in taken][:more]])
    first = int(names.max()) + 1 if len(names) else 0
    return np.concatenate([names.astype(np.int64), np.arange(first, first + more, dtype=np.int64)])


def as_names(values: list[Any]) -> NDArray[Any]:
    """Names as an array: integers where all are, else objects."""
    if values and all(isinstance(each, int) for each in values):
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=object)


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def seed_of(random_state: Any) -> int:
    """``random_state`` as the seed of a run, 0 to 2^31 - 1."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
