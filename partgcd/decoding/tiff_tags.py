"""The directory of a TIFF: the few tags that make pixels, read without trusting any other, and written anew."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.decoding.begun import BrokenImage

SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 254, 256, 257, 258, 259, 262, 266
STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS, STRIP_BYTES, PLANAR = 273, 274, 277, 278, 279, 284
T4, T6, PREDICTOR, COLOURS, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES = (
    292,
    293,
    317,
    320,
    322,
    323,
    324,
    325,
)
SUB_DIRECTORIES, INKS, EXTRA, FORMAT, JPEG_TABLES = 330, 332, 338, 339, 347
YCC_WEIGHTS, YCC_SAMPLING, YCC_RANGE = 529, 530, 532
XMP, NO_DATA, DNG = 700, 42113, 50706

OLD_JPEG = (512, 513, 514, 515, 517, 518, 519, 520, 521)

_WANTED = {
    SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS,
    STRIP_BYTES, PLANAR, T4, T6, PREDICTOR, COLOURS, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTES, INKS,
    SUB_DIRECTORIES, EXTRA, FORMAT, JPEG_TABLES, YCC_WEIGHTS, YCC_SAMPLING, YCC_RANGE, XMP, NO_DATA, DNG, *OLD_JPEG,
}  # fmt: skip

_KINDS = {
    1: "u1", 2: "u1", 3: "u2", 4: "u4", 5: "u4", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 10: "i4", 11: "f4", 12: "f8",
    13: "u4", 16: "u8", 17: "i8", 18: "u8",
}  # fmt: skip
_FRACTIONS = (5, 10)

_ENTRIES = 65_535
_VALUES = 1 << 20
"""Values of a tag; more of them than a picture can have strips and colours."""


@dataclass(frozen=True)
class Tags:
    """The tags of a file's first directory that pixels hang on, each as an array of its values."""

    order: str
    values: dict[int, NDArray[Any]]

    def one(self, tag: int, default: int) -> int:
        """The first value of a tag, or ``default`` where the tag is absent or is no number."""
        found = self.values.get(tag)
        if found is None or not len(found) or not np.isfinite(float(found[0])):
            return default
        return int(found[0])

    def all(self, tag: int) -> tuple[int, ...]:
        """All whole numbers of a tag, () where it is absent."""
        found = self.values.get(tag)
        return () if found is None or found.dtype.kind not in "ui" else tuple(int(each) for each in found)

    def blob(self, tag: int) -> bytes | None:
        """The bytes of a tag."""
        found = self.values.get(tag)
        return None if found is None else found.astype(np.uint8).tobytes()


def read_tags(data: bytes) -> Tags:
    """The first directory of a classic or big TIFF. Raises BrokenImage."""
    order = "<" if data[:2] == b"II" else ">"
    # Some writers swap the 42 and not the rest; the first two bytes decide.
    big = b"\x2b" in data[2:4]
    offset, count, entry, inline = ("Q", "Q", 20, 8) if big else ("I", "H", 12, 4)
    try:
        start = struct.unpack_from(order + offset, data, 8 if big else 4)[0]
        entries = min(struct.unpack_from(order + count, data, start)[0], _ENTRIES)
    except struct.error:
        raise BrokenImage("truncated") from None
    at = start + struct.calcsize(order + count)
    values: dict[int, NDArray[Any]] = {}
    for _ in range(entries):
        if at + entry > len(data):
            break
        tag, kind = struct.unpack_from(order + "HH", data, at)
        if tag in _WANTED and kind in _KINDS:
            number = struct.unpack_from(order + offset, data, at + 4)[0]
            dtype = np.dtype(order + _KINDS[kind])
            parts = number * (2 if kind in _FRACTIONS else 1)
            place = at + entry - inline
            if parts * dtype.itemsize > inline:
                place = struct.unpack_from(order + offset, data, place)[0]
            fits = min(parts, (len(data) - place) // dtype.itemsize) if place < len(data) else 0
            if fits > 0 and (parts <= _VALUES or tag in (XMP, JPEG_TABLES)):
                found = np.frombuffer(data, dtype, fits, place)
                values[tag] = _divided(found) if kind in _FRACTIONS else found
        at += entry
    if not values:
        raise BrokenImage("damaged: a TIFF without a picture")
    return Tags(order, values)


def _divided(pairs: NDArray[Any]) -> NDArray[np.float64]:
    pairs = pairs[: len(pairs) // 2 * 2].reshape(-1, 2).astype(np.float64)
    made: NDArray[np.float64] = pairs[:, 0] / np.where(pairs[:, 1] == 0, np.nan, pairs[:, 1])
    return made


def with_tags(data: bytes, tags: dict[int, Any]) -> bytes:
    """A little-endian TIFF of ``data``, whose offsets stay as they are, with a directory of ``tags`` behind it.

    tags: whole numbers, lists of them, or bytes. What ``data`` begins with, its own eight bytes of header, is replaced.
    """
    directory, extra = b"", b""
    start = len(data) + len(data) % 2
    room = start + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        if isinstance(value, bytes):
            kind, count, body = 7, len(value), value
        else:
            numbers = np.atleast_1d(np.asarray(value, np.int64))
            short = int(numbers.max()) < 65536
            kind, count, body = (
                3 if short else 4,
                len(numbers),
                numbers.astype("<u2" if short else "<u4").tobytes(),
            )
        if len(body) > 4:
            place = struct.pack("<I", room + len(extra))
            extra += body + bytes(len(body) % 2)
        else:
            place = body.ljust(4, b"\0")
        directory += struct.pack("<HHI", tag, kind, count) + place
    head = b"II*\0" + struct.pack("<I", start)
    parts = (
        head,
        memoryview(data)[8:],
        bytes(len(data) % 2),
        struct.pack("<H", len(tags)),
        directory,
        bytes(4),
        extra,
    )
    return b"".join(parts)
