"""The one decoder: everything that ever reads an image (training, export, serving) reads it through here.

What it settles: EXIF orientation is applied; transparency is laid on white; 16-bit grey is rescaled from its
full range (v / 257); 32-bit integer grey is clipped to 0..65535 and then rescaled the same way;
floating-point grey is stretched from its smallest to its largest finite value; CMYK, YCbCr, Lab, palette and
1-bit images become RGB as Pillow converts them; colour profiles are ignored; of an animation the first frame
is read. A file that ends early is broken, never half grey.
"""

from __future__ import annotations

import io
import stat
import threading
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import (  # noqa: F401  (importing a plugin registers its format; nothing else is ever opened)
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

MIN_SIDE = 8
"""Images with a side below this many pixels are broken: there is nothing to see in them."""

MAX_BYTES = 200_000_000
"""Larger files are not read at all."""

# MPO needs no entry: it is a JPEG that says it has more frames, and Pillow's JPEG reader finds that out.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM") + (("AVIF",) if features.check("avif") else ())
"""Pillow's names of the formats that are opened."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".pfm"}
    | ({".avif"} if "AVIF" in FORMATS else set())
)
"""Lower-case suffixes by which a folder scan recognises an image."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Above this many pixels images are decoded one at a time, or a folder of panoramas takes threads x 1 GB.
_LARGE = 40_000_000
_one_large = threading.Lock()


class BrokenImage(Exception):
    """An image that cannot be used, with a short reason for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_image(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of an image file; only regular files (links are followed), at most ``max_bytes``.

    Raises BrokenImage for anything else: a missing file, a pipe, a device, a folder, no permission.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BrokenImage("not a regular file")
        if found.st_size == 0:
            raise BrokenImage("empty file")
        if found.st_size > max_bytes:
            raise BrokenImage(
                f"file too large: {found.st_size / 1e6:.0f} MB (limit {max_bytes / 1e6:.0f} MB)"
            )
        with path.open("rb") as file:
            # A file that grows while it is read must not fill the memory.
            return file.read(max_bytes)
    except FileNotFoundError:
        raise BrokenImage("file not found") from None
    except OSError as error:
        raise BrokenImage(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise BrokenImage(f"cannot be read: {error}") from error


def decode(source: Path | bytes, max_megapixels: float = 100.0) -> Image.Image:
    """An image file, or its bytes, as an upright RGB image of at least MIN_SIDE pixels a side.

    ``max_megapixels`` (1e6 pixels) is compared with the header before anything is decoded. Files are limited
    to MAX_BYTES. Only FORMATS are opened, whatever the name's suffix. Raises BrokenImage and nothing else.
    """
    data = read_image(source) if isinstance(source, Path) else source
    try:
        return _decode(data, max_megapixels)
    except BrokenImage:
        raise
    except MemoryError as error:
        raise BrokenImage("does not fit in memory") from error
    except Exception as error:  # Pillow's readers raise nearly anything on damaged data
        raise BrokenImage(_reason(error)) from error


def _decode(data: bytes, max_megapixels: float) -> Image.Image:
    if not data:
        raise BrokenImage("empty file")
    image = _open(data, max_megapixels)
    _check_size(image.size, max_megapixels)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        # A tile may be declared far larger than the image it is cut from, and is decoded whole.
        tags = image.tag_v2
        _check_pixels((int(tags.get(322) or 1), int(tags.get(323) or 1)), max_megapixels)
    if image.width * image.height <= _LARGE:
        return _upright(image)
    with _one_large, warnings.catch_warnings():
        # Our own limit has been checked; Pillow's softer one would only print.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return _upright(image)


def _open(data: bytes, max_megapixels: float) -> ImageFile.ImageFile:
    """Parse the header. Not by Image.open, which holds a process-wide pixel limit; ours is an argument."""
    prefix = data[:16]
    for name in FORMATS:
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(prefix) is not True:
            continue
        # Pillow's readers of these two allocate a canvas as they open.
        if (name == "WEBP" and (size := _webp_size(data[:30]))) or (
            name == "GIF" and (size := _gif_size(data[:10]))
        ):
            _check_pixels(size, max_megapixels)
        return factory(io.BytesIO(data), "")
    raise BrokenImage("not an image, or in a format that is not read")


def _gif_size(header: bytes) -> tuple[int, int]:
    """(width, height) of a GIF's screen, which its frames may still outgrow."""
    return int.from_bytes(header[6:8], "little"), int.from_bytes(header[8:10], "little")


def _webp_size(header: bytes) -> tuple[int, int] | None:
    """(width, height) from the first 30 bytes of a WebP file (RFC 9649), None where they do not tell."""
    chunk = header[12:16]
    if len(header) < 30:
        return None
    if chunk == b"VP8X":
        return int.from_bytes(header[24:27], "little") + 1, int.from_bytes(header[27:30], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(header[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        return int.from_bytes(header[26:28], "little") & 0x3FFF, int.from_bytes(
            header[28:30], "little"
        ) & 0x3FFF
    return None


def _check_size(size: tuple[int, int], max_megapixels: float) -> None:
    _check_pixels(size, max_megapixels)
    if min(size) < MIN_SIDE:
        raise BrokenImage(f"too small: {size[0]} x {size[1]} px (at least {MIN_SIDE} a side)")


def _check_pixels(size: tuple[int, int], max_megapixels: float) -> None:
    pixels = size[0] * size[1]
    if pixels > max_megapixels * 1e6:
        shown = f"{size[0]} x {size[1]}, {pixels / 1e6:,.1f} megapixels"
        raise BrokenImage(f"too many pixels: {shown} (limit {max_megapixels:g})")


def _upright(image: ImageFile.ImageFile) -> Image.Image:
    image.load()
    turn = _TURNS.get(_orientation(image))
    flat = _rgb(image)
    return flat if turn is None else flat.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1..8; damaged EXIF does not make an image broken, it is upright then."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        clear = image.info.get("transparency")
        if isinstance(clear, int):
            grey[values == clear] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "I":
        return Image.fromarray(
            ((np.asarray(image).clip(0, 65535).astype(np.uint32) + 128) // 257).astype(np.uint8)
        ).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(_stretched(np.asarray(image))).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    if image.mode == "La":  # premultiplied; Pillow goes back only through LA
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _stretched(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Floating-point grey [H,W] stretched from its finite range to 0..255; what is not finite becomes 0."""
    finite = np.isfinite(values)
    if not finite.any():
        raise BrokenImage("no finite pixel value")
    wide = np.where(finite, values, 0).astype(np.float64)
    low, high = wide[finite].min(), wide[finite].max()
    scaled = (wide - low) * (255.0 / (high - low) if high > low else 0.0)
    return np.where(finite, np.rint(scaled), 0).astype(np.uint8)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels for Pillow's own limit"
    text = " ".join(str(error).split()).lower()
    if "truncated" in text or isinstance(error, EOFError):
        return "truncated"
    return f"damaged: {text[:100] or type(error).__name__}"
