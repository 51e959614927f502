"""Whether a known class took in photos of another one: they are many, and unlike the images it is remembered by.

A class that came unnoticed lies among the photos of the known class that it resembles most. One such photo is as
near as the class's own; all together they are more than its size lets expect, and lie beside what is remembered
rather than among it. Neither alone says much: a season brings more of one bird, another camera makes all unlike.

At four arrivals of left-out products (grocery50-rest, three of seed 0, one of seed 1) the two together marked 9 of
the 11 known classes most of whose new photos were of another class, and 2 of the 64 others. The limits were set on
the first two arrivals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MANY = 1.5
"""Times as many new photos as expected, from which on they are many."""

UNLIKE = 2.0
"""Standard deviations of the test's null from which on photos are unlike."""

_NEAREST = 3
_DRAWS = 200
_MOST = 200  # images of either side that are looked at
_FEWEST = 4


def surges(photos: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many times as many new ``photos`` [O] each class got as its size [O] lets expect; 0 where it got none.

    What is expected is the median ratio of photos to size, over the classes that got any.
    """
    rate = photos / np.maximum(sizes, 1)
    got = photos > 0
    return rate / np.median(rate[got]) if got.any() else rate


def unlikeness(remembered: NDArray[np.floating], new: NDArray[np.floating], seed: int) -> float:
    """How unlike ``new`` [n, F] images are to ``remembered`` [m, F] ones, in standard deviations; 0 for fewer than 4.

    The nearest-neighbour test of two samples (Schilling, 1986; Henze, 1988): the share of the 3 nearest neighbours
    that are of an image's own sample, against what it is when the samples are dealt at random. Rows of unit norm.
    """
    remembered, new = _some(remembered), _some(new)
    if min(len(remembered), len(new)) < _FEWEST:
        return 0.0
    both = np.concatenate([remembered, new])
    cosine = both @ both.T
    np.fill_diagonal(cosine, -np.inf)
    nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :_NEAREST]
    own = np.arange(len(both)) < len(remembered)
    draw = np.random.default_rng(seed)
    dealt = [_agreement(draw.permutation(own), nearest) for _ in range(_DRAWS)]
    return float((_agreement(own, nearest) - np.mean(dealt)) / max(float(np.std(dealt)), 1e-9))


def _agreement(own: NDArray[np.bool_], nearest: NDArray[np.int64]) -> float:
    return float((own[nearest] == own[:, None]).mean())


def _some(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    if len(rows) <= _MOST:
        return rows
    return rows[np.arange(_MOST) * len(rows) // _MOST]
