"""Small pictures inside the page: thumbnails, part overlays and the bytes they may take."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.parts.tint import tinted

SIDE = 112
_QUALITY = 80


class ImageBudget:
    """Counts the characters that images add to the page, so that it stops before the page is too large."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, characters: int) -> bool:
        """Reserve room; False, and nothing reserved, when there is not enough left."""
        if characters > self._left:
            return False
        self._left -= characters
        return True


def thumbnail(pixels: NDArray[np.uint8]) -> str:
    """One image [3,S,S] as a JPEG data URI of at most 112 pixels a side."""
    return _uri(_small(pixels))


def part_overlay(
    pixels: NDArray[np.uint8],
    maps: NDArray[np.float32],
    attention: NDArray[np.float32] | None,
    grid: tuple[int, int],
) -> str:
    """One image [3,S,S] tinted by its part maps [P,K], as a JPEG data URI."""
    return _uri(tinted(_small(pixels), maps, attention, grid))


def part_shares(maps: NDArray[np.float32], attention: NDArray[np.float32] | None) -> list[float]:
    """How much of what the model looks at each part takes, [K] in 0..1, mean over images.

    Shape: maps [R,P,K], attention [R,P]; without attention every patch counts the same.
    """
    weights = np.ones(maps.shape[:2], np.float32) if attention is None else attention
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    mass = np.einsum("rp,rpk->k", weights, maps)  # r image, p patch, k part
    return [float(share) for share in mass / max(float(mass.sum()), 1e-12)]


def _small(pixels: NDArray[np.uint8]) -> Image.Image:
    photo = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return photo


def _uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
