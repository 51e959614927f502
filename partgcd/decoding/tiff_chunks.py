"""The strips and tiles of a TIFF as rows of plain bytes, a few at a time, whatever they were compressed with."""

from __future__ import annotations

import ctypes
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin, TiffImagePlugin

from partgcd.decoding import tiff_tags as tag
from partgcd.decoding.begun import BrokenImage
from partgcd.decoding.jpeg import check_work
from partgcd.decoding.tiff_tags import Tags, with_tags

NONE, DEFLATE, JPEG, PACKBITS = 1, (8, 32946), 7, 32773

BY_LIBTIFF = {5: "LZW", 32773: "PackBits", 50000: "Zstandard", 34925: "LZMA"}
"""Compressions of bytes that Pillow's libtiff undoes; what the bytes mean is no business of it."""

_NOT_EVERYWHERE = (50000, 34925)
"""Those that a Pillow may have been built without."""

_CHUNKS = 70_000
"""Strips and tiles of a picture."""

_JPEGS = 10_000
"""Those that are a JPEG each."""

_READ = 1 << 16
_REVERSED = np.packbits(
    np.unpackbits(np.arange(256, dtype=np.uint8).reshape(-1, 1), axis=1), axis=1, bitorder="little"
)
_REVERSE = _REVERSED.tobytes()

Take = Callable[[int], memoryview | bytes]
"""The next n bytes of a chunk."""


@dataclass(frozen=True)
class Layout:
    """How the samples of a picture lie in its file.

    planes: how many separate planes there are, each with ``samples`` samples a pixel. A chunk (strip or tile) has
    ``rows`` rows of ``columns`` pixels, ``row_bytes`` bytes each, and ``across`` of them fill the picture's width.
    """

    width: int
    height: int
    bits: int
    samples: int
    planes: int
    columns: int
    rows: int
    across: int
    down: int
    compression: int
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    reversed_bits: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of one chunk."""
        return (self.columns * self.samples * self.bits + 7) // 8

    @property
    def tiled(self) -> bool:
        """Whether chunks are tiles."""
        return self.across > 1 or self.columns != self.width


def layout_of(tags: Tags, data: bytes, size: tuple[int, int], bits: int, samples: int) -> Layout:
    """Where the samples lie. Raises BrokenImage where the file does not say, or says too much."""
    width, height = size
    planes = samples if tags.one(tag.PLANAR, 1) == 2 and samples > 1 else 1
    tiled = tag.TILE_OFFSETS in tags.values
    columns = tags.one(tag.TILE_WIDTH, 0) if tiled else width
    rows = tags.one(tag.TILE_HEIGHT, 0) if tiled else min(tags.one(tag.ROWS, height), height)
    if columns < 1 or rows < 1:
        raise BrokenImage("damaged: a TIFF without the size of its strips or tiles")
    across, down = -(-width // columns), -(-height // rows)
    wanted = across * down * planes
    if wanted > (_JPEGS if tags.one(tag.COMPRESSION, 1) == JPEG else _CHUNKS):
        raise BrokenImage(f"a TIFF of {wanted:,} strips or tiles: save it with fewer")
    offsets = np.array(tags.all(tag.TILE_OFFSETS if tiled else tag.STRIP_OFFSETS), np.float64).astype(
        np.int64
    )
    counts = np.array(tags.all(tag.TILE_BYTES if tiled else tag.STRIP_BYTES), np.float64).astype(np.int64)
    if len(offsets) < wanted:
        raise BrokenImage(
            "truncated" if len(offsets) else "damaged: a TIFF that does not say where its pixels are"
        )
    if len(counts) < wanted or not counts[:wanted].all():  # old writers leave them out
        counts = np.maximum(len(data) - offsets[:wanted], 0)
    samples = 1 if planes > 1 else samples
    return Layout(
        width, height, bits, samples, planes, columns, rows, across, down, tags.one(tag.COMPRESSION, 1),
        offsets[:wanted], counts[:wanted], tags.one(tag.FILL_ORDER, 1) == 2,
    )  # fmt: skip


def rows_of(data: bytes, tags: Tags, layout: Layout, plane: int, at_once: int) -> Iterator[NDArray[np.uint8]]:
    """The bytes of one plane, [R, across * row_bytes] uint8 after another, R at most ``at_once`` or a tile's height."""
    whole = _by_libtiff(data, layout, plane) if layout.compression in BY_LIBTIFF else None
    if layout.tiled:
        for line in range(layout.down):
            rows = min(layout.rows, layout.height - line * layout.rows)
            band = np.empty((rows, layout.across, layout.row_bytes), np.uint8)
            for place in range(layout.across):
                take = _opened(data, tags, layout, whole, plane, line, place)
                band[:, place] = _taken(take, rows, layout.row_bytes)
            yield band.reshape(rows, -1)
        return
    band, filled = np.empty((min(at_once, layout.height), layout.row_bytes), np.uint8), 0
    for line in range(layout.down):
        left = min(layout.rows, layout.height - line * layout.rows)
        take = _opened(data, tags, layout, whole, plane, line, 0)
        while left:
            rows = min(left, len(band) - filled)
            band[filled : filled + rows] = _taken(take, rows, layout.row_bytes)
            filled, left = filled + rows, left - rows
            if filled == len(band):
                yield band
                band, filled = np.empty_like(band), 0
    if filled:
        yield band[:filled]


