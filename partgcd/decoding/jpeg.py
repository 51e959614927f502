"""Reads JPEG: only what makes pixels reaches Pillow, its work is counted first, and half a picture is none."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, JpegImagePlugin

from partgcd.decoding.begun import Begun, BrokenImage, check_pixels, check_size
from partgcd.decoding.upright import memory, orientation_of, rgb, turned

MAGIC = b"\xff\xd8\xff"

_SEGMENTS = 20_000
"""Segments before the pixels, and scans and tables between them; large profiles come in pieces of 64 kB."""

_TABLES = 1_000
"""Segments of tables before the pixels."""

_SCANS = 200
"""Scans of a picture; a progressive one has about ten."""

_VISITS = 40_000_000
"""Blocks that all scans together may touch, about 10 ns each ..."""

_VISITS_EACH = 25
"""... or this often each block: progressive pictures of any size come with half of it."""

_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PADDING = bytes(range(1, 240, 5)) * 4

_KINDS = {
    0xC3: "lossless", 0xC5: "hierarchical", 0xC6: "hierarchical", 0xC7: "hierarchical", 0xCB: "lossless",
    0xCD: "hierarchical", 0xCE: "hierarchical", 0xCF: "hierarchical", 0xF7: "JPEG-LS",
}  # fmt: skip


@dataclass
class _Frame:
    """What a JPEG's header says, where its pixels begin and end, and the work that they are."""

    kept: list[tuple[int, int]] = field(default_factory=list)
    exif: list[bytes] = field(default_factory=list)
    xmp: bytes | None = None
    size: tuple[int, int] = (0, 0)
    blocks: dict[int, int] = field(default_factory=dict)
    progressive: bool = False
    start: int = 0
    end: int = 0
    ended: bool = False
    scans: int = 0
    visits: int = 0
    missing: dict[int, set[int]] = field(default_factory=dict)


def begin_jpeg(data: bytes, max_megapixels: float) -> Begun:
    """Begin a JPEG; of one with several pictures (MPO) the first is read. Raises BrokenImage."""
    frame = _read(data, max_megapixels)
    check_size(frame.size, max_megapixels)
    orientation = orientation_of(b"".join(frame.exif), frame.xmp)
    total = sum(frame.blocks.values())
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[len(frame.blocks)]
    # Where there are several scans the coefficients of the whole picture are kept, 64 of 2 bytes a block.
    coefficients = 128 * total if frame.progressive or frame.scans > 1 else 0
    pixels = frame.size[0] * frame.size[1]
    peak = max(memory(mode, frame.size, orientation), coefficients + (4 if mode != "L" else 1) * pixels)

    def finish() -> Image.Image:
        if any(len(each) == 64 for each in frame.missing.values()):
            raise BrokenImage("truncated")  # a channel without a scan
        image = _decoded(data, frame, b"")
        if not frame.ended or _grey_corner(image):
            before = _digest(image)
            del image
            image = _decoded(data, frame, _PADDING)
            if _digest(image) != before or (not frame.ended and any(frame.missing.values())):
                raise BrokenImage("truncated")
        return turned(rgb(image), orientation)

    return Begun(
        frame.size, peak + 2 * (frame.end - frame.start) + 64 * frame.size[0] * len(frame.blocks), finish
    )


def check_work(data: bytes, size: tuple[int, int]) -> bytes:
    """The JPEG within another file, once its work was counted and it is no larger than (width, height)."""
    frame = _read(data, (size[0] * size[1] + 1) / 1e6)
    if frame.size[0] > size[0] or frame.size[1] > size[1]:
        raise BrokenImage("damaged: a JPEG larger than its place")
    return data if frame.ended else data + b"\xff\xd9"


def _read(data: bytes, max_megapixels: float) -> _Frame:
    """Header and scans, nothing decoded. Raises BrokenImage where they are too large or too much work."""
    frame = _Frame()
    _read_header(data, frame)
    check_pixels(frame.size, max_megapixels)
    _read_scans(data, frame)
    blocks = sum(frame.blocks.values())
    if frame.scans > _SCANS or frame.visits > max(_VISITS, _VISITS_EACH * blocks):
        raise BrokenImage(f"a JPEG of {frame.scans:,} scans, too much work: save it anew")
    return frame


