"""The colours of parts and categories: the same slot or category has one colour on the whole page."""

from __future__ import annotations

import colorsys

# Told apart by people with the common colour deficiencies, and visible on grey photos.
_PARTS = ("#ff5a4f", "#2f8fff", "#ffc22e", "#21c08b", "#a965ff", "#ff8fd6", "#16c5dc", "#a8743f")
_GOLDEN = 0.61803398875


def part_colour(slot: int) -> str:
    """Hex colour of part ``slot`` (0-based); after the eighth, hues spread by the golden ratio."""
    if slot < len(_PARTS):
        return _PARTS[slot]
    return _hex(colorsys.hls_to_rgb((slot * _GOLDEN) % 1.0, 0.6, 0.7))


def category_colour(position: int) -> str:
    """Hex colour of the category at ``position`` (0-based) on the page.

    Hues step by the golden ratio, so neighbours on the page are far apart on the wheel; three lightness
    levels keep near hues distinct. All are mid-tones that show on white and on near-black.
    """
    hue, lightness = (0.02 + position * _GOLDEN) % 1.0, (0.50, 0.60, 0.42)[position % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.62)
    bright = 0.3 * red + 0.6 * green + 0.1 * blue  # yellow and green look lighter than they count
    dim = min(1.0, 0.55 / bright)
    return _hex((red * dim, green * dim, blue * dim))


def rgb(colour: str) -> tuple[int, int, int]:
    """``#rrggbb`` as three values in 0..255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _hex(values: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in values)
