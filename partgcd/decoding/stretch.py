"""Values without a range of their own (floating point, wide integers) as 8 bits, stretched between what is data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.decoding.begun import BrokenImage

_BLOCK = 1 << 20
"""Values that are looked at at a time."""

_NO_DATA = (-9999.0, -99999.0, -999999.0, -999.0, -32768.0, -32767.0, 9999.0, 32767.0)
"""What programs write where they have no value, if nothing else says so; also all beyond 1e30."""

_SHARE = 0.01
"""Values that no program is known to write stand for no data up to this share of a picture ..."""

_GAP = 10.0
"""... and where this many times the range of all others lies between."""


def stretched(values: NDArray[Any], no_data: float | None = None) -> NDArray[np.uint8]:
    """Real values [...] stretched from their smallest to their largest to 0..255; what is no data becomes 0.

    No data are NaN, infinite values and ``no_data``. So is a lowest or highest value far from all others that
    programs write for it; a few others that lie that far are cut off (0 or 255). A picture without such values is
    stretched over its whole range. Raises BrokenImage where nothing is left.
    """
    flat = values.reshape(-1)
    holes = set() if no_data is None else {values.dtype.type(no_data)}
    low, high = _range(flat, holes)
    if low > high:
        raise BrokenImage("no finite pixel value")
    for _ in range(4):  # no data may be marked at both ends, in more than one way
        found = _far_end(flat, holes, low, high)
        if found is None:
            break
        low, high, hole = found
        if hole is not None:
            holes.add(values.dtype.type(hole))
    made = np.empty(flat.shape, np.uint8)
    scale = 255.0 / (high - low) if high > low else 0.0
    for start, block, usable in _blocks(flat, holes):
        wide = block.astype(np.float64)
        if not usable.all():
            wide[~usable] = low
        scaled = np.rint((wide - low) * scale).clip(0, 255)
        scaled[~usable] = 0
        made[start : start + len(block)] = scaled
    return made.reshape(values.shape)


def _blocks(flat: NDArray[Any], holes: set[Any]) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_]]]:
    """Where each block begins, its values, and which of them are data."""
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK]
        usable = np.isfinite(block)
        for hole in holes:
            usable &= block != hole
        yield start, block, usable


def _range(flat: NDArray[Any], holes: set[Any]) -> tuple[float, float]:
    """Smallest and largest value of the data; (inf, -inf) where there is none."""
    low, high = np.inf, -np.inf
    for _, block, usable in _blocks(flat, holes):
        data = block if usable.all() else block[usable]
        if len(data):
            low, high = min(low, float(data.min())), max(high, float(data.max()))
    return low, high


def _far_end(
    flat: NDArray[Any], holes: set[Any], low: float, high: float
) -> tuple[float, float, float | None] | None:
    """The range without its lowest or highest value where that lies far from all others, and the value if it is a
    known mark of no data. None where neither does.

    Of values that are cut off already (outside low..high) there is no more talk.
    """
    middle = low / 2 + high / 2
    below, above, second, last = low, high, high, low
    few = many = 0
    for _, block, usable in _blocks(flat, holes):
        data = block[usable & (block >= low) & (block <= high)]
        lower = data < middle
        under, over = data[lower], data[~lower]
        few, many = few + len(under), many + len(over)
        if len(under):
            below = max(below, float(under.max()))
            inner = under[under > low]
            second = min(second, float(inner.min())) if len(inner) else second
        if len(over):
            above = min(above, float(over.min()))
            inner = over[over < high]
            last = max(last, float(inner.max())) if len(inner) else last
        # Every gap only shrinks: a clean picture is known by its first block.
        apart = above - below
        if (
            apart < _GAP * min(high - above, below - low)
            and min(second, above) - low < high - min(second, above)
            and high - max(last, below) < max(last, below) - low
        ):
            return None
    second, last = min(second, above), max(last, below)
    if _known(low) and 0 < high - second <= second - low:
        return second, high, low
    if _known(high) and 0 < last - low <= high - last:
        return low, last, high
    if few <= _SHARE * (few + many) and 0 < _GAP * (high - above) <= above - below:
        return above, high, None
    if many <= _SHARE * (few + many) and 0 < _GAP * (below - low) <= above - below:
        return low, below, None
    return None


def _known(value: float) -> bool:
    return abs(value) > 1e30 or value in _NO_DATA
