"""How well part maps agree with part masks that are known: scores and controls (numpy, truth needed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import normalized_mutual_info_score

from partgcd.parts.mixture import kmeans

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SlotAgreement:
    """Raw agreement (0..1), what unaligned slots would score, and (raw - chance) / (1 - chance)."""

    raw: float
    chance: float
    corrected: float


def mutual_information(parts: ArrayLike, truth: ArrayLike) -> float:
    """Normalised mutual information (arithmetic mean, 0..1) of found and true part of each patch.

    Shape: parts [n], truth [n] integers. A negative truth is unknown and left out; nan if nothing is left.
    """
    found, true = np.asarray(parts), np.asarray(truth)
    known = true >= 0
    if not known.any():
        return float("nan")
    return float(normalized_mutual_info_score(true[known], found[known]))


def slot_agreement(
    slots: ArrayLike, truth: ArrayLike, classes: ArrayLike, seed: int = 0, shuffles: int = 20
) -> SlotAgreement:
    """Whether a slot lands on the same true part in every class.

    With n_ckt the patches of class c that slot k takes and whose true part is t, the slot's part in the class
    is the true part it holds most above that part's share of the class,

        m_ck = argmax_t (n_ckt / n_ck - n_c.t / n_c..),    n_ck = sum_t n_ckt,

    and m'_ck is the same of the sums over all other classes (ties: the smaller t). Then

        raw = sum_ck n_ck [m_ck = m'_ck] / sum_ck n_ck.

    The shares are taken off because parts are of unequal size: slots that mean nothing all hold mostly the
    largest part, in every class, and would agree perfectly.

    chance is the mean of raw when each class's slots are renamed at random, i.e. equally good parts in slots
    that mean nothing across classes. corrected = (raw - chance) / (1 - chance): 1 is perfect, 0 is unaligned;
    0 where chance is 1 (then one part covers all, or there is one class, and nothing can be told).

    Shape: slots, truth, classes [n] integers from 0. A negative truth is unknown and left out.

    Raises:
        ValueError: no patch has a known part.
    """
    slot, true, label = (np.asarray(a, dtype=np.int64) for a in (slots, truth, classes))
    known = true >= 0
    slot, true = slot[known], true[known]
    if slot.size == 0:
        raise ValueError("no patch has a known part: there is nothing to agree with")
    names, row = np.unique(label[known], return_inverse=True)
    counts = np.zeros((len(names), slot.max() + 1, true.max() + 1), dtype=np.int64)
    np.add.at(counts, (row, slot, true), 1)
    raw = _agreement(counts)
    rng = np.random.default_rng(seed)
    chance = float(np.mean([_agreement(_renamed(counts, rng)) for _ in range(shuffles)]))
    corrected = (raw - chance) / (1.0 - chance) if chance < 1.0 else 0.0
    return SlotAgreement(raw, chance, corrected)


def _agreement(counts: Ints) -> float:
    by_class = _excess(counts).argmax(axis=2)
    # A class must not vote on what it is compared with: with few classes noise would agree with itself.
    others = counts.sum(axis=0, keepdims=True) - counts if len(counts) > 1 else counts
    overall = _excess(others).argmax(axis=2)
    patches = counts.sum(axis=2)
    return float((patches * (by_class == overall)).sum() / patches.sum())


def _excess(counts: Ints) -> NDArray[np.float64]:
    """How far each slot's share of each part [C, K, T] lies above the class's; 0 for a slot without patches."""
    slots = counts.sum(axis=2, keepdims=True)
    shares = counts / np.maximum(slots, 1)
    prior = counts.sum(axis=1, keepdims=True) / np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
    return np.where(slots > 0, shares - prior, 0.0)


def _renamed(counts: Ints, rng: np.random.Generator) -> Ints:
    """The counts [C, K, T] with each class's slots in an order of its own."""
    order = rng.permuted(np.tile(np.arange(counts.shape[1]), (len(counts), 1)), axis=1)
    return np.take_along_axis(counts, order[..., None], axis=1)


def shuffled(maps: NDArray[Any], seed: int) -> NDArray[Any]:
    """A control: each image's part maps with its patches in random order (same masses, places lost).

    Shape: maps [B, P, K] -> [B, P, K].
    """
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(maps.shape[1]), (len(maps), 1)), axis=1)
    return np.take_along_axis(maps, order[..., None], axis=1)


def kmeans_parts(
    patches: ArrayLike, classes: ArrayLike, parts: int, seed: int, aligned: bool = False
) -> Ints:
    """The baseline: k-means on each class's patches alone, so slot k means whatever it happens to.

    With ``aligned``, each class's clusters are matched to those of k-means over all patches (Hungarian method
    on squared distances of centres). A class with fewer patches than parts gets as many clusters as it has
    patches.

    Shape: patches [n, d], classes [n] -> slot of each patch [n] in 0..parts-1.
    """
    x, label = np.asarray(patches, dtype=np.float64), np.asarray(classes)
    reference = kmeans(x, min(parts, len(x)), seed)[0] if aligned else None
    slots = np.empty(len(x), dtype=np.int64)
    for c in np.unique(label):
        rows = np.flatnonzero(label == c)
        centres, found = kmeans(x[rows], min(parts, len(rows)), seed)
        if reference is not None:
            cost = ((centres[:, None] - reference[None]) ** 2).sum(-1)
            found = linear_sum_assignment(cost)[1][found]
        slots[rows] = found
    return slots
