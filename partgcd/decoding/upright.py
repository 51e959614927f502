"""From any picture of Pillow's to an upright RGB one: which way is up, what lies behind, what is above 8 bits."""

from __future__ import annotations

import re
import struct

import numpy as np
from PIL import Image

PIXEL = {
    "1": 1,
    "L": 1,
    "P": 1,
    "I;16": 2,
    "I;16B": 2,
    "I": 4,
    "F": 4,
    "RGB": 4,
    "RGBA": 4,
    "LA": 4,
    "CMYK": 4,
}
"""Bytes that Pillow takes for a pixel of each mode."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_BAND = 1 << 20
"""Pixels that are converted at a time: what is between a picture and its RGB form never grows with the picture."""

_ORIENTATION = 0x0112
_WHOLE = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I"}  # EXIF's types of one whole number


def orientation_of(exif: bytes | None, xmp: bytes | None = None) -> int:
    """The orientation 1..8 that EXIF names, else XMP, else 1; damaged metadata makes no image broken.

    Reads that one value and nothing else: an EXIF block may claim gigabytes of others.
    """
    found = _exif_orientation(exif) if exif else None
    if found is None and xmp and (match := re.search(rb'tiff:Orientation(?:="|>)([0-9])', xmp)):
        found = int(match[1])
    return found if found is not None and 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None or len(exif) < 8:
        return None
    start = struct.unpack_from(order + "I", exif, 4)[0]
    if start + 2 > len(exif):
        return None
    found = None
    for entry in range(struct.unpack_from(order + "H", exif, start)[0]):
        at = start + 2 + 12 * entry
        if at + 12 > len(exif):
            break
        tag, kind, count = struct.unpack_from(order + "HHI", exif, at)
        if tag == _ORIENTATION:
            known = count == 1 and kind in _WHOLE
            found = struct.unpack_from(order + _WHOLE[kind], exif, at + 8)[0] if known else 1
    return found


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """An image as its EXIF orientation (1..8) wants it to be seen."""
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def memory(mode: str, size: tuple[int, int], orientation: int = 1, clear: bool = False) -> int:
    """Bytes at the peak of `rgb` and `turned` of a picture (width, height); ``clear``: it has transparency."""
    pixels = size[0] * size[1]
    made = 0 if mode == "RGB" and not clear else 4 * pixels
    work = 28 * _BAND if clear or mode.startswith("I;16") else 4 * _BAND
    return max(PIXEL[mode] * pixels + made, 8 * pixels if orientation > 1 else 0) + work


def rgb(image: Image.Image) -> Image.Image:
    """A loaded picture as RGB: transparency on white, 16-bit grey rescaled (v / 257), the rest as Pillow converts."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or image.has_transparency_data:
        return _in_bands(image)
    return image.convert("RGB")


def _in_bands(image: Image.Image) -> Image.Image:
    """The same band by band, where a whole picture would need several more of its size in between."""
    flat = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        flat.paste(_grey16(band) if image.mode.startswith("I;16") else on_white(band), (0, top))
    return flat


def _grey16(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return Image.fromarray(grey).convert("RGB")


def on_white(image: Image.Image) -> Image.Image:
    """A picture with transparency, laid on white."""
    if image.mode == "La":  # premultiplied; Pillow goes back only through LA
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    if rgba.getchannel("A").getextrema() == (255, 255):
        return rgba.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
