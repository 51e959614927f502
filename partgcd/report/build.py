"""From a finished run folder to report.html: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.parts.tint import part_colour
from partgcd.report.colours import category_colour
from partgcd.report.embed import embed
from partgcd.report.figures import changed_curve, feature_map, loss_curves, quality_curves
from partgcd.report.read import Category, RunRecord, part_count, read_features, read_part_maps, read_run
from partgcd.report.thumbs import ImageBudget, part_overlay, part_shares, thumbnail

Pixels = Callable[[list[int]], NDArray[np.uint8]]

# The page stays below 15 MB: what images may take, and caps on everything else a large run repeats.
IMAGE_CHARACTERS = 11_000_000
MAX_CARDS = 1000
MAX_ROWS = 300
MAX_BARS = 60
_MAX_NAME, _MAX_CONFIG = 120, 100_000
_MANY = 100

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class Card:
    """A category as the page shows it."""

    category: Category
    anchor: str
    colour: str
    typical: list[dict[str, str]] = field(default_factory=list)
    borderline: list[dict[str, str]] = field(default_factory=list)
    parts: list[dict[str, str]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def build_report(run: Path, out: Path | None = None, pixels: Pixels | None = None) -> Path:
    """Write the report of the run folder ``run`` and return the file written.

    ``out`` is the file (or an existing folder, which gets report.html); by default report.html inside the
    run folder. ``pixels`` maps catalog rows to uint8 images [B,3,S,S] of the evaluation view; by default the
    run's pixel store serves them, and without a store the page has no pictures. The file is self-contained,
    below 15 MB, and replaced in one step. Raises UserError when the folder holds no finished run.
    """
    record = read_run(run)
    target = run / "report.html" if out is None else out / "report.html" if out.is_dir() else out
    page = _render(record, _stored_pixels(record) if pixels is None else pixels)
    temporary = target.with_name(target.name + ".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page.encode("utf-8", errors="replace"))
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror}): name another file", 1) from error
    return target


def _stored_pixels(record: RunRecord) -> Pixels | None:
    folder = record.folder / "store"
    if not folder.is_dir():
        return None
    from partgcd.data.pixels import PixelStore

    store = PixelStore.open(folder)

    def centre(rows: list[int]) -> NDArray[np.uint8]:
        return store.centre(np.array(rows, dtype=np.int64), record.image_size)

    return centre


def _render(record: RunRecord, pixels: Pixels | None) -> str:
    limits: list[str] = []
    cards = [
        Card(category, f"category-{number + 1}", category_colour(number))
        for number, category in enumerate(c for c in record.categories if len(c.rows))
    ]
    parts = part_count(record.folder)
    missing = []
    if pixels is None:
        missing.append("Pictures: the run folder holds no pixel store.")
    else:
        _add_pictures(record, cards, pixels, limits)
    if parts == 0:
        missing.append("Part maps: this run kept none.")
    map_svg, method = _map(record, cards)
    if map_svg is None:
        missing.append("Map of the images: this run kept no features.")
    losses = loss_curves(record.metrics)
    if losses is None:
        missing.append("Training curves: this run recorded no losses.")
    if len(cards) > MAX_CARDS:
        limits.append(
            f"{len(cards) - MAX_CARDS} of {len(cards)} categories are not shown; predictions.csv has all."
        )
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(visible=visible, middle=middle, percent=percent, decimals=decimals)
    script = (Path(__file__).parent / "script.html.j2").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return environment.get_template("page.html.j2").render(
        style=Markup((Path(__file__).parent / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
        sentence=sentence(record),
        details=_details(record),
        facts=_facts(record, parts),
        accuracy=_accuracy(record.evaluation),
        lineage=_lineage(record.run),
        cards=cards[:MAX_CARDS],
        empty=[category for category in record.categories if len(category.rows) == 0][:MAX_ROWS],
        parts=[(slot + 1, part_colour(slot)) for slot in range(parts)],
        bars=cards[:MAX_BARS],
        bars_left=max(len(cards) - MAX_BARS, 0),
        largest=max([len(card.category.rows) for card in cards], default=0) or 1,
        losses=losses,
        quality=quality_curves(record.evaluation),
        changed=changed_curve(record.metrics),
        map_svg=map_svg,
        map_method=method,
        quarantine=record.quarantine[:MAX_ROWS],
        quarantine_left=max(len(record.quarantine) - MAX_ROWS, 0),
        duplicates=record.duplicates[:MAX_ROWS],
        duplicates_left=max(len(record.duplicates) - MAX_ROWS, 0),
        notes=record.notes[:MAX_ROWS],
        limits=limits,
        missing=missing,
        config=record.config[:_MAX_CONFIG],
        environment=_flatten(record.run),
        run_id=str(record.run.get("id", record.folder.name)),
    )


def _add_pictures(record: RunRecord, cards: list[Card], pixels: Pixels, limits: list[str]) -> None:
    filled = cards[:MAX_CARDS]
    many = len(filled) > _MANY
    most_typical, most_borderline, most_parts = (4, 2, 1) if many else (8, 4, 3)
    if many:
        limits.append(
            f"With {len(filled)} categories, each shows at most {most_typical} typical and {most_borderline} "
            "borderline images."
        )
    budget = ImageBudget(IMAGE_CHARACTERS)
    for done, card in enumerate(filled):
        typical, borderline = choose(record, card.category, most_typical, most_borderline)
        maps = read_part_maps(record.folder, typical[:most_parts])
        views = dict(zip(typical + borderline, pixels(typical + borderline), strict=True))
        card.typical = [_figure(record, row, thumbnail(views[row]), "typical") for row in typical]
        card.borderline = [_figure(record, row, thumbnail(views[row]), "borderline") for row in borderline]
        if maps is not None:
            card.shares = part_shares(maps.maps, maps.attention)
            for number, row in enumerate(typical[:most_parts]):
                attention = None if maps.attention is None else maps.attention[number]
                overlay = part_overlay(views[row], maps.maps[number], attention, maps.grid)
                card.parts.append(_figure(record, row, overlay, "parts of"))
        pictures = card.typical + card.borderline + card.parts
        if not budget.take(sum(len(escape(text)) for picture in pictures for text in picture.values())):
            card.typical, card.borderline, card.parts, card.shares = [], [], [], []
            limits.append(
                f"To keep this file small, only the first {done} of {len(filled)} categories show pictures."
            )
            return


def choose(
    record: RunRecord, category: Category, typical: int, borderline: int
) -> tuple[list[int], list[int]]:
    """Rows of the most confident images and, among the others, of those with the smallest margin.

    A category with few images keeps a third of them for the borderline row. Ties go to the smaller row.
    """
    rows = category.rows
    edge = min(borderline, len(rows) // 3)
    order = np.lexsort((rows, -np.nan_to_num(record.confidence[rows], nan=-1.0)))
    sure = rows[order][: min(typical, len(rows) - edge)]
    rest = np.setdiff1d(rows, sure)
    order = np.lexsort((rest, np.nan_to_num(record.margin[rest], nan=np.inf)))
    return [int(row) for row in sure], [int(row) for row in rest[order][:edge]]


def _figure(record: RunRecord, row: int, uri: str, role: str) -> dict[str, str]:
    path = middle(visible(record.paths[row]), _MAX_NAME)
    labelled = ", labelled by you" if record.labelled[row] else ""
    sure = percent(record.confidence[row])
    return {"src": uri, "alt": f"{role} image {path}", "title": f"{path} — {sure} % sure{labelled}"}


def _map(record: RunRecord, cards: list[Card]) -> tuple[Markup | None, str]:
    features = read_features(record.folder, len(record.paths))
    if features is None or len(features) < 2:
        return None, ""
    flat = embed(features, record.seed)
    category = np.full(len(record.paths), -1, dtype=np.int64)
    for number, card in enumerate(cards):
        category[card.category.rows] = number
    names = [middle(visible(card.category.name), 28) for card in cards]
    colours = [card.colour for card in cards]
    svg = feature_map(flat.points, category, names, colours, [card.category.discovered for card in cards])
    return svg, flat.method


def sentence(record: RunRecord) -> str:
    """What was found, in one sentence for someone who was not there.

    A new category that no image was put into is none that was discovered, and does not count.
    """
    new = sum(category.discovered and len(category.rows) > 0 for category in record.categories)
    named = sum(not category.discovered for category in record.categories)
    total = named + new
    word = "category" if total == 1 else "categories"
    if total == 0:
        found = "no categories"
    elif named == 0:
        found = f"{total:,} {word}, {'all ' if total > 1 else ''}discovered"
    elif new == 0:
        found = f"{total:,} {word}, {'all ' if total > 1 else ''}named by you"
    else:
        found = f"{total:,} {word}: {named:,} you named, {new:,} discovered"
    broken = len(record.quarantine)
    readable = f"{broken:,} could not be read" if broken else "all readable"
    images = len(record.paths)
    return f"{found}; {images:,} image{'' if images == 1 else 's'}, {readable}"


def _details(record: RunRecord) -> list[str]:
    details = []
    empty = sum(category.discovered and len(category.rows) == 0 for category in record.categories)
    if empty:
        places = f"{empty:,} places" if empty > 1 else "One place"
        details.append(f"{places} for new categories stayed empty.")
    if record.summary.get("classes", {}).get("estimated"):
        estimate = record.summary["classes"].get("estimate") or {}
        fits = f": {estimate['low']} to {estimate['high']} fit as well" if "low" in estimate else ""
        details.append(f"The number of categories was estimated from the images{fits}.")
    if record.duplicates:
        copies = len(record.duplicates)
        details.append(
            f"{copies:,} exact copies were set aside." if copies > 1 else "One exact copy was set aside."
        )
    return details


def _facts(record: RunRecord, parts: int) -> list[tuple[str, str]]:
    """Label and value of the strip below the headline."""
    labelled = int(record.labelled.sum())
    sizes = [len(category.rows) for category in record.categories if len(category.rows)]
    sorted_ = len(record.paths) - labelled
    facts = [("labelled by you", f"{labelled:,}"), ("sorted by the model", f"{sorted_:,}")]
    if sizes:
        facts.append(("images a category", f"{min(sizes):,} to {max(sizes):,}"))
    if parts:
        facts.append(("parts an object", str(parts)))
    if record.metrics:
        timings = [line["seconds"] for line in record.metrics if isinstance(line.get("seconds"), dict)]
        took = sum(float(seconds.get("epoch") or 0.0) for seconds in timings)
        epochs = f"{len(record.metrics)} epoch{'' if len(record.metrics) == 1 else 's'}"
        facts.append(("training", epochs + (f", {duration(took)}" if took else "")))
    return facts


def _accuracy(evaluation: dict[str, Any] | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    heads = evaluation.get("heads")
    rows = [
        (name, head.get("v2", head))
        for name, head in (heads.items() if isinstance(heads, dict) else [])
        if isinstance(head, dict)
    ]
    others = []
    for key, label in (("v1", "old and new matched apart (v1)"), ("plain", "old, by their own name")):
        value = evaluation.get(key)
        if isinstance(value, dict):
            others += [(f"{label}, {name}", percent(share) + " %") for name, share in value.items()]
        elif value is not None:
            others.append((label, percent(value) + " %"))
    agreement = {key: evaluation.get(key) for key in ("nmi", "ari")}
    others += [(key.upper(), decimals(value)) for key, value in agreement.items() if value is not None]
    best = {
        group: max((percent_value(row.get(group)) for _, row in rows), default=-1.0)
        for group in ("all", "old", "new")
    }
    return {
        "set": str(evaluation.get("set", "not named")),
        "v2": evaluation.get("v2") or {},
        "heads": rows,
        "best": best,
        "others": others,
    }


def _lineage(run: dict[str, Any]) -> str:
    backbone = run.get("backbone")
    if not isinstance(backbone, dict):
        return ""
    return " · ".join(str(backbone[key]) for key in ("name", "lineage", "licence") if backbone.get(key))


def _flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += _flatten(value, f"{name} / ")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((name, "none" if value is None else text))
    return rows


def visible(text: object) -> str:
    """Text with control and direction-changing characters written out (a newline reads ``\\n``)."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), str(text))


def middle(text: str, most: int) -> str:
    """At most ``most`` characters, the middle left out: both ends of a path tell more than its middle."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return text[:head] + "…" + text[len(text) - (most - 1 - head) :]


def percent_value(share: Any) -> float:
    """A share in 0..1 as per cent with one decimal; -1 when there is none."""
    usable = isinstance(share, int | float | np.floating) and math.isfinite(share)
    return round(100.0 * float(share), 1) if usable else -1.0


def percent(share: Any) -> str:
    """A share in 0..1 as text in per cent, one decimal; a dash when there is none."""
    value = percent_value(share)
    return f"{value:.1f}" if value >= 0.0 else "–"


def decimals(value: Any) -> str:
    """A number with two decimals; a dash when there is none."""
    return f"{value:.2f}" if isinstance(value, int | float) and math.isfinite(value) else "–"


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``48 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
