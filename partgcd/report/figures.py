"""The curves and the feature map, drawn by matplotlib as SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

# matplotlib knows no CSS variables: these three never occur otherwise and are replaced in the SVG text.
_INK, _LINE, _SURFACE = "#010203", "#040506", "#070809"
_CSS = {_INK: "currentColor", _LINE: "var(--line)", _SURFACE: "var(--surface)"}
_SERIES = ("#0f8b8d", "#d97b29", "#7a5cc7", "#c2456b", "#4c8f3a", "#3f7fd0", "#a8862b", "#8b6b5a", "#6d7f94")
_MAX_LABELS = 30


def loss_curves(metrics: Sequence[dict[str, Any]]) -> Markup | None:
    """The total loss and each of its terms by epoch; None without metrics."""
    epochs = _epochs(metrics)
    terms = sorted({name for line in metrics for name in _losses(line)} - {"total"})
    series = {name: [_number(_losses(line).get(name)) for line in metrics] for name in ["total", *terms]}
    series = {name: values for name, values in series.items() if np.isfinite(values).any()}
    if not series:
        return None
    figure = Figure(figsize=(10.4, 3.5), layout="constrained")
    axes = _axes(figure, "loss")
    for number, (name, values) in enumerate(series.items()):
        main = name == "total"
        _line(axes, epochs, values, name, _INK if main else _SERIES[(number - 1) % len(_SERIES)], main)
    _legend(axes, outside=True)
    return _svg(figure, "loss", "Loss curves: the total loss and its terms for every epoch")


def quality_curves(evaluation: dict[str, Any] | None) -> Markup | None:
    """Accuracy over all images and purity of the candidates by epoch; None when never measured."""
    points = [line for line in (evaluation or {}).get("curve") or [] if isinstance(line, dict)]
    series = {
        "accuracy, all images": ([100.0 * _number(line.get("all")) for line in points], _SERIES[0], True),
        "purity of candidates": ([100.0 * _number(line.get("purity")) for line in points], _SERIES[1], False),
    }
    if not any(np.isfinite(values).any() for values, _, _ in series.values()):
        return None
    figure = Figure(figsize=(4.9, 3.2), layout="constrained")
    axes = _axes(figure, "%")
    for name, (values, colour, main) in series.items():
        if np.isfinite(values).any():
            _line(axes, _epochs(points), values, name, colour, main)
    axes.set_ylim(0.0, 103.0)
    _legend(axes, outside=False)
    return _svg(figure, "quality", "Accuracy over all images and purity of the candidates by epoch, per cent")


def changed_curve(metrics: Sequence[dict[str, Any]]) -> Markup | None:
    """The share of images whose class changed since the epoch before, per cent; None when not recorded."""
    values = [100.0 * _number(line.get("changed")) for line in metrics]
    if not np.isfinite(values).any():
        return None
    figure = Figure(figsize=(4.9, 3.2), layout="constrained")
    axes = _axes(figure, "% of images")
    _line(axes, _epochs(metrics), values, "changed category", _SERIES[2], True)
    axes.set_ylim(bottom=0.0)
    return _svg(figure, "changed", "Share of images that changed category at each epoch, per cent")


def feature_map(
    points: NDArray[np.float32],
    category: NDArray[np.int64],
    names: Sequence[str],
    colours: Sequence[str],
    discovered: Sequence[bool],
) -> Markup:
    """Images as dots on a plane: points [N,2], ``category`` [N] indexes the other lists (-1: none).

    Dots of discovered categories are diamonds with an outline, those of named ones discs. The largest 30
    categories carry their names where there is room.
    """
    figure = Figure(figsize=(10.4, 6.2))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    span = np.ptp(points, axis=0) / 2.0 if len(points) else np.ones(2)
    axes.set_xlim(-1.12 * max(float(span[0]), 0.1), 1.12 * max(float(span[0]), 0.1))
    axes.set_ylim(-1.12 * max(float(span[1]), 0.1), 1.12 * max(float(span[1]), 0.1))
    size = float(np.clip(14000.0 / max(len(points), 1), 3.0, 36.0))
    for number, colour in enumerate(colours):
        chosen = points[category == number]
        if len(chosen):
            new = discovered[number]
            axes.scatter(
                chosen[:, 0],
                chosen[:, 1],
                s=size * (1.15 if new else 1.0),
                c=colour,
                marker="D" if new else "o",
                linewidths=0.8 if new else 0.0,
                edgecolors=colour,
                alpha=0.8 if new else 0.65,
                rasterized=True,  # thousands of dots as paths would be megabytes
            )
    sizes = np.bincount(category[category >= 0], minlength=len(names))
    shown = [int(number) for number in np.argsort(-sizes, kind="stable")[:_MAX_LABELS] if sizes[number] > 0]
    labels = _spread({number: _top(points[category == number]) for number in shown}, axes)
    for number, (x, y) in labels.items():
        # A placeholder: a name may hold "$", "<" or glyphs no bundled font has. _svg puts the names in.
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": _INK}
        axes.text(x, y, f"NAME{number}NAME", **style)
    return _svg(
        figure,
        "map",
        "Map of all images: dots that lie close look alike to the model; colours are categories",
        names={number: names[number] for number in labels},
    )


def _top(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where a label stands: above the middle of a group, clear of most of its dots."""
    middle = np.median(points, axis=0)
    near = points[np.abs(points - middle).max(axis=1) < 0.25]
    high = float(np.quantile(near[:, 1], 0.95)) if len(near) else float(middle[1])
    return np.array([middle[0], high + 0.045], dtype=np.float32)


