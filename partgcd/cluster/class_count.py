"""How many categories a folder holds, by two clusterings, with the interval that fits as well.

k-means and Ward's tree over class tokens for a range of k. With labels, k is scored by how well labelled images
cluster by class (the search of Vaze et al., CVPR 2022), per class, so that the spread over classes says which k
are as good as the best within one standard error. Labels cannot tell how many unlabelled groups were merged:
inside that interval the silhouette decides where it has a peak, else the interval's geometric middle is taken.
Both ways find too few: look-alikes share clusters. How far too few is seen where the truth is known, on the labelled
images with half of their classes hidden. There are fewer images a class then, which makes the search worse than it is
on all, so that half of that factor (its square root) is made up for.
Without labels, k is scored by the silhouette, and by how stable k-means is over seeds.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from partgcd.cluster.metrics import match

_SEEDS = 3
_TREE_IMAGES = 6000  # Ward's tree takes memory quadratic in the images
_SILHOUETTE_IMAGES = 2000
_ENOUGH_OLD = 10  # labelled classes, half of which are hidden to see how many of them are found
_DRAWS = 12
_DRAW_IMAGES = 3000
_PEAK = 0.02  # a silhouette this far above both ends of the interval is a peak


class ClassCount(NamedTuple):
    """An estimate of the number of categories.

    Attributes:
        classes: the estimate.
        low, high: numbers that fit as well, by either way.
        ways: each way's own (estimate, low, high).
        scores: k-means' score by k.
        missed: the factor by which the search finds too few, as told by labelled classes that were hidden from it;
            1 where there are too few of them to tell.
        moved: share of images that change company if the number is off by a tenth, "fewer" and "more".
        by: how it was made.
        seconds: what it took.
    """

    classes: int
    low: int
    high: int
    ways: dict[str, tuple[int, int, int]]
    scores: dict[int, float]
    missed: float
    moved: dict[str, float]
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
        largest: no k above this is tried, nor above N / 4, nor above four times ``old`` (50 without labels).
        seed: of k-means.
    """
    began = time.perf_counter()
    known = labels >= 0
    tried = _tried(len(features), old, largest)
    runs = {k: [_kmeans(features, k, seed + 7919 * i) for i in range(_SEEDS)] for k in tried}
    silhouettes = {k: _silhouette(features, found[0], seed) for k, found in runs.items()}
    if known.any():
        ways, scores = _by_labels(features, labels, runs, silhouettes, seed)
        missed = _missed(features[known], labels[known], old, seed)
        estimate = min(_joined(list(ways.values()), old, math.sqrt(missed)), tried[-1])
        by = "labelled accuracy over k-means and Ward's tree"
    else:
        scores = silhouettes
        ways = {
            "silhouette": _best(silhouettes),
            "stability": _best({k: _stability(found) for k, found in runs.items()}),
        }
        estimate, missed = _joined(list(ways.values()), old), 1.0
        by = "silhouette and stability over k-means (no labels: what counts as one category is not known)"
    middle = _kmeans(features, estimate, seed)
    moved = {}
    for name, share in (("fewer", 0.9), ("more", 1.1)):
        other = _kmeans(features, max(2, min(round(estimate * share), len(features))), seed)
        partner = match(middle, other)
        moved[name] = float(
            np.mean([partner.get(int(b), -1) != a for a, b in zip(middle, other, strict=True)])
        )
    return ClassCount(
        estimate,
        min(estimate, *(way[1] for way in ways.values())),
        max(estimate, *(way[2] for way in ways.values())),
        ways,
        scores,
        missed,
        moved,
        by,
        time.perf_counter() - began,
    )


