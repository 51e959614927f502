"""Small pictures inside the page: thumbnails, part overlays and the bytes they may take."""

from __future__ import annotations

import base64
import io
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.report.colours import part_colour, rgb

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
    """One image [3,S,S] tinted by its part maps [P,K] (Eq. 9), as a JPEG data URI.

    Every spot takes the mean of the part colours weighted by their responsibilities; the tint is stronger
    where the class attention [P] is, because responsibilities sum to one on the background as well.
    """
    photo = _small(pixels)
    size = photo.size
    shares = np.stack([_upsample(maps[:, k], grid, size) for k in range(maps.shape[1])], axis=-1)
    shares = np.clip(shares, 0.0, None)
    shares = shares**2  # mixed spots would turn grey
    shares /= np.maximum(shares.sum(axis=-1, keepdims=True), 1e-6)
    colours = np.array([rgb(part_colour(k)) for k in range(maps.shape[1])], dtype=np.float32)
    tint = shares @ colours
    strength = np.full((size[1], size[0], 1), 0.5, dtype=np.float32)
    if attention is not None and float(attention.max()) > 0.0:
        peak = float(np.quantile(attention, 0.95)) or float(attention.max())
        looked_at = np.clip(_upsample(np.minimum(attention / peak, 1.0), grid, size), 0.0, 1.0)
        strength = (0.12 + 0.58 * looked_at)[..., None]
    colour = np.asarray(photo, dtype=np.float32)
    grey = colour @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    base = 0.85 * (0.25 * colour + 0.75 * grey[..., None])  # a muted photo leaves the hue to the parts
    mixed = np.clip((1.0 - strength) * base + strength * tint, 0.0, 255.0)
    return _uri(Image.fromarray(mixed.astype(np.uint8)))


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


def _upsample(
    values: NDArray[np.float32], grid: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.float32]:
    plane = Image.fromarray(np.ascontiguousarray(values.reshape(grid), dtype=np.float32))
    return cast("NDArray[np.float32]", np.asarray(plane.resize(size, Image.Resampling.BICUBIC)))


def _uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
