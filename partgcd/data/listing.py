"""The images of a data set as found, before any is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partgcd.data.names import first_few
from partgcd.data.words import fold

ALL_LABELLED = (
    "every image is labelled, so nothing can be discovered: add a folder 'unlabelled', or use --protocol"
)
NO_LABELS = "no image is labelled: every category will be a discovered one"


@dataclass(frozen=True)
class Entry:
    """An image file: posix path relative to the listing's root (or absolute), label None if unlabelled.

    ``truth`` is a hidden class: only evaluation may look at it.
    """

    path: str
    label: str | None = None
    truth: str | None = None


@dataclass(frozen=True)
class Listing:
    """All images of a data set in path order, undecoded. ``layout`` says how the labels were read:

    'class folders', 'labelled folder', 'no labels', 'manifest', 'protocol' or 'split'.
    """

    root: Path
    entries: list[Entry]
    notes: list[str]
    layout: str


def label_notes(entries: list[Entry]) -> list[str]:
    """Lines about labels that may be a mistake: none, nothing but labels, names that are nearly one."""
    labels = sorted({entry.label for entry in entries if entry.label is not None})
    if not labels:
        return [NO_LABELS]
    notes = [] if any(entry.label is None for entry in entries) else [ALL_LABELLED]
    folded: dict[str, list[str]] = {}
    for label in labels:
        folded.setdefault(fold(label) or label, []).append(label)
    alike = [" / ".join(names) for names in folded.values() if len(names) > 1]
    if alike:
        notes.append(
            f"class names that differ only in case, blanks or hyphens are different classes: {first_few(alike)}"
        )
    return notes
