"""An image whose header was read and whose pixels were not: what every reader gives, and why an image is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

MIN_SIDE = 8
"""Images with a side below this many pixels are broken: there is nothing to see in them."""


class BrokenImage(Exception):
    """An image that cannot be used, with a short reason for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Begun:
    """An image of which only the header was read.

    Attributes:
        size: (width, height) in pixels as stored, before it is turned upright.
        bytes_needed: upper estimate of the memory that `finish` takes at its peak, beyond the file's own bytes and
            with the picture it returns.
    """

    size: tuple[int, int]
    bytes_needed: int
    pixels: Callable[[], Image.Image]

    def finish(self) -> Image.Image:
        """The upright RGB image. Raises BrokenImage and nothing else."""
        try:
            return self.pixels()
        except BrokenImage:
            raise
        except MemoryError as error:
            raise BrokenImage("does not fit in memory") from error
        except Exception as error:  # readers raise nearly anything on damaged data
            raise BrokenImage(reason_of(error)) from error


def check_pixels(size: tuple[int, int], max_megapixels: float) -> None:
    """Raises BrokenImage for more pixels than allowed (1e6 px); ``size`` is (width, height)."""
    pixels = size[0] * size[1]
    if pixels > max_megapixels * 1e6:
        shown = f"{size[0]} x {size[1]}, {pixels / 1e6:,.1f} megapixels"
        raise BrokenImage(f"too many pixels: {shown} (limit {max_megapixels:g})")


def check_size(size: tuple[int, int], max_megapixels: float) -> None:
    """`check_pixels`, and the smallest side."""
    check_pixels(size, max_megapixels)
    if min(size) < MIN_SIDE:
        raise BrokenImage(f"too small: {size[0]} x {size[1]} px (at least {MIN_SIDE} a side)")


def reason_of(error: Exception) -> str:
    """What a reader raised, as a short reason for people."""
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels for Pillow's own limit"
    text = "".join(each if each.isprintable() else " " for each in str(error))
    text = " ".join(text.split()).lower()
    if "truncated" in text or isinstance(error, EOFError):
        return "truncated"
    return f"damaged: {text[:100] or type(error).__name__}"
