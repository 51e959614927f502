"""What the drawn pictures of pictures.py have in common: their plain form, and pieces of files."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]


class Made(NamedTuple):
    """A file, what it is in words, its pixels [H,W,3] in 0..255 as they are to be seen, and how far off they may be:
    each by ``most``, all together by ``mean``."""

    name: str
    data: bytes
    plain: NDArray[np.float64]
    most: float
    mean: float


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """What EXIF says is upright, from the standard's words on where row 0 and column 0 lie."""
    across = pixels.transpose(1, 0, 2)
    return {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1], 5: across,
        6: pixels[::-1].transpose(1, 0, 2), 7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: pixels[:, ::-1].transpose(1, 0, 2),
    }[orientation]  # fmt: skip


def on_white(colour: Pixels, alpha: Pixels) -> NDArray[np.float64]:
    """Colours [H,W,C] laid on white by alpha [H,W] in 0..1."""
    return colour * alpha[..., None] + 255.0 * (1 - alpha[..., None])


def three(values: Pixels) -> Pixels:
    return values.repeat(3, -1) if values.shape[-1] == 1 else values


def random_values(draw: random.Random, channels: int, most: int, least: int = 8) -> NDArray[np.int64]:
    rng = np.random.default_rng(draw.getrandbits(32))
    return rng.integers(0, most + 1, (draw.randint(least, 60), draw.randint(8, 60), channels))


def exif_of(draw: random.Random, orientation: int) -> bytes:
    """EXIF with one orientation, sometimes followed by entries that lie about their size."""
    order = draw.choice("<>")
    damaged = draw.random() < 0.4
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, 2 if damaged else 1)
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return (
        head
        + entry
        + (struct.pack(order + "HHII", 0x010F, 2, 0x7FFFFFFF, 0x7FFFFFFF) if damaged else b"")
        + bytes(4)
    )


def bit_rows(values: Pixels, bits: int, align: int = 1) -> Pixels:
    """[R,N] whole numbers of 1..16 bits as rows of bytes, the highest bit first, padded to ``align`` bytes."""
    wide = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(len(values), -1, 2), axis=2)[
        :, :, 16 - bits :
    ]
    packed = np.packbits(wide.reshape(len(values), -1), axis=1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % align)))
