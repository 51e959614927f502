"""Reads PNG: only the chunks that make pixels reach Pillow, so that no text, profile or time can spoil a picture."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from partgcd.decoding.begun import Begun, BrokenImage, check_size
from partgcd.decoding.upright import memory, orientation_of, rgb, turned

MAGIC = b"\x89PNG\r\n\x1a\n"

_CHUNKS = 100_000
"""Chunks of a file; common writers take 8 kB or more for each."""

_TEXT = 1 << 20
"""Bytes that compressed text may unpack to while it is searched for an orientation."""

_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


@dataclass
class _Chunks:
    """What matters of a file's chunks."""

    header: bytes = b""
    palette: bytes = b""
    clear: bytes = b""
    exif: bytes | None = None
    xmp: bytes | None = None
    data: list[tuple[int, int]] = field(default_factory=list)
    damaged: bool = False


def begin_png(data: bytes, max_megapixels: float) -> Begun:
    """Begin a PNG; of an animated one the still picture is read. Raises BrokenImage."""
    chunks = _walk(data)
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks.header)
    size = (width, height)
    check_size(size, max_megapixels)
    if depth not in _DEPTHS.get(colour, ()):
        raise BrokenImage(f"damaged: a PNG has no colour type {colour} of {depth} bits")
    if colour == 3 and (not chunks.palette or len(chunks.palette) % 3):
        raise BrokenImage("damaged: a PNG without its palette")
    if not chunks.data:
        raise BrokenImage("truncated")
    clear = _usable_clear(chunks.clear, colour, depth)
    orientation = orientation_of(chunks.exif, chunks.xmp)
    mode = {0: "I;16" if depth == 16 else "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}[colour]
    packed = sum(end - start for start, end in chunks.data)
    peak = memory(mode, size, orientation, bool(clear) or colour > 3)
    keyed16 = colour == 2 and depth == 16 and bool(clear)
    if keyed16:
        peak += 8 * width * height
    row = 4 * (width * _CHANNELS[colour] * depth // 8 + 1)

    def finish() -> Image.Image:
        idat = b"".join(data[start:end] for start, end in chunks.data)
        if chunks.damaged:
            _check_pixels_whole(idat, 2 * height * (row // 4 + 8))
        parts = [(b"IHDR", chunks.header), (b"PLTE", chunks.palette), (b"tRNS", b"" if keyed16 else clear)]
        parts += [(b"IDAT", idat), (b"IEND", b"")]
        whole = MAGIC + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))
            for kind, body in parts
            if body or kind == b"IEND"
        )
        del parts, idat
        image = _opened(whole)
        image.load()
        if keyed16:
            return turned(_keyed(image, _opened(whole), struct.unpack(">HHH", clear)), orientation)
        return turned(rgb(image), orientation)

    return Begun(size, peak + 3 * packed + row + 300 * len(chunks.data), finish)


def _opened(data: bytes) -> PngImagePlugin.PngImageFile:
    return PngImagePlugin.PngImageFile(io.BytesIO(data))


def _walk(data: bytes) -> _Chunks:
    found = _Chunks()
    at, seen = len(MAGIC), 0
    while at + 8 <= len(data):
        seen += 1
        if seen > _CHUNKS:
            raise BrokenImage(f"a PNG of more than {_CHUNKS:,} pieces: save it anew")
        length, kind = struct.unpack_from(">I4s", data, at)
        start, end = at + 8, min(at + 8 + length, len(data))
        at += 12 + length
        if seen == 1 and (kind != b"IHDR" or length != 13 or end - start < 13):
            raise BrokenImage("damaged: no PNG header")
        if kind == b"IEND":
            break
        if kind == b"IDAT":
            found.data.append((start, end))
            found.damaged |= not _right(data, start, end)
        elif kind in (b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            _keep(found, kind, data, start, end)
    if not found.header:
        raise BrokenImage("damaged: no PNG header")
    return found


def _right(data: bytes, start: int, end: int) -> bool:
    """Whether a chunk's checksum is right; of one that the file's end cuts, there is none to be wrong."""
    if end + 4 > len(data):
        return True
    return zlib.crc32(memoryview(data)[start - 4 : end]) == int.from_bytes(data[end : end + 4], "big")


def _keep(found: _Chunks, kind: bytes, data: bytes, start: int, end: int) -> None:
    """Take over a chunk; the first of its kind counts, and of those that a picture can do without only whole ones."""
    if kind in (b"IHDR", b"PLTE"):
        if (kind == b"IHDR" and found.header) or (kind == b"PLTE" and (found.palette or found.data)):
            return
        if not _right(data, start, end):
            raise BrokenImage("damaged: a wrong checksum in the PNG's header or palette")
        if kind == b"IHDR":
            found.header = data[start:end]
        else:
            found.palette = data[start : min(end, start + 768)]
    elif kind == b"tRNS":
        if not (found.clear or found.data) and _right(data, start, end):
            found.clear = data[start : min(end, start + 256)]
    elif kind == b"eXIf":
        found.exif = found.exif or data[start:end]
    elif kind == b"iTXt" and found.xmp is None and data.startswith(b"XML:com.adobe.xmp\0", start, end):
        found.xmp = _itxt(data[start:end])
    elif found.exif is None and data.startswith(b"Raw profile type exif\0", start, end):
        found.exif = _raw_profile(kind, data[start + 22 : end])


def _itxt(body: bytes) -> bytes:
    packed = body[18:19] == b"\1"
    text = body[20:].split(b"\0", 2)[-1]
    return _unpacked(text) if packed else text


def _raw_profile(kind: bytes, body: bytes) -> bytes | None:
    """EXIF as ImageMagick writes it: three lines, then hexadecimal."""
    text = _unpacked(body[1:]) if kind == b"zTXt" else body
    try:
        return bytes.fromhex(b"".join(text[: 2 * _TEXT].split(b"\n")[3:]).decode("ascii")) or None
    except ValueError:
        return None


def _unpacked(text: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(text, _TEXT)
    except zlib.error:
        return b""


def _usable_clear(clear: bytes, colour: int, depth: int) -> bytes:
    """tRNS as Pillow wants it: a grey of 1 to 8 bits as it is after unpacking; b"" for one that fits no picture."""
    if colour == 3:
        return clear
    if colour == 0 and len(clear) == 2:
        value = int.from_bytes(clear, "big") & ((1 << depth) - 1)
        return (value * 255 // ((1 << depth) - 1) if depth in (2, 4) else value).to_bytes(2, "big")
    return clear if colour == 2 and len(clear) == 6 else b""


def _check_pixels_whole(idat: bytes, most: int) -> None:
    """Where a chunk's checksum is wrong, that of all the pixels (at most ``most`` bytes) tells whether they changed."""
    stream, rest = zlib.decompressobj(), idat
    try:
        while not stream.eof and rest and most > 0:
            most -= len(stream.decompress(rest, _TEXT))
            rest = stream.unconsumed_tail
    except zlib.error:
        pass
    if not stream.eof:
        raise BrokenImage("damaged: a wrong checksum in the PNG's pixels")


def _keyed(high: Image.Image, again: PngImagePlugin.PngImageFile, clear: tuple[int, int, int]) -> Image.Image:
    """RGB of 16 bits with one colour that is clear: Pillow keeps only high bytes, so the low ones are read too."""
    again.tile = [each._replace(args="RGB;16L") for each in again.tile]
    again.load()
    colour = np.array(clear, np.uint16)
    pixels: NDArray[np.uint8] = np.array(high)
    is_clear = (pixels == (colour >> 8).astype(np.uint8)).all(-1)
    is_clear &= (np.asarray(again) == (colour & 255).astype(np.uint8)).all(-1)
    pixels[is_clear] = 255
    return Image.fromarray(pixels)
