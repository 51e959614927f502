"""Which classes are old and which images are labelled, for data whose classes are all known: benchmark
splits.

The order that decides is a hash of (seed, name), not a random generator's: it is the same for every version
of every library, and an image or a class that joins does not reshuffle the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.data.listing import ALL_LABELLED, Listing
from partgcd.data.names import clean_label, first_few, printable
from partgcd.data.places import Finder


def gcd_protocol(
    listing: Listing, seed: int, old_classes: int | None = None
) -> tuple[Listing, dict[str, str]]:
    """The GCD benchmark's split of class folders: (listing with labels removed, truth {path: class} of all
    images).

    Half the classes (rounded up, or ``old_classes`` of them) are old; half of an old class's images (rounded
    down, at least one) stay labelled; all others become unlabelled and carry their class as hidden truth. A
    function of the seed and the names alone. Raises UserError where an image has no class, or there are too
    few classes.
    """
    truth = _classes(listing)
    unknown = [entry.path for entry in listing.entries if entry.path not in truth]
    if unknown:
        raise UserError(
            f"the protocol needs every image's class, {len(unknown)} have none ({first_few(unknown)}): "
            "give class folders only, or a manifest with a column 'truth'"
        )
    names = sorted(set(truth.values()))
    if len(names) < 2:
        raise UserError(f"the protocol needs at least 2 classes to split, and there is {len(names)}")
    count = (len(names) + 1) // 2 if old_classes is None else old_classes
    if not 1 <= count <= len(names):
        raise UserError(
            f"{count} old classes were asked for: there are {len(names)} classes, give 1 to {len(names)}"
        )
    old = _shuffled(names, seed, "old classes")[:count]
    members: dict[str, list[str]] = {name: [] for name in old}
    for path, name in truth.items():
        if name in members:
            members[name].append(path)
    labelled: set[str] = set()
    for name, paths in members.items():
        labelled.update(_shuffled(paths, seed, f"labelled\0{name}")[: max(1, len(paths) // 2)])
    note = (
        f"protocol, seed {seed}: {count} of {len(names)} classes are old, "
        f"{len(labelled)} of {len(listing.entries)} images keep their label"
    )
    return _relabelled(listing, truth, labelled, set(truth), [note], "protocol"), truth


def read_split(file: Path, listing: Listing) -> tuple[Listing, dict[str, str]]:
    """The split a JSON file states: {"old_classes": [...], "labelled": [paths], "unlabelled": [paths]}.

    Paths are the listing's, in whatever way they are written (``places.Finder``). Without "unlabelled" every
    other image is unlabelled; with it, images in neither list are left out. Returns what ``gcd_protocol`` returns,
    truth for each image whose class is known. Raises UserError.
    """
    name = printable(file.name)
    split = _read_lists(file, name)
    truth = _classes(listing)
    paths = {entry.path for entry in listing.entries}
    finder = Finder(listing.root, [file.parent, Path.cwd()], paths)
    for key in ("labelled", "unlabelled"):
        if key in split:
            split[key] = [finder.find(written) or written for written in split[key]]
    known = set(truth.values())
    old = {each if each in known else clean_label(each) for each in split["old_classes"]}
    labelled = set(split["labelled"])
    chosen = labelled | set(split["unlabelled"]) if "unlabelled" in split else paths
    _none(old - known, f"{name} names old classes that are not in the data")
    strange = (labelled | chosen) - paths
    more = "; ".join(finder.notes(name)) if strange else ""
    _none(strange, f"{name} names images that are not in the data", more)
    if "unlabelled" in split:
        _none(labelled & set(split["unlabelled"]), f"{name} lists images both as labelled and as unlabelled")
    _none(
        {path for path in labelled if truth.get(path) not in old},
        f"{name} labels images whose class is not among its old classes",
    )
    _none(old - {truth[path] for path in labelled}, f"{name} labels no image of these old classes")
    note = f"split {name}: {len(old)} old classes, {len(labelled)} of {len(chosen)} images keep their label"
    kept = {path: label for path, label in truth.items() if path in chosen}
    return _relabelled(listing, truth, labelled, chosen, [*finder.notes(name), note], "split"), kept


def _read_lists(file: Path, name: str) -> dict[str, list[str]]:
    try:
        split: Any = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"no such split file: {printable(str(file))}") from None
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not a JSON file: {' '.join(str(error).split())[:120]}") from error
    form = 'it must hold {"old_classes": [...], "labelled": [...]} and may hold "unlabelled": [...]'
    if not isinstance(split, dict):
        raise UserError(f"{name} is no split: {form}")
    wrong = set(split) - {"old_classes", "labelled", "unlabelled"}
    missing = {"old_classes", "labelled"} - set(split)
    if wrong or missing:
        what = f"unknown key {first_few(sorted(wrong))}" if wrong else f"no key {first_few(sorted(missing))}"
        raise UserError(f"{name} has {what}: {form}")
    for key, values in split.items():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UserError(f"{name}: '{key}' must be a list of text: {form}")
    return split


def _none(names: Iterable[str], complaint: str, more: str = "") -> None:
    wrong = sorted(names)
    if wrong:
        raise UserError(f"{complaint}: {first_few(wrong, 5)}" + (f" ({more})" if more else ""))


def _classes(listing: Listing) -> dict[str, str]:
    """{path: class} of the images whose class is known."""
    known = {entry.path: entry.label or entry.truth for entry in listing.entries}
    return {path: name for path, name in known.items() if name is not None}


def _relabelled(
    listing: Listing,
    truth: dict[str, str],
    labelled: set[str],
    chosen: set[str],
    more: list[str],
    layout: str,
) -> Listing:
    entries = [
        replace(
            entry, label=truth[entry.path] if entry.path in labelled else None, truth=truth.get(entry.path)
        )
        for entry in listing.entries
        if entry.path in chosen
    ]
    notes = [each for each in listing.notes if each != ALL_LABELLED]
    return Listing(listing.root, entries, [*notes, *more], layout)


def _shuffled(names: list[str], seed: int, purpose: str) -> list[str]:
    """``names`` in an order that only the seed, the purpose and the names decide."""

    def rank(name: str) -> tuple[bytes, str]:
        text = f"{seed}\0{purpose}\0{name}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).digest(), name

    return sorted(names, key=rank)
