"""The one decoder: everything that ever reads an image (training, export, serving) reads it through here.

Each format has a reader in `partgcd/decoding/` that looks at the header in bounded time, counts the work and the
memory that the pixels take, and gives Pillow only what makes pixels. What becomes of orientation, transparency, depth
and colour is settled in `upright.py`, `stretch.py` and `tiff_colours.py`, and told in docs/images.md. A file that ends
early is broken, never half grey.
"""

from __future__ import annotations

import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from partgcd.decoding import bmp, gif, heif, jpeg, png, pnm, tiff, webp
from partgcd.decoding.begun import MIN_SIDE, Begun, BrokenImage, reason_of
from partgcd.decoding.foreign import name_foreign
from partgcd.decoding.memory import check_memory, held

__all__ = [
    "MAX_BYTES",
    "MIN_SIDE",
    "SUFFIXES",
    "Begun",
    "BrokenImage",
    "begin",
    "decode",
    "decoded",
    "read_image",
    "suffix_of",
]

# What Pillow only warns of is no news to anybody: its pixel limit is stricter than ours, and what it cannot read is
# told as such. Once and for the process, since warnings.catch_warnings does not hold in threads.
for _category in (UserWarning, RuntimeWarning):
    warnings.filterwarnings("ignore", category=_category, module=r"PIL\.")

MAX_BYTES = 200_000_000
"""Larger files are not read at all."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".pam", ".pfm", ".avif", ".heic", ".heif", ".hif"}
)
"""Lower-case suffixes by which a folder scan recognises an image; one that can't be read here is told as such."""


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
    to MAX_BYTES. A file is known by its content, whatever its name says. Waits while other threads of the process
    hold the memory it needs. Raises BrokenImage and nothing else.
    """
    with decoded(source, max_megapixels) as image:
        return image


@contextmanager
def decoded(source: Path | bytes, max_megapixels: float = 100.0) -> Iterator[Image.Image]:
    """`decode` for one who makes less of the image at once: until the block ends it counts as memory held."""
    data = read_image(source) if isinstance(source, Path) else source
    begun = begin(data, max_megapixels)
    with held(begun.bytes_needed):
        yield begun.finish()


def begin(data: bytes, max_megapixels: float = 100.0) -> Begun:
    """Read the header of an image, in bounded time and memory: its size, and the memory that finishing takes.

    Raises BrokenImage and nothing else: no image, too many pixels, too much work, or more memory than so small a file
    justifies.
    """
    if not data:
        raise BrokenImage("empty file")
    try:
        reader = _reader(data)
        begun = reader(data, max_megapixels)
    except BrokenImage:
        raise
    except MemoryError as error:
        raise BrokenImage("does not fit in memory") from error
    except Exception as error:
        raise BrokenImage(reason_of(error)) from error
    check_memory(begun.bytes_needed, len(data), reader in (webp.begin_webp, heif.begin_heif))
    return begun


def suffix_of(data: bytes) -> str:
    """The usual suffix of an image file, by its content; '.jpg' for what is no image."""
    try:
        reader = _reader(data)
    except BrokenImage:
        return ".jpg"
    if reader is heif.begin_heif:
        return ".avif" if heif.is_avif(data) else ".heic"
    return _SUFFIX_OF[reader]


def _reader(data: bytes) -> Callable[[bytes, float], Begun]:
    for start, reader in _BY_START:
        if data.startswith(start):
            return reader
    for accepts, reader in _BY_LOOK:
        if accepts(data):
            return reader
    raise BrokenImage(name_foreign(data))


_BY_START: tuple[tuple[bytes | tuple[bytes, ...], Callable[[bytes, float], Begun]], ...] = (
    (jpeg.MAGIC, jpeg.begin_jpeg),
    (png.MAGIC, png.begin_png),
    (gif.MAGIC, gif.begin_gif),
    (bmp.MAGIC, bmp.begin_bmp),
    (tiff.MAGIC, tiff.begin_tiff),
)
_BY_LOOK = (
    (webp.is_webp, webp.begin_webp),
    (heif.is_container, heif.begin_heif),
    (pnm.is_pnm, pnm.begin_pnm),
)
_SUFFIX_OF: dict[Callable[[bytes, float], Begun], str] = {
    jpeg.begin_jpeg: ".jpg", png.begin_png: ".png", gif.begin_gif: ".gif", bmp.begin_bmp: ".bmp",
    tiff.begin_tiff: ".tif", webp.begin_webp: ".webp", pnm.begin_pnm: ".pnm",
}  # fmt: skip