def _segments(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of each segment from ``at`` on, up to the first that has no length or no end."""
    for _ in range(_SEGMENTS):
        found = _MARKER.search(data, at)  # pixels, and what is no marker, are skipped
        if found is None:
            return
        start, marker = found.end(), data[found.end() - 1]
        if marker in (0x01, 0xD8):
            at = start
            continue
        if marker == 0xD9 or start + 2 > len(data):
            yield marker, start, start
            return
        length = int.from_bytes(data[start : start + 2], "big")
        if length < 2:
            raise BrokenImage("damaged: a JPEG segment without its length")
        yield marker, start, start + length
        at = start + length
    raise BrokenImage(f"a JPEG of more than {_SEGMENTS:,} segments: save it anew")


def _read_header(data: bytes, frame: _Frame) -> None:
    """All up to the first scan. Raises BrokenImage, also for the kinds of JPEG that are not read."""
    for marker, start, end in _segments(data, 2):
        if marker == 0xDA:
            frame.start = start - 2
            break
        if end > len(data) or marker == 0xD9:
            raise BrokenImage("truncated")
        body = start + 2
        if marker in _KINDS:
            raise BrokenImage(f"a {_KINDS[marker]} JPEG is not read: save it as an ordinary one")
        if marker in (0xC0, 0xC1, 0xC2, 0xC9, 0xCA) and not frame.blocks:
            _read_frame(data[body:end], frame)
            frame.progressive = marker in (0xC2, 0xCA)
        elif marker == 0xE1:
            if data.startswith(b"Exif\0\0", body):
                frame.exif.append(data[body + 6 * bool(frame.exif) : end])
            elif frame.xmp is None and data.startswith(b"http://ns.adobe.com/xap/1.0/\0", body):
                frame.xmp = data[body:end]
        # JFIF and Adobe say how colours are coded, the other APP segments and comments say nothing of pixels.
        if (
            not 0xE0 <= marker <= 0xEF
            or (marker == 0xE0 and data.startswith(b"JFIF", body))
            or (marker == 0xEE and data.startswith(b"Adobe", body))
        ) and marker != 0xFE:
            frame.kept.append((start, end))
            if len(frame.kept) > _TABLES:
                raise BrokenImage(f"a JPEG of more than {_TABLES:,} tables: save it anew")
    if not frame.start:
        raise BrokenImage("truncated")
    if not frame.blocks:
        raise BrokenImage("damaged: a JPEG without its header")


def _read_frame(body: bytes, frame: _Frame) -> None:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise BrokenImage("damaged: a JPEG without its header")
    bits, height, width, count = struct.unpack_from(">BHHB", body)
    if bits != 8:
        raise BrokenImage(f"a JPEG of {bits} bits is not read: save it with 8 bits, or as PNG")
    if count not in (1, 3, 4):
        raise BrokenImage(f"a JPEG of {count} channels is not read: save it as RGB")
    if height == 0:
        raise BrokenImage("a JPEG that names its height only at the end is not read: save it anew")
    frame.size = (width, height)
    parts = [(body[at], body[at + 1] >> 4, body[at + 1] & 15) for at in range(6, 6 + 3 * count, 3)]
    if len({part[0] for part in parts}) < count or not all(1 <= h <= 4 and 1 <= v <= 4 for _, h, v in parts):
        raise BrokenImage("damaged: a JPEG's channels make no sense")
    most_h, most_v = max(part[1] for part in parts), max(part[2] for part in parts)
    for name, across, down in parts:
        blocks = -(-width // (8 * most_h)) * across * -(-height // (8 * most_v)) * down
        frame.blocks[name] = blocks
        frame.missing[name] = set(range(64))


def _read_scans(data: bytes, frame: _Frame) -> None:
    """Where the pixels end, and the work that they are; damage ends the reading, and Pillow judges it."""
    at = frame.start
    frame.end = len(data)
    for marker, start, end in _segments(data, at):
        if marker == 0xD9:
            frame.end, frame.ended = start, True
            return
        if marker != 0xDA or end > len(data):
            continue
        frame.scans += 1
        names = data[start + 3 : start + 3 + 2 * data[start + 2] : 2]
        frame.visits += sum(frame.blocks.get(name, 0) for name in names)
        first, last, bits = data[end - 3 : end] if end - start >= 6 else (0, 63, 0)
        if not frame.progressive or bits & 15 == 0:
            for name in names:
                frame.missing.get(name, set()).difference_update(
                    range(first, last + 1) if frame.progressive else range(64)
                )


def _decoded(data: bytes, frame: _Frame, padding: bytes) -> Image.Image:
    """The picture, with ``padding`` between its pixels and its end mark.

    Where pixels are missing the decoder makes them from whatever comes next, or grey: a picture that changes with
    the padding is not whole.
    """
    view = memoryview(data)
    parts: list[bytes | memoryview] = [b"\xff\xd8"]
    parts += [b"\xff" + data[start - 1 : end] for start, end in frame.kept]
    stop = frame.end - 2 if frame.ended else _last_byte(data, frame)
    if data[stop - 1] == 0xFF and padding:
        padding = b"\0" + padding  # or what follows would be a marker
    parts += [view[frame.start : stop], padding, b"\xff\xd9"]
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(b"".join(parts)))
    image.load()
    return image


def _last_byte(data: bytes, frame: _Frame) -> int:
    """Where the pixels of a file without an end mark stop: recovered files are filled up with zeros."""
    stop = frame.start + len(data[frame.start : frame.end].rstrip(b"\0"))
    return min(stop + (data[stop - 1] == 0xFF), frame.end)


def _grey_corner(image: Image.Image) -> bool:
    """Whether the last block is the mid grey that the decoder puts where pixels are missing.

    Only its lightness is looked at: its colour may be that of blocks beside it.
    """
    width, height = image.size
    corner = image.crop(((width - 1) // 8 * 8, (height - 1) // 8 * 8, width, height))
    light = corner.getchannel("K") if image.mode == "CMYK" else corner.convert("L")
    return bool((np.abs(np.asarray(light).astype(int) - 128) <= 2).all())


def _digest(image: Image.Image) -> bytes:
    """What tells a picture from another, without a second copy of its pixels."""
    digest = hashlib.sha256()
    for top in range(0, image.height, 256):
        digest.update(image.crop((0, top, image.width, min(top + 256, image.height))).tobytes())
    return digest.digest()
