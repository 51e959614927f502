"""What a data set holds, as plain data and as a table for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from partgcd.data.catalog import Catalog
from partgcd.data.listing import Listing
from partgcd.data.names import printable

_CLASSES_SHOWN = 40
_FILES_SHOWN = 10


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some lengths, pixels."""

    least: int
    median: float
    most: int


@dataclass(frozen=True)
class Inspection:
    """Counts over a data set. ``found`` = ``usable`` + all broken + all duplicates.

    classes: usable labelled images a class, by name; formats: files found by lower-case suffix, commonest
    first; broken: images left out by reason (without its figures), commonest first; width, height: None
    without an image.
    """

    root: str
    layout: str
    found: int
    usable: int
    labelled: int
    unlabelled: int
    classes: dict[str, int]
    formats: dict[str, int]
    width: Spread | None
    height: Spread | None
    broken: dict[str, int]
    broken_paths: list[tuple[str, str]]
    duplicates: list[tuple[str, str]]
    notes: list[str]

    def table(self) -> str:
        """The counts as aligned lines; every name is printable and on one line."""
        lines = [f"{printable(self.root)}: {self.layout}"]
        broken = sum(self.broken.values())
        rows = [
            ("images found", self.found),
            ("usable", self.usable),
            ("  labelled", self.labelled),
            ("  unlabelled", self.unlabelled),
            ("broken", broken),
            ("duplicates", len(self.duplicates)),
            ("classes", len(self.classes)),
        ]
        lines += _columns(rows)
        for name, spread in (("width", self.width), ("height", self.height)):
            if spread is not None:
                lines.append(
                    f"{name}, pixels: {spread.least} least, {spread.median:g} median, {spread.most} most"
                )
        if self.classes:
            ranked = sorted(self.classes.items(), key=lambda item: (-item[1], item[0]))
            lines += ["", "labelled images a class:", *_columns(ranked[:_CLASSES_SHOWN])]
            rest = ranked[_CLASSES_SHOWN:]
            if rest:
                lines.append(
                    f"  and {len(rest)} smaller classes with {sum(count for _, count in rest)} images"
                )
        lines += ["", "formats:", *_columns(list(self.formats.items()))]
        if broken:
            lines += ["", "broken:", *_columns(list(self.broken.items()))]
            lines += [f"  {printable(path)}: {reason}" for path, reason in self.broken_paths[:_FILES_SHOWN]]
            lines += _more(broken)
        if self.duplicates:
            lines += ["", "duplicates:"]
            pairs = self.duplicates[:_FILES_SHOWN]
            lines += [f"  {printable(path)} = {printable(same)}" for path, same in pairs]
            lines += _more(len(self.duplicates))
        if self.notes:
            lines += ["", "notes:", *(f"  {printable(note)}" for note in self.notes)]
        return "\n".join(lines)


def inspect(listing: Listing, catalog: Catalog) -> Inspection:
    """Count what ``listing`` found and ``catalog`` (made from it) could use. Opens no file."""
    counts = np.bincount(catalog.labels[catalog.labelled], minlength=len(catalog.label_names))
    labelled = int(catalog.labelled.sum())
    suffixes = Counter(PurePosixPath(entry.path).suffix.lower() or "no suffix" for entry in listing.entries)
    reasons = Counter(each.reason.split(":")[0] for each in catalog.broken)
    return Inspection(
        root=str(listing.root),
        layout=listing.layout,
        found=len(listing.entries),
        usable=len(catalog),
        labelled=labelled,
        unlabelled=len(catalog) - labelled,
        classes=dict(zip(catalog.label_names, counts.tolist(), strict=True)),
        formats=_ranked(suffixes),
        width=_spread(catalog, 0),
        height=_spread(catalog, 1),
        broken=_ranked(reasons),
        broken_paths=[(each.path, each.reason) for each in catalog.broken],
        duplicates=[(each.path, each.same_as) for each in catalog.duplicates],
        notes=list(catalog.notes),
    )


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _spread(catalog: Catalog, axis: int) -> Spread | None:
    if not len(catalog):
        return None
    lengths = catalog.sizes[:, axis]
    return Spread(int(lengths.min()), float(np.median(lengths)), int(lengths.max()))


def _columns(rows: list[tuple[str, int]]) -> list[str]:
    shown = [(printable(name), f"{count:,}") for name, count in rows]
    left = max((len(name) for name, _ in shown), default=0)
    right = max((len(count) for _, count in shown), default=0)
    return [f"  {name:<{left}}  {count:>{right}}" for name, count in shown]


def _more(count: int) -> list[str]:
    return [f"  and {count - _FILES_SHOWN} more"] if count > _FILES_SHOWN else []