def _tried(images: int, old: int, largest: int) -> list[int]:
    """The numbers that are tried, ascending."""
    low = max(old, 2)
    high = max(low + 1, min(largest, images // 4, max(4 * old, 12) if old else 50))
    return [int(k) for k in np.unique(np.geomspace(low, high, 20).round())]


def _by_labels(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    runs: dict[int, list[NDArray[np.int64]]],
    silhouettes: dict[int, float],
    seed: int,
) -> tuple[dict[str, tuple[int, int, int]], dict[int, float]]:
    """Each way's (estimate, low, high), and k-means' score by k."""
    known = labels >= 0
    truth = labels[known]
    curves = {
        k: np.mean([_per_class(truth, one[known]) for one in found], axis=0) for k, found in runs.items()
    }
    rows = _subsample(known, seed)
    tree = linkage(features[rows], "ward")
    kept = labels[rows] >= 0
    cuts = {k: fcluster(tree, k, "maxclust").astype(np.int64) for k in runs}
    ways = {
        "k-means": _interval(curves, silhouettes),
        "tree": _interval(
            {k: _per_class(labels[rows][kept], cut[kept]) for k, cut in cuts.items()}, silhouettes
        ),
    }
    return ways, {k: float(values.mean()) for k, values in curves.items()}


def _missed(features: NDArray[np.float32], labels: NDArray[np.int64], old: int, seed: int) -> float:
    """The factor by which the search finds too few among the labelled images, whose number of classes is known.

    Half of their classes and half of the images of the others are shown to it without labels. The mean of a few draws.
    """
    if old < _ENOUGH_OLD:
        return 1.0
    if len(labels) > _DRAW_IMAGES:
        few = np.sort(np.random.default_rng(seed).choice(len(labels), _DRAW_IMAGES, replace=False))
        features, labels = features[few], np.unique(labels[few], return_inverse=True)[1]
        old = int(labels.max()) + 1
    logs = []
    for number in range(_DRAWS):
        draw = np.random.default_rng([seed, number, 0x41D])
        place = draw.permutation(old)[labels]
        shown = np.where((place < old // 2) & (draw.random(len(labels)) < 0.5), place, -1)
        if not (shown >= 0).any():
            continue
        runs = {
            k: [_kmeans(features, k, seed + 7919 * number)]
            for k in _tried(len(features), old // 2, len(features))
        }
        silhouettes = {k: _silhouette(features, found[0], seed) for k, found in runs.items()}
        ways, _ = _by_labels(features, shown, runs, silhouettes, seed)
        logs.append(math.log(old / _joined(list(ways.values()), old // 2)))
    return math.exp(float(np.mean(logs))) if logs else 1.0


def _kmeans(features: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    found = KMeans(k, n_init=1, max_iter=60, random_state=seed % 2**32).fit_predict(features)
    return found.astype(np.int64)  # type: ignore[no-any-return]


def _per_class(truth: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of each class's images in the cluster that the Hungarian match gives it, [classes]."""
    # match() maps predicted to true.
    partner = {true: cluster for cluster, true in match(truth, clusters).items()}
    return np.array([
        np.mean(clusters[truth == name] == partner[name]) if name in partner else 0.0
        for name in np.unique(truth).tolist()
    ])  # fmt: skip


def _interval(curves: dict[int, NDArray[np.float64]], silhouettes: dict[int, float]) -> tuple[int, int, int]:
    """(estimate, low, high) of one way: the k within one standard error, over classes, of the best."""
    means = {k: float(values.mean()) for k, values in curves.items()}
    best = max(means, key=lambda k: (means[k], silhouettes[k], -k))
    error = float(curves[best].std()) / math.sqrt(len(curves[best]))
    fits = [k for k in curves if means[k] >= means[best] - error]
    low, high = min(fits), max(fits)
    peak = max(fits, key=lambda k: (silhouettes[k], -k))
    if silhouettes[peak] >= max(silhouettes[low] * (low != peak), silhouettes[high] * (high != peak)) + _PEAK:
        return peak, low, high
    return round(math.sqrt(low * high)), low, high


def _best(scores: dict[int, float]) -> tuple[int, int, int]:
    """(best, low, high) of a score without a known error: what comes within a twentieth of the range."""
    best = max(scores, key=lambda k: (scores[k], -k))
    slack = 0.05 * (max(scores.values()) - min(scores.values()))
    fits = [k for k in scores if scores[k] >= scores[best] - slack]
    return best, min(fits), max(fits)


def _joined(ways: list[tuple[int, int, int]], old: int, factor: float = 1.0) -> int:
    """One number out of all ways: the geometric mean, because a count is off by a factor."""
    return max(old, 2, round(factor * math.exp(sum(math.log(way[0]) for way in ways) / len(ways))))


def _stability(found: list[NDArray[np.int64]]) -> float:
    """Mean adjusted Rand index over pairs of seeds."""
    pairs = [(a, b) for i, a in enumerate(found) for b in found[:i]]
    return float(np.mean([adjusted_rand_score(a, b) for a, b in pairs]))


def _subsample(known: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """At most ``_TREE_IMAGES`` rows, labelled and unlabelled in proportion, in order."""
    if len(known) <= _TREE_IMAGES:
        return np.arange(len(known))
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(len(known), _TREE_IMAGES, replace=False))


def _silhouette(features: NDArray[np.float32], found: NDArray[np.int64], seed: int) -> float:
    """Mean silhouette of up to 2000 images, -1 (the worst) where it is not defined."""
    few = min(_SILHOUETTE_IMAGES, len(features))
    if not 2 <= len(np.unique(found)) < few:
        return -1.0
    return float(silhouette_score(features, found, sample_size=few, random_state=seed))
