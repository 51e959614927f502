"""The change report of a rediscovery: which classes appeared, grew and lost, as one page that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from partgcd.data.names import printable
from partgcd.report.thumbs import ImageBudget, thumbnail

_HERE = Path(__file__).parent
_IMAGE_CHARACTERS = 6_000_000
_MOST_CLASSES = 200

Pixels = Callable[[list[int]], NDArray[np.uint8]]


def render_changes(changes: Mapping[str, Any], pixels: Pixels | None) -> bytes:
    """The page for what `partgcd.continual.compare.describe_changes` tells.

    ``pixels`` gives evaluation views [B, 3, S, S] of catalog rows; without it the page has no pictures.
    """
    budget = ImageBudget(_IMAGE_CHARACTERS)

    def picture(image: Mapping[str, Any]) -> Markup | None:
        if pixels is None:
            return None
        uri = thumbnail(pixels([int(image["row"])])[0])
        return Markup(uri) if budget.take(len(uri)) else None

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["plain"] = lambda text: printable(str(text))[:120]
    environment.filters["whole"] = lambda value: f"{100 * float(value):.0f}%"
    environment.filters["percent"] = lambda value: f"{100 * float(value):.1f}%"
    page = environment.get_template("changes.html.j2").render(
        c=changes, picture=picture, style=Markup((_HERE / "style.css").read_text("utf-8")),
        most=_MOST_CLASSES,
    )  # fmt: skip
    return page.encode("utf-8", errors="replace")
