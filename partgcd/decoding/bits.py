"""Samples that are packed into bytes, of any number of bits, and their share of the full range as 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 20
"""Bits that are spread over a byte each at a time."""


def unpacked(rows: NDArray[np.uint8], bits: int, count: int) -> NDArray[Any]:
    """[R,count] unsigned samples of 1..32 bits from the rows' bytes [R,B], the highest bit first."""
    if bits == 1:
        return np.unpackbits(rows, axis=1, count=count)
    if bits in (2, 4):
        shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
        spread = (rows[:, :, None] >> shifts) & np.uint8((1 << bits) - 1)
        return spread.reshape(len(rows), -1)[:, :count]
    kind: type[Any] = np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32
    made = np.empty((len(rows), count), kind)
    step = max(1, _AT_ONCE // (count * bits))
    for top in range(0, len(rows), step):
        spread = np.unpackbits(rows[top : top + step], axis=1, count=count * bits)
        spread = spread.reshape(-1, count, bits)
        made[top : top + step] = 0
        for place in range(bits):
            made[top : top + step] |= spread[:, :, place].astype(kind) << kind(bits - 1 - place)
    return made


def as_bytes(values: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Unsigned samples of 1..32 bits as 8 bits: each as its share of the largest, rounded."""
    most = (1 << bits) - 1
    if bits == 8:
        return values.astype(np.uint8, copy=False)
    if bits < 8 or bits == 16:
        # 16 bits: the share times 255 is v / 257, in whole numbers.
        wide = values.astype(np.uint32)
        return ((wide + 128) // 257 if bits == 16 else (wide * 510 + most) // (2 * most)).astype(np.uint8)
    return np.rint(values * (255.0 / most)).astype(np.uint8)
