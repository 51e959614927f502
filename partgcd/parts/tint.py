"""Part maps drawn over the image they belong to."""

from __future__ import annotations

import colorsys
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Told apart by people with the common colour deficiencies, and visible on grey photos.
_PARTS = ("#ff5a4f", "#2f8fff", "#ffc22e", "#21c08b", "#a965ff", "#ff8fd6", "#16c5dc", "#a8743f")
_GOLDEN = 0.61803398875


def part_colour(slot: int) -> str:
    """Hex colour of part ``slot`` (0-based), the same everywhere; after the eighth, hues spread by the golden ratio."""
    if slot < len(_PARTS):
        return _PARTS[slot]
    values = colorsys.hls_to_rgb((slot * _GOLDEN) % 1.0, 0.6, 0.7)
    return "#" + "".join(f"{round(255 * value):02x}" for value in values)


def rgb(colour: str) -> tuple[int, int, int]:
    """``#rrggbb`` as three values in 0..255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def tinted(
    photo: Image.Image,
    maps: NDArray[np.float32],
    attention: NDArray[np.float32] | None,
    grid: tuple[int, int],
) -> Image.Image:
    """An RGB image tinted by its part maps [P,K] (Eq. 9), P = rows x columns of ``grid``.

    Every spot takes the mean of the part colours weighted by their responsibilities; the tint is stronger
    where the class attention [P] is, because responsibilities sum to one on the background as well.
    """
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
    return Image.fromarray(mixed.astype(np.uint8))


def _upsample(
    values: NDArray[np.float32], grid: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.float32]:
    plane = Image.fromarray(np.ascontiguousarray(values.reshape(grid), dtype=np.float32))
    return cast("NDArray[np.float32]", np.asarray(plane.resize(size, Image.Resampling.BICUBIC)))