def _taken(take: Take, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    found = take(rows * row_bytes)
    if len(found) < rows * row_bytes:
        raise BrokenImage("truncated")
    return np.frombuffer(found, np.uint8, rows * row_bytes).reshape(rows, row_bytes)


def _opened(
    data: bytes,
    tags: Tags,
    layout: Layout,
    whole: NDArray[np.uint8] | None,
    plane: int,
    line: int,
    place: int,
) -> Take:
    """A chunk, ready to be taken from its beginning on."""
    if whole is not None:
        left = place * layout.row_bytes
        part = whole[line * layout.rows : (line + 1) * layout.rows, left : left + layout.row_bytes]
        return _slices(memoryview(part.tobytes()))
    index = (plane * layout.down + line) * layout.across + place
    start = int(layout.offsets[index])
    packed = memoryview(data)[start : start + int(layout.counts[index])] if start >= 0 else memoryview(b"")
    if layout.compression == JPEG:
        return _slices(memoryview(_jpeg(packed, tags, layout)))
    if layout.reversed_bits:
        packed = memoryview(packed.tobytes().translate(_REVERSE))
    if layout.compression in DEFLATE:
        return _inflated(packed)
    # The one strip of a file without sizes ends where the file does.
    return _slices(packed)


def _slices(whole: memoryview) -> Take:
    at = 0

    def take(count: int) -> memoryview:
        nonlocal at
        at += count
        return whole[at - count : at]

    return take


def _inflated(packed: memoryview) -> Take:
    """A deflated chunk, unpacked only as far as it is taken."""
    stream, at, rest = zlib.decompressobj(), 0, b""

    def take(count: int) -> bytes:
        nonlocal at, rest
        made: list[bytes] = []
        while count > 0 and not stream.eof and (rest or at < len(packed)):
            if not rest:
                rest, at = bytes(packed[at : at + _READ]), at + _READ
            part = stream.decompress(rest, count)
            rest = stream.unconsumed_tail
            made.append(part)
            count -= len(part)
        if count > 0:  # what zlib still holds back
            made.append(stream.decompress(rest, count))
        return b"".join(made)

    return take


def _jpeg(packed: memoryview, tags: Tags, layout: Layout) -> bytes:
    """The samples of a chunk that is a JPEG: its tables may lie apart, and the TIFF says what its colours are."""
    tables = tags.blob(tag.JPEG_TABLES) or b""
    tables = tables[2:-2] if tables[:2] == b"\xff\xd8" and tables[-2:] == b"\xff\xd9" else b""
    # Adobe's mark makes the decoder take the colours for what the TIFF says they are.
    transform = b"\1" if tags.one(tag.PHOTOMETRIC, 0) == 6 else b"\0"
    adobe = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0" + transform if layout.samples > 2 else b""
    stream = check_work(b"\xff\xd8" + adobe + tables + bytes(packed[2:]), (layout.columns, layout.rows))
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(stream))
    image.load()
    bands = len(image.getbands())
    if bands != layout.samples or image.width != layout.columns:
        raise BrokenImage("damaged: a TIFF whose JPEGs do not fit")
    pixels = np.asarray(image)
    # Pillow turns the ink of every JPEG over, as Adobe writes it.
    return (255 - pixels if bands == 4 else pixels).tobytes()


def _by_libtiff(data: bytes, layout: Layout, plane: int) -> NDArray[np.uint8]:
    """All bytes of a plane, [rows, across * row_bytes]: to libtiff they are 8-bit samples of no further meaning."""
    wide = 4 if layout.row_bytes % 4 == 0 else 3 if layout.row_bytes % 3 == 0 else 1
    count = layout.across * layout.down
    part = slice(plane * count, (plane + 1) * count)
    across = layout.across * layout.row_bytes // wide
    height = layout.down * layout.rows if layout.tiled else layout.height
    names = (tag.TILE_OFFSETS, tag.TILE_BYTES) if layout.tiled else (tag.STRIP_OFFSETS, tag.STRIP_BYTES)
    made = {
        tag.WIDTH: across, tag.HEIGHT: height, tag.BITS: [8] * wide, tag.COMPRESSION: layout.compression,
        tag.PHOTOMETRIC: 1 if wide == 1 else 2, tag.SAMPLES: wide, names[0]: layout.offsets[part],
        names[1]: layout.counts[part], tag.PLANAR: 1,
    }  # fmt: skip
    made |= {tag.EXTRA: 2} if wide == 4 else {}
    made |= {tag.FILL_ORDER: 2} if layout.reversed_bits else {}
    if layout.tiled:
        made |= {tag.TILE_WIDTH: layout.row_bytes // wide, tag.TILE_HEIGHT: layout.rows}
    else:
        made |= {tag.ROWS: layout.rows}
    try:
        image = opened(with_tags(data, made))
    except OSError:
        if layout.compression not in _NOT_EVERYWHERE:
            raise
        name = BY_LIBTIFF[layout.compression]
        raise BrokenImage(
            f"a TIFF compressed with {name} is damaged, or not read by this Pillow: save it with LZW"
        ) from None
    return np.asarray(image).reshape(height, -1)


@cache
def _quieten() -> None:
    """libtiff writes what it finds damaged to the process's stderr, past Python: a server's log is no place for it.

    Pillow says the same in its exceptions, and has no setting for this.
    """
    with suppress(OSError, AttributeError):  # where libtiff is no library of its own, it stays as it is
        handler = ctypes.CDLL(sys.modules["PIL._imaging"].__file__).TIFFSetErrorHandler
        handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
        handler(None)


def opened(data: bytes) -> Image.Image:
    """A TIFF that `with_tags` made, by Pillow and its libtiff."""
    _quieten()
    image = TiffImagePlugin.TiffImageFile(io.BytesIO(data), "")
    image.load()
    return image
