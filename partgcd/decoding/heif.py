"""Reads AVIF, and HEIC where pillow-heif is installed; tells other files of that container (videos, RAW) by name."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable

from PIL import Image, features

from partgcd.decoding.begun import Begun, BrokenImage, check_size
from partgcd.decoding.upright import memory, orientation_of, rgb, turned

_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
_AVIF = {b"avif", b"avis"}
_STILL = {b"mif1", b"mif2", b"msf1", b"miaf"}

_EXIF_ITEM = re.compile(rb"(infe(?:\x02.{3}.{4}|\x03.{3}.{6}))Exif", re.DOTALL)


def is_container(data: bytes) -> bool:
    """Whether a file is of the family of MP4, which HEIC, AVIF, Canon's RAW and most videos belong to."""
    return data[4:8] == b"ftyp"


def is_avif(data: bytes) -> bool:
    """Whether a file of that family says that it is AVIF."""
    return bool(_brands(data) & _AVIF)


def _brands(data: bytes) -> set[bytes]:
    names = data[8 : min(struct.unpack_from(">I", data)[0], 4096)]
    return {names[at : at + 4] for at in range(0, len(names) - 3, 4) if at != 4}


def begin_heif(data: bytes, max_megapixels: float) -> Begun:
    """Begin an AVIF or HEIC; of a sequence the primary picture is read.

    The container's own rotation counts, EXIF's does not, as its standard says. Raises BrokenImage.
    """
    brands = _brands(data)
    if brands & _AVIF:
        factory = _avif()
    elif brands & _HEIC or (brands & _STILL and b"hvc1" in data[:65536]):
        factory = _heic()
    elif data[8:12] == b"crx ":
        raise BrokenImage("not an image that is read but a RAW photo (Canon): develop it to JPEG")
    elif brands & _STILL:
        raise BrokenImage(
            "not an image that is read but HEIF of another kind than HEIC and AVIF: save it as JPEG"
        )
    else:
        raise BrokenImage("not an image that is read but a video (MP4, QuickTime): extract its frames")
    # Damaged EXIF must not spoil the picture, and is not needed: its item becomes one of an unknown kind.
    image = factory(io.BytesIO(_EXIF_ITEM.sub(rb"\1none", data)))
    check_size(image.size, max_megapixels)
    # Up to four planes of one or two bytes, twice in the decoder, then RGB with alpha, twice in Pillow.
    peak = (24 if _is_deep(data) else 16) * image.size[0] * image.size[1]

    def finish() -> Image.Image:
        image.load()
        check_size(image.size, max_megapixels)
        return turned(rgb(image), orientation_of(image.info.get("exif")))

    return Begun(image.size, max(peak, memory("RGBA", image.size, 6, True)) + 2 * len(data), finish)


def _is_deep(data: bytes) -> bool:
    """Whether an AVIF has more than 8 bits."""
    at = data.find(b"av1C", 0, 1 << 16)
    return at >= 0 and bool(data[at + 6 : at + 7] and data[at + 6] & 0x40)


def _avif() -> Callable[[io.BytesIO], Image.Image]:
    if not features.check("avif"):
        raise BrokenImage("AVIF is not read by this Pillow: pip install --upgrade pillow, or convert to JPEG")
    from PIL.AvifImagePlugin import AvifImageFile

    return AvifImageFile


def _heic() -> Callable[[io.BytesIO], Image.Image]:
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise BrokenImage("HEIC is not read here: pip install 'partgcd[heif]', or convert to JPEG") from None
    return HeifImageFile  # type: ignore[no-any-return]
