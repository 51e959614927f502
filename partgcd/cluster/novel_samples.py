"""Which unlabelled images are of unknown classes, told by number: known classes that got too many images.

A class that looks like a known one lies nearer to it than far-off ones lie to each other, so the images farthest from
every class are the same few far-off kinds again, and a clustering of all images gives those two clusters before it
gives the look-alike one. What tells the look-alike is number: a known class that got more images than its size lets
expect holds as many of others, and those are the ones least close to the images that are known to be of it.

Letters: N images, O known classes, F dimensions of a feature.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

_NEAREST = 3


@dataclass(frozen=True)
class Expected:
    """What is known of unlabelled images before they are looked at.

    Attributes:
        sizes: [O] of the known classes, in images; unlabelled images of known classes come in proportion.
        novel_samples: how many unlabelled images are of no known class.
    """

    sizes: NDArray[np.int64]
    novel_samples: int

    def shares(self, unlabelled: int, old: int, classes: int) -> NDArray[np.float64]:
        """What share of so many unlabelled images each class has: [classes], sums to 1.

        New classes, old..classes-1, divide the strangers alike; labelled ones of unknown size, O..old-1, count as a
        known one of the median share.
        """
        found = np.zeros(classes)
        known = len(self.sizes)
        found[:known] = max(unlabelled - self.novel_samples, 1) * self.sizes / max(int(self.sizes.sum()), 1)
        found[known:old] = float(np.median(found[:known]))
        if classes > old:
            found[old:] = self.novel_samples / (classes - old)
        share: NDArray[np.float64] = found / found.sum()
        return share


def closeness(remembered: NDArray[np.floating], new: NDArray[np.floating]) -> NDArray[np.float64]:
    """How near each of ``new`` [n, F] lies to ``remembered`` [m, F] images: mean cosine with its 3 nearest, [n].

    Rows of unit norm; 0 where nothing is remembered.
    """
    if not len(remembered):
        return np.zeros(len(new))
    cosine = np.sort(new @ remembered.T, axis=1)[:, -_NEAREST:]
    return np.asarray(cosine.mean(axis=1), dtype=np.float64)


def nearest_class(
    features: NDArray[np.float32], labels: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """The labelled class whose mean image each of N images is nearest to: [N] in 0..classes-1.

    Args:
        features: [N, F] unit norm.
        labels: [N] class index, -1 for none; each of ``classes`` classes has an image.
    """
    centres = np.stack([features[labels == index].mean(axis=0) for index in range(classes)])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    nearest: NDArray[np.int64] = (features @ centres.T).argmax(axis=1)
    return nearest


def novel_samples(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    nearest: NDArray[np.int64],
    expected: Expected,
) -> NDArray[np.int64]:
    """Rows of the unlabelled images that are likeliest of unknown classes, ascending: as many as are expected.

    Args:
        features: [N, F] unit norm.
        labels: [N] class index, -1 for unlabelled images.
        nearest: [N] the class that an image is nearest to; one of no known class (O or more) is not looked at.
        expected: fewer strangers come where there are not so many images.
    """
    sizes = expected.sizes
    looked = np.flatnonzero((labels < 0) & (nearest < len(sizes)))
    if not len(looked) or expected.novel_samples < 1:
        return looked[:0]
    usual = max(len(looked) - expected.novel_samples, 0) * sizes / max(int(sizes.sum()), 1)
    order, ranks = [], []
    for index in np.unique(nearest[looked]).tolist():
        own = looked[nearest[looked] == index]
        order.append(own[np.argsort(closeness(features[labels == index], features[own]), kind="stable")])
        # Images beyond the usual number come first, of all classes alike.
        ranks.append(np.arange(1, len(own) + 1) / max(len(own) - float(usual[index]), 1e-3))
    found = np.concatenate(order)[np.argsort(np.concatenate(ranks), kind="stable")]
    return np.sort(found[: expected.novel_samples])


def cluster_novel_samples(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    nearest: NDArray[np.int64],
    expected: Expected,
    old: int,
    classes: int,
    seed: int,
) -> NDArray[np.int64]:
    """Clusters [N]: strangers by k-means, old..classes-1; other unlabelled images with the class they are nearest to.

    Args:
        features, labels, nearest, expected: as `novel_samples` takes them.
        old, classes: number of labelled classes, and of all.
    """
    clusters = np.where(labels < 0, nearest, labels)
    found = novel_samples(features, labels, nearest, expected)
    count = min(classes - old, len(found))
    if count > 0:
        with warnings.catch_warnings():  # copies: fewer distinct images than clusters leave some empty
            warnings.simplefilter("ignore", ConvergenceWarning)
            means = KMeans(count, n_init=10, random_state=seed % 2**32)
            clusters[found] = old + means.fit_predict(features[found])
    return clusters
