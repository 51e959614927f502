"""How well categories could be found in features, without knowing the truth about unlabelled images.

With labels, some labelled classes are hidden and sought again, with their number known: what a training would have to
do, on the images whose answer is known. Without, by the graph of nearest neighbours: where categories lie apart,
neighbours have the same neighbours, more than in a cloud without groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partgcd.cluster.metrics import clustering_accuracy
from partgcd.cluster.semi_kmeans import semi_kmeans

FEWEST_CLASSES = 4
"""Labelled classes of which enough can be hidden."""
_DRAWS = 4
_STARTS = 2
_NEIGHBOURS = 10
_CLOUDS = 2


def hidden_class_accuracy(
    features: NDArray[np.float32], labels: NDArray[np.int64], seed: int
) -> float | None:
    """Accuracy of semi-supervised k-means where half of the labelled classes are hidden, the mean of a few draws.

    Half of the images of the other classes are hidden too, as in the published protocol; accuracy is over all that is
    hidden, under the best match, in [0, 1]. None for fewer than four classes, of which too little can be hidden.

    Shape: features [N, D] unit norm; labels [N], -1 for none.
    """
    known = labels >= 0
    names, labels = np.unique(labels[known], return_inverse=True)
    classes = len(names)
    if classes < FEWEST_CLASSES:
        return None
    features, found = features[known], []
    for number in range(_DRAWS):
        draw = np.random.default_rng([seed, number, 0x5C0])
        place = draw.permutation(classes)[labels]
        shown = np.where((place < classes // 2) & (draw.random(len(labels)) < 0.5), place, -1)
        # A class whose images were all hidden by chance shows one.
        for lost in set(range(classes // 2)) - set(shown.tolist()):
            shown[np.flatnonzero(place == lost)[0]] = lost
        if not (shown < 0).any():
            continue
        _, clusters = semi_kmeans(features, shown, classes // 2, classes, seed + number, _STARTS)
        found.append(clustering_accuracy(place[shown < 0], clusters[shown < 0]))
    return float(np.mean(found)) if found else None


def neighbour_structure(features: NDArray[np.float32], seed: int) -> float:
    """How much more neighbours share their neighbours than in a Gaussian cloud of the same mean and covariance.

    Sharing is the share of an image's nearest neighbours (10, or fewer of few images) that a neighbour of it has too,
    the mean over images and neighbours. What a cloud without any groups has of it, which hangs on the dimension and on
    how unevenly it is filled, is subtracted: about 0 for features without groups, at most 1.

    Shape: features [N, D] unit norm, N at least 3.
    """
    mean = features.mean(axis=0)
    centred, images = features - mean, len(features)
    clouds = []
    for number in range(_CLOUDS):
        mix = np.random.default_rng([seed, number, 0xC1]).normal(size=(images, images)).astype(np.float32)
        cloud = mix @ centred / np.sqrt(images) + mean
        clouds.append(_shared(cloud / np.maximum(np.linalg.norm(cloud, axis=1, keepdims=True), 1e-12)))
    return _shared(features) - float(np.mean(clouds))


def _shared(features: NDArray[np.float32]) -> float:
    images = len(features)
    count = min(_NEIGHBOURS, images - 2)
    similar = features @ features.T
    np.fill_diagonal(similar, -np.inf)
    nearest = np.argpartition(-similar, count, axis=1)[:, :count]
    near = np.zeros((images, images), dtype=np.float32)
    near[np.arange(images)[:, None], nearest] = 1.0
    return float(((near @ near.T) * near).sum() / (count * near.sum()))
