"""The colours of categories: the same category has one colour on the whole page."""

from __future__ import annotations

import colorsys

_GOLDEN = 0.61803398875


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


def _hex(values: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in values)
