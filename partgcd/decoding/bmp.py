"""Reads Windows bitmaps: all headers, any colour masks, runs, and an alpha of nothing as Windows shows it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.decoding.begun import Begun, BrokenImage, check_size
from partgcd.decoding.bits import unpacked
from partgcd.decoding.upright import memory, on_white

MAGIC = b"BM"

_HEADERS = (12, 40, 52, 56, 64, 108, 124)
_PLAIN, _RUNS_OF_8, _RUNS_OF_4, _MASKS, _ALPHA_MASKS = 0, 1, 2, 3, 6

_RUNS = 500_000
"""Runs of a picture; they are read one by one."""

_HALVES = [bytes((byte >> 4, byte & 15)) for byte in range(256)]

_BAND = 1 << 20
"""Pixels that are converted at a time."""

_FIXED = {16: (0x7C00, 0x3E0, 0x1F, 0), 24: (0xFF0000, 0xFF00, 0xFF, 0), 32: (0xFF0000, 0xFF00, 0xFF, 0)}


@dataclass(frozen=True)
class _Header:
    size: tuple[int, int]
    bits: int
    compression: int
    upside_down: bool
    palette: NDArray[np.uint8]
    masks: tuple[int, int, int, int]
    offset: int


def begin_bmp(data: bytes, max_megapixels: float) -> Begun:
    """Begin a BMP. Raises BrokenImage, also for the kinds that are not read."""
    header = _read_header(data, max_megapixels)
    width, height = header.size
    runs = header.compression in (_RUNS_OF_8, _RUNS_OF_4)
    peak = memory("RGB", header.size) + 2 * width * height * runs + 40 * _BAND

    def finish() -> Image.Image:
        if runs:
            return _coloured(header, _run_rows(data, header))
        stride = (width * header.bits + 31) // 32 * 4
        # The padding of the last row may be left out.
        if len(data) - header.offset < stride * (height - 1) + (width * header.bits + 7) // 8:
            raise BrokenImage("truncated")
        pixels = np.frombuffer(data, np.uint8, min(stride * height, len(data) - header.offset), header.offset)
        whole = stride * height
        if len(pixels) < whole:
            pixels = np.concatenate([pixels, np.zeros(whole - len(pixels), np.uint8)])
        return _coloured(header, pixels.reshape(height, stride))

    return Begun(header.size, peak, finish)


def _read_header(data: bytes, max_megapixels: float) -> _Header:
    if len(data) < 26:
        raise BrokenImage("truncated")
    offset, length = struct.unpack_from("<II", data, 10)
    if length not in _HEADERS:
        raise BrokenImage(f"a BMP with a header of {length} bytes is not read: save it as PNG")
    if len(data) < 14 + length:
        raise BrokenImage("truncated")
    compression = colours = 0
    if length == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        colours = struct.unpack_from("<I", data, 46)[0]
    upside_down, height = height > 0, abs(height)
    if width <= 0:
        raise BrokenImage("damaged: a BMP without a width")
    check_size((width, height), max_megapixels)
    known = {1: (_PLAIN,), 2: (_PLAIN,), 4: (_PLAIN, _RUNS_OF_4), 8: (_PLAIN, _RUNS_OF_8)}
    known |= {16: (_PLAIN, _MASKS, _ALPHA_MASKS), 24: (_PLAIN, _MASKS), 32: (_PLAIN, _MASKS, _ALPHA_MASKS)}
    if compression not in known.get(bits, ()) or (length == 64 and compression > 2):
        raise BrokenImage(f"a BMP of {bits} bits, kind {compression}, is not read: save it as PNG")
    at = 14 + length
    masks = _FIXED.get(bits, (0, 0, 0, 0))
    if compression in (_MASKS, _ALPHA_MASKS):
        count = 4 if length >= 56 or compression == _ALPHA_MASKS else 3
        if len(data) < 54 + 4 * count:
            raise BrokenImage("truncated")
        masks = (*struct.unpack_from(f"<{count}I", data, 54), *[0] * (4 - count))  # type: ignore[assignment]
        if length == 40:
            at += 4 * count
        if not any(masks):
            masks = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    elif offset > len(data):
        raise BrokenImage("truncated")
    palette = np.zeros((0, 3), np.uint8)
    if bits <= 8:
        entry = 3 if length == 12 else 4
        count = min(colours or 1 << bits, 1 << bits)
        # An offset that leaves no room for the palette is wrong.
        offset = offset if offset != 14 + length else at + entry * (colours or 1 << bits)
        stored = data[at : at + entry * count]
        palette = np.zeros((1 << bits, 3), np.uint8)
        usable = np.frombuffer(stored, np.uint8, len(stored) // entry * entry).reshape(-1, entry)
        palette[: len(usable)] = usable[:, 2::-1]
    return _Header((width, height), bits, compression, upside_down, palette, masks, offset or at)


def _coloured(header: _Header, rows: NDArray[np.uint8]) -> Image.Image:
    """The picture from its rows [H,stride] of bytes, or of palette indices where it came as runs."""
    width, height = header.size
    if header.upside_down:
        rows = rows[::-1]
    flat = Image.new("RGB", header.size)
    step = max(1, _BAND // width)
    clear = header.masks[3] != 0 and _any_alpha(header, rows, step)
    for top in range(0, height, step):
        band = rows[top : top + step]
        if header.bits > 8:
            flat.paste(_masked(header, band, clear), (0, top))
            continue
        packed = header.compression == _PLAIN and header.bits < 8
        indices = unpacked(np.ascontiguousarray(band), header.bits, width) if packed else band[:, :width]
        flat.paste(Image.fromarray(header.palette[indices]), (0, top))
    return flat


def _words(header: _Header, band: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """[R,W] the pixels of 16, 24 or 32 bits as numbers."""
    width, depth = header.size[0], header.bits // 8
    parts = band[:, : width * depth].reshape(len(band), width, depth).astype(np.uint32)
    words = parts[:, :, 0]
    for place in range(1, depth):
        words = words | parts[:, :, place] << np.uint32(8 * place)
    return words


def _any_alpha(header: _Header, rows: NDArray[np.uint8], step: int) -> bool:
    """Whether any pixel is to be seen at all: programs that know no alpha leave it 0, and Windows ignores it then."""
    mask = np.uint32(header.masks[3])
    return any(
        bool((_words(header, rows[top : top + step]) & mask).any()) for top in range(0, len(rows), step)
    )


def _masked(header: _Header, band: NDArray[np.uint8], clear: bool) -> Image.Image:
    ordinary = header.masks[:3] == _FIXED[24][:3]
    if header.bits >= 24 and ordinary and not clear:
        depth = header.bits // 8
        pixels = band[:, : header.size[0] * depth].reshape(len(band), -1, depth)
        return Image.fromarray(np.ascontiguousarray(pixels[:, :, 2::-1]))
    words = _words(header, band)
    channels = [_channel(words, mask) for mask in header.masks[: 4 if clear else 3]]
    image = Image.fromarray(np.stack(channels, -1))
    return on_white(image) if clear else image


def _channel(words: NDArray[np.uint32], mask: int) -> NDArray[np.uint8]:
    """The part of each number that ``mask`` marks, as its share of 255 (cut, as Windows and Pillow do)."""
    if not mask:
        return np.zeros(words.shape, np.uint8)
    shift = (mask & -mask).bit_length() - 1
    most = mask >> shift
    values = (words & np.uint32(mask)) >> np.uint32(shift)
    return (values.astype(np.uint64) * 255 // most).astype(np.uint8)


def _run_rows(data: bytes, header: _Header) -> NDArray[np.uint8]:
    """[H,W] palette indices, in the order of the file."""
    width, height = header.size
    four = header.compression == _RUNS_OF_4
    made = bytearray(width * height)
    at, end = header.offset, len(data)
    x = y = seen = 0
    while y < height:
        if at + 2 > end:
            raise BrokenImage("truncated")
        count, value = data[at], data[at + 1]
        at, seen = at + 2, seen + 1
        if seen > _RUNS:
            raise BrokenImage(f"a BMP of more than {_RUNS:,} runs: save it as PNG")
        if count:
            shown = min(count, width - x)
            if four:
                run = bytes((value >> 4, value & 15)) * (shown + 1 >> 1)
                made[y * width + x : y * width + x + shown] = run[:shown]
            else:
                made[y * width + x : y * width + x + shown] = bytes((value,)) * shown
            x += shown
        elif value == 0:
            x, y = 0, y + 1
        elif value == 1:
            break
        elif value == 2:
            if at + 2 > end:
                raise BrokenImage("truncated")
            x, y, at = min(x + data[at], width), y + data[at + 1], at + 2
        else:
            seen += 1  # takes twice the time
            stored = data[at : at + (value + 1 >> 1 if four else value)]
            if len(stored) < (value + 1 >> 1 if four else value):
                raise BrokenImage("truncated")
            at += len(stored) + (len(stored) & 1)
            shown = min(value, width - x)
            if four:
                stored = b"".join([_HALVES[byte] for byte in stored])
            made[y * width + x : y * width + x + shown] = stored[:shown]
            x += shown
    return np.frombuffer(made, np.uint8).reshape(height, width)