def _spread(anchors: dict[int, NDArray[np.float32]], axes: Axes) -> dict[int, tuple[float, float]]:
    """Move labels up until none lies on another; leave out one that would stray from its group.

    Names differ in width, which only the browser knows: a fixed guess is taken.
    """
    height = 0.036 * (axes.get_ylim()[1] - axes.get_ylim()[0])
    width = 0.14 * (axes.get_xlim()[1] - axes.get_xlim()[0])
    placed: dict[int, tuple[float, float]] = {}
    for number, anchor in sorted(anchors.items(), key=lambda item: float(item[1][1])):
        x, y = float(anchor[0]), float(anchor[1])
        for other_x, other_y in sorted(placed.values(), key=lambda spot: spot[1]):
            if abs(other_x - x) < width and abs(other_y - y) < height:
                y = other_y + height
        if y - float(anchor[1]) <= 2.0 * height:
            placed[number] = (x, y)
    return placed


def _axes(figure: Figure, label: str) -> Axes:
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.tick_params(colors=_INK, length=0, labelsize=8.5)
    axes.set_xlabel("epoch", color=_INK, fontsize=8.5)
    axes.set_ylabel(label, color=_INK, fontsize=8.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    return axes


def _line(axes: Axes, epochs: list[float], values: list[float], name: str, colour: str, main: bool) -> None:
    few = int(np.isfinite(values).sum()) <= 2  # a line needs two points to be seen
    label = re.sub(r"[^0-9A-Za-z ,.()%-]", " ", name)
    marker = "o" if few else ""
    axes.plot(epochs, values, color=colour, linewidth=2.4 if main else 1.3, marker=marker, label=label)


def _legend(axes: Axes, outside: bool) -> None:
    if outside:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    else:
        place = {"loc": "lower right"}
    axes.legend(frameon=False, labelcolor=_INK, fontsize=8.5, handlelength=1.4, **place)


def _svg(figure: Figure, prefix: str, title: str, names: dict[int, str] | None = None) -> Markup:
    FigureCanvasAgg(figure)
    buffer = io.StringIO()
    no_metadata = {"Creator": None, "Date": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "figure.dpi": 144}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata, dpi=144)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Several drawings share one page: their ids must not meet.
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    for colour, css in _CSS.items():
        text = text.replace(colour, css)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*pt" height="[^"]*pt"', r"\1", text, count=1)
    for number, name in (names or {}).items():
        text = text.replace(f"NAME{number}NAME", str(escape(name)))
    return Markup(text)


def _epochs(lines: Sequence[dict[str, Any]]) -> list[float]:
    return [_number(line.get("epoch", number + 1)) for number, line in enumerate(lines)]


def _losses(line: dict[str, Any]) -> dict[str, Any]:
    losses = line.get("loss")
    return losses if isinstance(losses, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
