"""How well found categories agree with the truth: accuracy under the Hungarian match, NMI, ARI, purity.

Letters: n evaluated images, M candidates, N images, C classes of the model. Every number is a fraction, and
None where no image is there to count.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Accuracy(TypedDict):
    """Accuracy over all images, over those of old classes and over those of new classes."""

    all: float | None
    old: float | None
    new: float | None


class SplitAccuracy(TypedDict):
    """The numbers of one evaluation; see `split_accuracy`."""

    v2: Accuracy
    v1: Accuracy
    plain: float | None
    nmi: float | None
    ari: float | None


def match(truth: Ints, predicted: Ints) -> dict[int, int]:
    """The one-to-one map from predicted to true classes under which most images agree (Hungarian algorithm).

    There may be more predicted than true classes or fewer: then some of the larger side stay without a
    partner. A pair that no image supports is left out.

    Shape: truth [n], predicted [n], any integers.

    Raises ValueError for shapes that differ.
    """
    if truth.shape != predicted.shape:
        raise ValueError(f"truth has shape {truth.shape}, predictions {predicted.shape}: they must be equal")
    if not truth.size:
        return {}
    true_names, true_index = np.unique(truth, return_inverse=True)
    predicted_names, predicted_index = np.unique(predicted, return_inverse=True)
    overlap = np.zeros((len(predicted_names), len(true_names)), dtype=np.int64)
    np.add.at(overlap, (predicted_index, true_index), 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    return {
        int(predicted_names[row]): int(true_names[column])
        for row, column in zip(rows, columns, strict=True)
        if overlap[row, column]
    }


def cluster_of_class(labels: Ints, clusters: Ints, old: int, classes: int) -> Ints:
    """Which cluster each class gets, [classes]: labelled classes those that their images match, others what is left.

    Shape: labels [N], -1 for none; clusters [N], in 0..classes-1.
    """
    order = np.full(classes, -1, dtype=np.int64)
    known = labels >= 0
    if known.any():
        for cluster, label in match(labels[known], clusters[known]).items():
            if label < old:
                order[label] = cluster
    order[order < 0] = sorted(set(range(classes)) - set(order.tolist()))
    return order


def _correct(truth: Ints, predicted: Ints) -> Bools:
    """Which images the best match gets right, [n]."""
    found = match(truth, predicted)
    correct: Bools = np.array(
        [found.get(guess) == true for guess, true in zip(predicted.tolist(), truth.tolist(), strict=True)],
        dtype=np.bool_,
    )
    return correct


def clustering_accuracy(truth: Ints, predicted: Ints) -> float:
    """Share of the images on which predicted and true classes agree under the best match (the paper's ACC).

    Shape: truth [n], predicted [n], any integers.

    Raises ValueError for shapes that differ and for no images.
    """
    if not truth.size:
        raise ValueError("there are no images to measure accuracy on")
    return float(_correct(truth, predicted).mean())


def _share(correct: Bools) -> float | None:
    return float(correct.mean()) if correct.size else None


def split_accuracy(truth: Ints, predicted: Ints, old_mask: Bools) -> SplitAccuracy:
    """Agreement of predicted with true classes, over all images, those of old and those of new classes.

    - ``v2``: one match over all images given, then the accuracy of each group under it (the paper's ACC).
    - ``v1``: each group is matched alone, which forgives an old class that is taken for a new one; ``all`` is
      their mean weighted by images.
    - ``plain``: no match; the share of the images of old classes whose predicted index is their true class.
      It asks for old classes to be coded as the model codes them, by label index; new ones may be coded
      anyhow.
    - ``nmi``, ``ari``: normalised mutual information (arithmetic mean) and adjusted Rand index over all
    images.

    Shape: truth [n], predicted [n]; old_mask [n] bool, whether the image's true class is an old one.

    Raises ValueError for shapes that differ.
    """
    if old_mask.shape != truth.shape:
        raise ValueError(f"old_mask has shape {old_mask.shape}, truth {truth.shape}: they must be equal")
    old = old_mask.astype(np.bool_)
    together = _correct(truth, predicted)
    alone = np.zeros_like(together)
    for group in (old, ~old):
        alone[group] = _correct(truth[group], predicted[group])
    return {
        "v2": {"all": _share(together), "old": _share(together[old]), "new": _share(together[~old])},
        "v1": {"all": _share(alone), "old": _share(alone[old]), "new": _share(alone[~old])},
        "plain": _share((truth == predicted)[old]),
        "nmi": float(normalized_mutual_info_score(truth, predicted)) if truth.size else None,
        "ari": float(adjusted_rand_score(truth, predicted)) if truth.size else None,
    }


def purity(candidate_rows: Ints, candidate_classes: Ints, truth: Ints, new_class_mask: Bools) -> float | None:
    """Cluster accuracy of the new classes' candidates under their own Hungarian match (the paper's "Purity").

    Shape: candidate_rows [M], rows of ``truth``; candidate_classes [M]; truth [N]; new_class_mask [C] bool,
    whether the model's class is a new one. None where no new class has a candidate.
    """
    chosen = new_class_mask[candidate_classes].astype(np.bool_)
    return _share(_correct(truth[candidate_rows[chosen]], candidate_classes[chosen]))
