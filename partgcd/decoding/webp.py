"""Reads WebP: the chunks of the first picture reach Pillow, not metadata, and not the frames after it."""

from __future__ import annotations

import io
import struct

from PIL import Image, WebPImagePlugin

from partgcd.decoding.begun import Begun, BrokenImage, check_size
from partgcd.decoding.upright import memory, orientation_of, rgb, turned

_CHUNKS = 10_000
_ALPHA = 0x10
_PICTURE = (b"VP8 ", b"VP8L", b"ANMF")


def is_webp(data: bytes) -> bool:
    """Whether a file says that it is WebP."""
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def begin_webp(data: bytes, max_megapixels: float) -> Begun:
    """Begin a WebP; of an animation the first frame is read. Raises BrokenImage."""
    kept: list[tuple[bytes, int, int]] = []
    exif = xmp = None
    flags, extended, at = 0, False, 12
    size: tuple[int, int] | None = None
    for _ in range(_CHUNKS):
        if at + 8 > len(data):
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        start, end = at + 8, min(at + 8 + length, len(data))
        at += 8 + length + (length & 1)
        if kind == b"VP8X" and not kept and end - start >= 10:
            extended, flags = True, data[start]
            size = _size(kind, data[start : start + 10])
        elif kind == b"EXIF":
            exif = exif or data[start:end]
        elif kind == b"XMP ":
            xmp = xmp or data[start:end]
        elif kind in (b"VP8 ", b"VP8L", b"ANMF") and not any(
            each[0] != b"ANIM" and each[0] != b"ALPH" for each in kept
        ):
            kept.append((kind, start, end))
            size = size or _size(kind, data[start : start + 10])
        elif kind in (b"ALPH", b"ANIM") and kind not in [each[0] for each in kept]:
            kept.append((kind, start, end))
    else:
        raise BrokenImage(f"a WebP of more than {_CHUNKS:,} pieces: save it anew")
    if size is None:
        raise BrokenImage("truncated")
    check_size(size, max_megapixels)
    orientation = orientation_of(exif, xmp) if extended else 1
    clear = bool(flags & _ALPHA) or not extended

    def finish() -> Image.Image:
        body = b""
        if extended:
            width, height = size
            body = b"VP8X" + struct.pack("<IB3x", 10, flags & (_ALPHA | 0x02))
            body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        for kind, start, end in kept:
            body += kind + struct.pack("<I", end - start) + data[start:end] + bytes((end - start) & 1)
        image = WebPImagePlugin.WebPImageFile(
            io.BytesIO(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body)
        )
        if image.size != size:
            raise BrokenImage("damaged: a WebP of two sizes")
        image.load()
        return turned(rgb(image), orientation)

    # libwebp keeps two canvases and a frame; Pillow copies the canvas, then makes its picture of it.
    canvas = 4 * size[0] * size[1]
    packed = sum(end - start for _, start, end in kept)
    peak = max(5 * canvas, 3 * canvas + memory("RGBA", size, orientation, clear))
    return Begun(size, peak + 4 * packed, finish)


def _size(kind: bytes, head: bytes) -> tuple[int, int] | None:
    """(width, height) from the first ten bytes of a chunk (RFC 9649)."""
    if len(head) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    return None
