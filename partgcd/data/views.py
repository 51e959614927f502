"""Where each view of an image is cut: a pure function of (seed, epoch, step, image, view).

Nothing here keeps state, so a step's views are the same on one worker or on ten, and in a resumed run.
The recipe is the paper's: the image resized to a short side of ``image_size / crop_ratio``, a random crop
of ``image_size``, a horizontal flip with probability one half.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Crops(NamedTuple):
    """Boxes to cut from resized images: ``top`` and ``left`` in pixels [B], ``flip`` [B] bool."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    flip: NDArray[np.bool_]


def mix(*words: int | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A well-mixed 64-bit word of all arguments (SplitMix64's finaliser, Steele et al. 2014, chained)."""
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            value = np.asarray(word, dtype=np.uint64)
            state = (state ^ value) + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def random_crops(
    seed: int,
    epoch: int,
    step: int,
    keys: NDArray[np.uint64],
    view: int,
    shapes: NDArray[np.int64],
    size: int,
) -> Crops:
    """The crops of one view of a batch.

    Args:
        seed, epoch, step, view: what the crops depend on, with the image's key.
        keys: [B] identities of the images (`Catalog.keys`).
        shapes: [B, 2] height and width of the resized images, each at least ``size``.
        size: side of the crop, pixels.
    """
    word = mix(seed, epoch, step, keys, view)
    top = _below(mix(word, 1), shapes[:, 0] - size + 1)
    left = _below(mix(word, 2), shapes[:, 1] - size + 1)
    flip = (mix(word, 3) >> np.uint64(63)).astype(bool)
    return Crops(top, left, flip)


def pool_slots(
    seed: int, epoch: int, step: int, keys: NDArray[np.uint64], pool: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two different slots of a pool of ``pool`` cached views for each image of a batch, [B] each.

    With one cached view both are 0: the two views of a step are then the same picture.
    """
    word = mix(seed, epoch, step, keys, 0xF00D)
    first = _below(mix(word, 1), np.full(len(keys), pool))
    if pool == 1:
        return first, first
    shift = 1 + _below(mix(word, 2), np.full(len(keys), pool - 1))
    return first, (first + shift) % pool


def _below(words: NDArray[np.uint64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform integers in [0, bound): the top 53 bits as a fraction, times the bound."""
    fraction = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.minimum((fraction * bounds).astype(np.int64), bounds - 1)
