"""How many classes new photos bring, and which photos are whose first ones. None is a good answer.

Single images of new classes are hard to tell: a model that knows eight birds is sure of many a ninth one. How many
there are among n photos is not. The bundle keeps how surprised the model is by images of known classes, and how
surprised it would be had it not known their class; the new photos are a mixture of the two, and its share has a
maximum-likelihood estimate with a standard error. The number of classes is then the number of new images over the
size that classes have had so far, unless the silhouette of clusterings has a clear peak nearby.

Letters: N images, n of them new photos, F dimensions of a feature, k new classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from partgcd.discovery.semi_kmeans import semi_kmeans

SMALLEST = 4
"""Images that a class needs: fewer are odd ones out, not a class."""

_BINS = 8
_SURE = 2.6  # standard errors by which the share of new images must be above what familiar ones may pass for
_SLACK = 0.15  # share of unseen images of known classes that look new because training never saw them
_PEAK = 0.02  # a silhouette this far above the one at the first guess is a peak


@dataclass(frozen=True)
class Mixture:
    """Share of new photos that are of unknown classes.

    Attributes:
        share: maximum likelihood.
        error: its standard error.
        posterior: [n] probability of each photo to be of an unknown class.
    """

    share: float
    error: float
    posterior: NDArray[np.float64]

    @property
    def significant(self) -> bool:
        """Whether there are more than images of known classes could pass for."""
        return self.share > _SURE * self.error


@dataclass(frozen=True)
class Growth:
    """What was found among the new photos.

    Attributes:
        classes: k.
        clusters: [N] class index: k new ones after the old; a remembered image's is its class.
        mixture: None where there were too few photos to ask.
        by_size, by_structure: the two estimates of k, before they are joined.
    """

    classes: int
    clusters: NDArray[np.int64]
    mixture: Mixture | None
    by_size: float
    by_structure: int | None


def unknown_share(
    surprise: NDArray[np.floating], familiar: NDArray[np.floating], left_out: NDArray[np.floating]
) -> Mixture:
    """The share of unknown classes among photos with ``surprise`` [n].

    Args:
        familiar, left_out: quantiles of the surprise at images of known classes, and were their class not known.
    """
    both = np.concatenate([familiar, left_out])
    edges = np.unique(np.quantile(both, np.linspace(0, 1, _BINS + 1)[1:-1]))
    count = len(edges) + 1

    def shares(values: NDArray[np.floating]) -> NDArray[np.float64]:
        counts = np.bincount(np.searchsorted(edges, values), minlength=count) + 0.5
        shared: NDArray[np.float64] = (counts / counts.sum()).astype(np.float64)
        return shared

    new = shares(left_out)
    known = (1 - _SLACK) * shares(familiar) + _SLACK * new
    bins = np.searchsorted(edges, surprise)
    p, q = known[bins], new[bins]
    share = 0.5
    for _ in range(500):
        posterior = share * q / (share * q + (1 - share) * p)
        share = float(posterior.mean())
    information = float((((q - p) / (share * q + (1 - share) * p)) ** 2).sum())
    error = 1 / math.sqrt(information) if information > 0 else 1.0
    posterior = share * q / (share * q + (1 - share) * p)
    return Mixture(share, min(error, 1.0), posterior)


def find_growth(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    old: int,
    mixture: Mixture,
    typical: float,
    largest: int,
    seed: int,
    asked: int | None = None,
) -> Growth:
    """The number of new classes, and a first guess at their images.

    Args:
        features: [N, F] unit norm; new photos are those without a label.
        labels: [N] class index of remembered images, -1 for new photos.
        old: number of known classes.
        typical: images that a class has.
        largest: no more than this.
        asked: the number, if a person gave it.
    """
    fresh = labels < 0
    count = int(fresh.sum())
    by_size = mixture.share * count / max(typical, 1.0)
    by_structure: int | None = None
    if asked is not None:
        classes = min(asked, count)
    elif not mixture.significant or mixture.share * count < SMALLEST:
        classes = 0
    else:
        first = max(1, round(by_size))
        by_structure = _peak(features[fresh], mixture.posterior, first, seed)
        classes = min(by_structure if by_structure is not None else first, largest, count // SMALLEST)
    if classes == 0:
        nearest = _nearest(features, labels, old)
        return Growth(0, np.where(fresh, nearest, labels), mixture, by_size, by_structure)
    _, clusters = semi_kmeans(features, labels, old, old + classes, seed, starts=10)
    return Growth(classes, clusters, mixture, by_size, by_structure)


def stability(features: NDArray[np.float32], members: list[NDArray[np.bool_]], seed: int) -> list[float]:
    """How well each group [n] of the images is found again by clusterings that do not know of it, in 0..1.

    The mean, over two k-means of other seeds with as many clusters as groups, of the Jaccard index between a group
    and the cluster that the best one-to-one match gives it.
    """
    if not members:
        return []
    if len(members) == 1:
        return [1.0]
    totals = np.zeros(len(members))
    for run in range(2):
        found = KMeans(len(members), n_init=3, random_state=(seed * 2 + run + 1) % 2**32).fit_predict(
            features
        )
        overlap = np.array([
            [float((group & (found == k)).sum() / max((group | (found == k)).sum(), 1)) for k in range(len(members))]
            for group in members
        ])  # fmt: skip
        rows, columns = linear_sum_assignment(overlap, maximize=True)
        totals[rows] += overlap[rows, columns]
    return [float(value) for value in totals / 2]


def _peak(features: NDArray[np.float32], posterior: NDArray[np.float64], first: int, seed: int) -> int | None:
    """A number of clusters near ``first`` whose silhouette stands out among the images that look new."""
    likely = features[posterior > 0.5]
    tried = [k for k in range(max(2, round(first / 1.6)), round(first * 1.6) + 1) if k < len(likely) // 2]
    if len(tried) < 2:
        return None
    scores = {}
    for k in tried:
        found = KMeans(k, n_init=5, random_state=seed).fit_predict(likely)
        scores[k] = float(silhouette_score(likely, found)) if len(np.unique(found)) > 1 else -1.0
    best = max(scores, key=lambda k: (scores[k], -k))
    reference = scores.get(first, min(scores.values()))
    return best if scores[best] >= reference + _PEAK else None


def _nearest(features: NDArray[np.float32], labels: NDArray[np.int64], old: int) -> NDArray[np.int64]:
    centres = np.stack([features[labels == index].mean(axis=0) for index in range(old)])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    nearest: NDArray[np.int64] = (features @ centres.T).argmax(axis=1)
    return nearest
