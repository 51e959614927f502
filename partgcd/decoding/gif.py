"""Reads GIF: the first picture and its colours reach Pillow, not the comments, and not the thousand frames after it."""

from __future__ import annotations

import io

from PIL import GifImagePlugin, Image

from partgcd.decoding.begun import Begun, BrokenImage, check_pixels, check_size
from partgcd.decoding.upright import memory, rgb

MAGIC = (b"GIF87a", b"GIF89a")

_BLOCKS = 500_000
"""Blocks of at most 255 bytes up to the end of the first picture."""


def begin_gif(data: bytes, max_megapixels: float) -> Begun:
    """Begin a GIF; of an animation the first frame is read. Raises BrokenImage."""
    if len(data) < 13:
        raise BrokenImage("truncated")
    screen = (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))
    check_pixels(screen, max_megapixels)
    at = 13 + _table(data[10])
    head, control, left = data[:at], b"", _BLOCKS
    while data[at : at + 1] != b",":
        if data[at : at + 1] == b"!":
            start, at = at, at + 2
            at, left = _skip(data, at, left)
            if data[start + 1 : start + 3] == b"\xf9\x04":
                control = data[start:at]
        elif at >= len(data) or data[at : at + 1] == b";":
            raise BrokenImage("truncated")
        else:
            at += 1
    descriptor = data[at : at + 10]
    if len(descriptor) < 10:
        raise BrokenImage("truncated")
    x, y, width, height = (int.from_bytes(descriptor[i : i + 2], "little") for i in (1, 3, 5, 7))
    # Frames may outgrow their screen; it grows with them.
    size = (max(screen[0], x + width), max(screen[1], y + height))
    check_size(size, max_megapixels)
    start, at = at, at + 10 + _table(descriptor[9]) + 1
    at, _ = _skip(data, at, left, open_end=True)
    clear = len(control) > 3 and bool(control[3] & 1)

    def finish() -> Image.Image:
        image = GifImagePlugin.GifImageFile(io.BytesIO(head + control + data[start:at] + b";"))
        image.load()
        return rgb(image)

    return Begun(size, memory("P", size, clear=clear) + 2 * (at - start), finish)


def _table(flags: int) -> int:
    """Bytes of the colour table that follows."""
    return 3 << ((flags & 7) + 1) if flags & 128 else 0


def _skip(data: bytes, at: int, left: int, open_end: bool = False) -> tuple[int, int]:
    """Where the chain of blocks that begins at ``at`` ends, and how many blocks may still come.

    open_end: the file may end within them; whether the pixels are whole is seen when they are decoded.
    """
    while at < len(data) and data[at]:
        at += data[at] + 1
        left -= 1
        if left < 0:
            raise BrokenImage(f"a GIF of more than {_BLOCKS:,} blocks: save it anew")
    if at >= len(data) and not open_end:
        raise BrokenImage("truncated")
    return min(at + 1, len(data)), left
