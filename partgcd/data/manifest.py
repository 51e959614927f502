"""Reads manifests: tables that name images, and what they say of their classes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePosixPath

from partgcd.data.listing import Entry, Listing, label_notes
from partgcd.data.names import clean_label, first_few, printable
from partgcd.data.places import Finder
from partgcd.data.spellings import tidy
from partgcd.data.table import paths_of, read_table
from partgcd.data.words import means_no_label

_NUMBER = re.compile(r"[+-]?\d+(\.0*)?")


def read_manifest(path: Path) -> Listing:
    """A listing from a table with a column ``path`` and, if there, ``label`` and the hidden ``truth``.

    Paths are absolute or relative to the manifest's folder, and may lead out of it; ``places.Finder`` finds those
    that are spelt otherwise than the files, and a note tells. Whether the others exist shows when they are read.
    Labels are read by ``read_labels``. A path listed twice counts once, with the first label given. Raises UserError.
    """
    table = read_table(path)
    name = printable(path.name)
    root = path.parent.absolute()
    notes = list(table.notes)
    extra = sorted(set(table.columns) - {"path", "label", "truth"})
    if extra:
        notes.append(
            f"{name}: columns not used: {first_few([each or 'one without a name' for each in extra])}"
        )
    rows = len(table.lines)
    labels, more = read_labels(table.columns.get("label", [""] * rows), name)
    notes += more
    # What the truth holds is nothing that notes may tell: they go into the catalog.
    truths, _ = read_labels(table.columns.get("truth", [""] * rows), name)
    found: dict[str, Entry] = {}
    twice: list[str] = []
    differ: list[str] = []
    finder = Finder(root, [Path.cwd()])
    for written, label, truth in zip(paths_of(table, name), labels, truths, strict=True):
        place = finder.find(written)
        entry = Entry(_relative(written, root) if place is None else place, label, truth)
        before = found.get(entry.path)
        if before is None:
            found[entry.path] = entry
            continue
        twice.append(entry.path)
        if before.label and entry.label and before.label != entry.label:
            differ.append(f"{entry.path} ({before.label} / {entry.label})")
        found[entry.path] = Entry(entry.path, before.label or entry.label, before.truth or entry.truth)
    notes += finder.notes(name)
    if twice:
        notes.append(f"{name}: {len(twice)} rows repeat a path and were joined: {first_few(twice)}")
    if differ:
        notes.append(f"{name}: paths with two labels keep the first: {first_few(differ)}")
    entries = sorted(found.values(), key=lambda entry: entry.path)
    return Listing(root, entries, notes + label_notes(entries), "manifest")


def read_labels(cells: list[str], name: str) -> tuple[list[str | None], list[str]]:
    """Labels of a column, None where there is none, and lines on what was not taken as it stands.

    White space around them is dropped. A word that says that there is no label says so here as it does on a folder
    (``words.means_no_label``). Where all are whole numbers and some are written 1.0, they are 1.
    """
    texts = [clean_label(cell) for cell in cells]
    silent = {text for text in set(texts) if text and means_no_label(text)}
    counts = Counter(text for text in texts if text in silent)
    notes = []
    if counts:
        shown = [f"{word} ({count})" for word, count in counts.most_common()]
        notes.append(
            f"{name}: labels that say that there is none: {first_few(shown, 10)}; write another word for a class"
        )
    kinds = set(texts) - silent - {""}
    if any("." in kind for kind in kinds) and all(_NUMBER.fullmatch(kind) for kind in kinds):
        whole = {kind: kind.partition(".")[0] for kind in kinds}
        texts = [whole.get(text, text) for text in texts]
        first = min(kind for kind in kinds if "." in kind)
        notes.append(f"{name}: labels are whole numbers: {first} is read as {whole[first]}")
        kinds = set(whole.values())
    if kinds and {kind.casefold() for kind in kinds} <= {"true", "false"}:
        notes.append(f"{name}: labels are {first_few(sorted(kinds))}, which are read as names of classes")
    if "-1" in kinds:
        notes.append(f"{name}: '-1' is read as a class; leave the cell empty if it says that there is none")
    return [None if not text or text in silent else text for text in texts], notes


def _relative(written: str, root: Path) -> str:
    """Posix path below ``root`` where it lies there, else as written."""
    own = tidy(written)
    path = PurePosixPath(own)
    if path.is_absolute() and path.is_relative_to(root.as_posix()) and ".." not in path.parts:
        return path.relative_to(root.as_posix()).as_posix()
    return own
