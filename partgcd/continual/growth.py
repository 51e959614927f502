"""How many classes new photos bring, and which photos are whose first ones. None is a good answer.

Single images of new classes are hard to tell: a model that knows eight birds is sure of many a ninth one. How many
there are among n photos is not. The bundle keeps how far images of known classes are from the remembered ones; the
share of new photos that are farther, above what that tells, is the share of unknown classes (the null proportion of
Storey, 2002, with the tail of known classes for a p-value). It is a lower bound: images of unknown classes that lie as
near as known ones are not counted, and images of classes that an earlier rediscovery missed are among those that say
how far is usual. Remembered images that are never trained on say it too, and too strictly, as a person's examples lie
nearer than what is found: from the second rediscovery on the share is the mean of both. The number of classes is that
of the new images over the size that classes had when they came; clusterings of so few images, whose features were made
to tell other classes, say less (silhouette and BIC were tried: both mostly answer 2).

Which photos are the first ones of new classes is told by number too: `partgcd.cluster.novel_samples`.

Letters: N images, n of them new photos, F dimensions of a feature, k new classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.cluster.novel_samples import Expected, cluster_novel_samples, nearest_class
from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.config.errors import UserError
from partgcd.continual.retained import Reference
from partgcd.export.bundle import EXEMPLARS, read_tensors
from partgcd.export.novelty import knn_distance

SMALLEST = 4
"""Images that a class needs: fewer are odd ones out, not a class."""

COHERENT = 0.3
"""`coherence` that a new class needs. At nine arrivals of left-out products (grocery50-rest) four of 55 new classes had
less: three whose photos were mostly of known classes, and one that another new class stood for already."""

_NEIGHBOURS = 10
_TAILS = (0.3, 0.4, 0.5, 0.6)  # p-values above which images count as known; the mean of several is steadier
_FEWEST = 30  # held-out images that are enough to go by
_SURE = 2.0  # standard errors above ...
_SLACK = 0.12  # ... the share of unseen images of known classes that look new because training never saw them


@dataclass(frozen=True)
class Unknown:
    """Share of new photos that are of unknown classes, and its standard error."""

    share: float
    error: float

    @property
    def significant(self) -> bool:
        """Whether there are more than images of known classes could pass for."""
        return self.share > _SLACK + _SURE * self.error


@dataclass(frozen=True)
class Growth:
    """What was found among the new photos.

    Attributes:
        classes: k.
        clusters: [N] class index: k new ones after the old; a remembered image's is its class.
        by_size: the estimate of k before it is rounded.
        expected: how many photos are of new classes, and how large known ones are; None where no photo is new.
    """

    classes: int
    clusters: NDArray[np.int64]
    unknown: Unknown
    by_size: float
    expected: Expected | None = None


def count_new(
    reference: Reference,
    sizes: Mapping[str, int],
    largest: int,
    seed: int,
    requested: int | None = None,
) -> tuple[Growth, NDArray[np.float64]]:
    """What a champion's opinion of new photos says about how many classes are new, and how familiar each photo is.

    Args:
        sizes: images that each class had when it came, by id.
        largest, requested: as `find_growth` takes them.

    Returns:
        the growth, and `familiarity` of the n new photos.

    Raises:
        UserError: the champion's bundle does not say how far known images are from remembered ones.
    """
    known, predictions, fresh = reference.known, reference.predictions, reference.labels < 0
    if not fresh.any():
        return Growth(0, reference.labels, Unknown(0.0, 0.0), 0.0), np.empty(0)
    kept = read_tensors(known.bundle, EXEMPLARS)
    if "remoteness.old" not in kept:
        raise UserError("the champion was exported by an older program: export its run again and add it", 1)
    memory = known.memory
    exemplars = reference.exemplars.joint
    remembered = exemplars[torch.from_numpy(~memory.held)]
    remote, nearest = knn_distance(predictions.joint[torch.from_numpy(fresh)], remembered)
    held, _ = knn_distance(exemplars[torch.from_numpy(memory.held)], remembered)
    discovered = np.array([entry.kind != "old" for entry in known.bundle.manifest.classes])
    kind = discovered[memory.classes[~memory.held][nearest.numpy()]].astype(np.int64)
    usual = [kept["remoteness.old"], kept["remoteness.discovered"]]
    share = unknown_share(remote.numpy(), kind, usual, held.numpy()[~discovered[memory.classes[memory.held]]])
    first = [sizes.get(entry.id, entry.labelled + entry.assigned) for entry in reference.retained.classes]
    growth = find_growth(
        predictions.joint.numpy(), reference.labels, np.array(first), share, largest, seed, requested,
        len(reference.retained.taught),
    )  # fmt: skip
    return growth, familiarity(remote.numpy(), kind, usual)


def familiarity(
    remote: NDArray[np.floating], kind: NDArray[np.integer], familiar: Sequence[NDArray[np.floating]]
) -> NDArray[np.float64]:
    """Of each of n photos the share of images of known classes that are at least as far, [n] in 0..1: a p-value.

    Args:
        remote, kind, familiar: as `unknown_share` takes them.
    """
    found = np.zeros(len(remote))
    for index, quantiles in enumerate(familiar):
        own = kind == index
        found[own] = 1.0 - np.interp(remote[own], quantiles, np.linspace(0.0, 1.0, len(quantiles)))
    return found


def unknown_share(
    remote: NDArray[np.floating],
    kind: NDArray[np.integer],
    familiar: Sequence[NDArray[np.floating]],
    held: NDArray[np.floating] | None = None,
) -> Unknown:
    """The share of unknown classes among n photos.

    Args:
        remote: [n] of each photo, `novelty.knn_distance`.
        kind: [n] kind of the class that it is nearest to, an index of ``familiar``; 0 are labelled ones.
        familiar: of each kind quantiles, ascending, of the same at images of known classes.
        held: [m] the same at remembered images of labelled classes that were never trained on.
    """
    low = _share_of_kinds(remote, kind, familiar)
    if held is None or len(held) < _FEWEST:
        return low
    strict = np.quantile(held, np.linspace(0.0, 1.0, 101))
    high = _share_of_kinds(remote, kind, [strict, *familiar[1:]])
    return Unknown((low.share + high.share) / 2, max(low.error, high.error))


def _share_of_kinds(
    remote: NDArray[np.floating], kind: NDArray[np.integer], familiar: Sequence[NDArray[np.floating]]
) -> Unknown:
    total, variance = 0.0, 0.0
    found = familiarity(remote, kind, familiar)
    for index in range(len(familiar)):
        own = found[kind == index]
        if len(own):
            share, error = _share(own)
            total += share * len(own)
            variance += (error * len(own)) ** 2
    return Unknown(total / len(remote), math.sqrt(variance) / len(remote))


def _share(p: NDArray[np.float64]) -> tuple[float, float]:
    """The share of one kind's photos by their `familiarity`, and its standard error."""
    known = np.array([(p > tail).mean() / (1 - tail) for tail in _TAILS])
    share = float(np.clip(1.0 - known, 0.0, 1.0).mean())
    middle = _TAILS[len(_TAILS) // 2]
    above = min(max((1 - share) * (1 - middle), 1 / len(p)), 1.0)
    # Of a count of photos above one tail; half a photo keeps a share of 0 from being certain.
    return share, math.sqrt((above * (1 - above) + 0.25 / len(p)) / len(p)) / (1 - middle)


def find_growth(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    sizes: NDArray[np.int64],
    unknown: Unknown,
    largest: int,
    seed: int,
    requested: int | None = None,
    taught: int = 0,
) -> Growth:
    """The number of new classes, and a first guess at their images.

    Args:
        features: [N, F] unit norm; new photos are those without a label.
        labels: [N] class index of remembered images, -1 for new photos.
        sizes: [O] images that each known class had when it came.
        largest: no more than this.
        requested: the number, if a person gave it.
        taught: so many classes after the known ones are shown by example, and unknown to what made the features: new
            photos that cluster with them are among the unknown share, and of no new class.
    """
    fresh = labels < 0
    count, typical, old = int(fresh.sum()), max(float(np.median(sizes)), 1.0), len(sizes) + taught
    rest = unknown.share * count
    nearest = nearest_class(features, labels, len(sizes))
    shown = np.zeros(len(labels), dtype=bool)
    if taught:
        most = min(round(rest / typical), largest, count)
        _, clusters = semi_kmeans(features, labels, old, old + most, seed, starts=10)
        shown = fresh & (clusters >= len(sizes)) & (clusters < old)
        nearest[shown] = clusters[shown]
        rest = max(rest - float(shown.sum()), 0.0)
    by_size = rest / typical
    if requested is not None:
        classes = min(requested, count)
    elif not unknown.significant or rest < SMALLEST:
        classes = 0
    else:
        classes = min(max(1, round(by_size)), largest, count // SMALLEST)
    found = round(rest) if unknown.significant else min(round(classes * typical), count)
    expected = Expected(sizes, max(found, classes) if classes else 0)
    clusters = cluster_novel_samples(features, labels, nearest, expected, old, old + classes, seed)
    return Growth(classes, clusters, unknown, by_size, expected)


def coherence(
    features: NDArray[np.float32],
    classes: NDArray[np.int64],
    photos: NDArray[np.bool_],
    wanted: Sequence[int],
) -> NDArray[np.float64]:
    """How far the photos of each class ``wanted`` lie together to eyes that were not taught the class, 0..1.

    The mean share of a photo's 10 nearest images (of all N, itself left out; of as many as the class has others, if
    those are fewer) that are in its class too; 0 for a class of less than two photos. A clustering of what training
    made would say nothing: it was taught the clusters.

    Args:
        features: [N, F] unit norm, of the model before.
        classes: [N] the class of each image.
        photos: [N] which of them came without a label.
    """
    found = np.zeros(len(wanted))
    for place, index in enumerate(wanted):
        own = np.flatnonzero((classes == index) & photos)
        count = min(_NEIGHBOURS, len(own) - 1)
        if count < 1:
            continue
        cosine = features[own] @ features.T
        cosine[np.arange(len(own)), own] = -np.inf
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        found[place] = float((classes[nearest] == index).mean())
    return found
