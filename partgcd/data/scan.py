"""Finds the images of a folder or a manifest and what is said about their classes. Opens no image."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from partgcd.data.decode import SUFFIXES
from partgcd.data.errors import UserError
from partgcd.data.listing import Entry, Listing, label_notes
from partgcd.data.manifest import MANIFESTS, read_manifest
from partgcd.data.names import clean_label, first_few, printable

__all__ = ["LABELLED", "UNLABELLED", "Entry", "Listing", "scan"]

UNLABELLED = frozenset({"unlabelled", "unlabeled", "unknown", "_unlabelled", "_unlabeled"})
"""Folder names, in any case, whose images have no label."""

LABELLED = frozenset({"labelled", "labeled"})
"""Folder names, in any case, that hold one folder a class beside an UNLABELLED one."""


@dataclass
class _Walk:
    """What a walk over folders gathers."""

    files: list[tuple[str, ...]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    hidden: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        lines = []
        if self.unreadable:
            lines.append(
                f"folders that could not be read, their images are missing: {first_few(self.unreadable)}"
            )
        if self.loops:
            lines.append(f"linked folders skipped, they were read already: {first_few(self.loops)}")
        if self.empty:
            lines.append(f"folders without an image: {first_few(self.empty)}")
        if self.hidden:
            lines.append(f"{len(self.hidden)} hidden files or folders skipped: {first_few(self.hidden)}")
        if self.skipped:
            kinds = ", ".join(f"{printable(kind)} {count}" for kind, count in self.skipped.most_common(6))
            lines.append(f"{self.skipped.total()} files skipped that are not images by their suffix: {kinds}")
        return lines


def scan(data: Path) -> Listing:
    """List the images of ``data``: a folder, or a CSV or Parquet manifest.

    Folders: class folders (sub-folders belong to their class) beside an unlabelled one; labelled/<class>/ and
    unlabelled/; or loose images without labels. Loose images beside class folders are unlabelled. Hidden
    files and files without an image suffix are skipped and counted in a note. Links are followed, loops are
    not. Raises UserError: no such folder, no image in it, or a layout that can be read in two ways.
    """
    data = data.expanduser()
    if not data.exists():
        raise UserError(f"no such file or folder: {printable(str(data))}")
    if not data.is_dir():
        if data.suffix.lower() not in MANIFESTS:
            raise UserError(
                f"{printable(str(data))} is neither a folder nor a manifest ({', '.join(sorted(MANIFESTS))})"
            )
        return read_manifest(data)
    root = data.absolute()
    walk = _walk(root)
    if not walk.files:
        more = "; ".join(walk.notes())
        raise UserError(
            f"no images in {printable(str(data))}: files ending in {' '.join(sorted(SUFFIXES))} are read"
            + (f" ({more})" if more else "")
        )
    entries, layout, notes = _labelled(walk.files)
    entries.sort(key=lambda entry: entry.path)
    return Listing(root, entries, notes + walk.notes(), layout)


def _walk(root: Path) -> _Walk:
    walk = _Walk()
    seen: set[tuple[str, int, int]] = set()
    tops: list[str] = []
    stack: list[tuple[str, ...]] = [()]
    while stack:
        parts = stack.pop()
        shown = "/".join(parts) or "."
        try:
            about = root.joinpath(*parts).stat()
            # Once below each top-level folder: ends every loop, yet one folder may be linked into two
            # classes.
            place = (parts[0] if parts else "", about.st_dev, about.st_ino)
            if place in seen or ("", *place[1:]) in seen:
                walk.loops.append(shown)
                continue
            seen.add(place)
            with os.scandir(root.joinpath(*parts)) as found:
                # Real folders before linked ones, so that a link and not its target counts as the repetition.
                inside = sorted(found, key=lambda item: (item.is_symlink(), item.name))
        except OSError as error:
            if not parts:
                raise UserError(f"cannot read {printable(str(root))}: {error.strerror or error}") from error
            walk.unreadable.append(f"{shown} ({error.strerror or error})")
            continue
        folders = []
        for item in inside:
            path = (*parts, item.name)
            if item.name.startswith("."):
                walk.hidden.append("/".join(path))
            elif _is_folder(item):
                folders.append(path)
            elif (suffix := Path(item.name).suffix.lower()) in SUFFIXES:
                walk.files.append(path)
            else:
                walk.skipped[suffix or "no suffix"] += 1
        stack.extend(reversed(folders))
        if not parts:
            tops = [path[0] for path in folders]
    full = {path[0] for path in walk.files}
    walk.empty += [top for top in tops if top not in full]
    return walk


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself: no folder, and broken if its name is an image's
        return False


def _labelled(files: list[tuple[str, ...]]) -> tuple[list[Entry], str, list[str]]:
    """Labels from folder names: (entries, layout, notes)."""
    tops = {parts[0] for parts in files if len(parts) > 1}
    marked = {top for top in tops if top.lower() in LABELLED}
    others = sorted(tops - marked - {top for top in tops if top.lower() in UNLABELLED})
    nested = any(parts[0] in marked and len(parts) > 2 for parts in files)
    if nested and others:
        raise UserError(
            f"'{printable(min(marked))}' holds class folders beside others: {first_few(others)}; "
            "use either labelled/<class>/ beside unlabelled/, or <class>/ beside unlabelled/"
        )
    if marked and not nested:
        top = printable(min(marked))
        raise UserError(f"'{top}' has no class folders: put its images into {top}/<class>/")
    depth = 1 if nested else 0
    entries = []
    loose = 0
    for parts in files:
        inside = len(parts) > depth + 1 and (
            parts[0] in marked if nested else parts[0].lower() not in UNLABELLED
        )
        loose += not inside and len(parts) == (depth + 1 if parts[0] in marked else 1)
        label = (clean_label(parts[depth]) or parts[depth]) if inside else None
        entries.append(Entry("/".join(parts), label))
    notes = label_notes(entries)
    if all(entry.label is None for entry in entries):
        return entries, "no labels", notes
    if len(tops) == 1 and not nested and len({parts[1] for parts in files if len(parts) > 2}) > 1:
        notes.append(f"all classes lie in one folder: give {printable(min(tops))} itself to tell them apart")
    if loose:
        notes.append(f"{loose} loose images beside the class folders are unlabelled")
    return entries, "labelled folder" if nested else "class folders", notes
