"""Reads labels from folder names: the documented layouts, and what people have instead, with a line that says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from partgcd.config.errors import UserError
from partgcd.data.listing import Entry, label_notes
from partgcd.data.names import clean_label, first_few, printable
from partgcd.data.tree import Node, held_instead, images_below, may_be_class, tree_of
from partgcd.data.walk import Walk
from partgcd.data.words import (
    means_date,
    means_labelled,
    means_no_label,
    means_part,
    means_photos,
    nearly_unlabelled,
    says_unlabelled,
)

_NAMED = 10


@dataclass
class _Reading:
    """What is gathered while folders are read."""

    walk: Walk
    known: Collection[str] | None
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    classes: list[Node] = field(default_factory=list)
    names: dict[str, set[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    loose: int = 0
    labelled: bool = False

    def is_known(self, name: str) -> bool:
        return self.known is not None and (name in self.known or clean_label(name) in self.known)

    def no_label(self, name: str) -> bool:
        return means_no_label(name) and not self.is_known(name)


def read_layout(walk: Walk, known: Collection[str] | None = None) -> tuple[list[Entry], str, list[str]]:
    """Labels of a walk's images from folder names: (entries in path order, layout, notes).

    known: where a person names classes by folders, the names that exist: they are classes whatever they look like,
    and a folder of folders is only taken for theirs where it holds one of them. A layout that is not documented is
    read as a person would, and a note says how. Raises UserError: one that can be read in two ways.
    """
    reading = _Reading(walk, known)
    root = tree_of(walk)
    _read(root, reading)
    entries = sorted(reading.entries, key=lambda entry: entry.path)
    notes = label_notes(entries) + reading.notes
    if all(entry.label is None for entry in entries):
        return entries, "no labels", notes + _about_folders(reading)
    notes += _about_classes(reading) + _about_folders(reading)
    if reading.loose:
        notes.append(f"{reading.loose} loose images beside the class folders are unlabelled")
    return entries, "labelled folder" if reading.labelled else "class folders", notes


def empty_folders(walk: Walk) -> list[str]:
    """A line on top-level folders without an image, for a walk that found none at all."""
    reading = _Reading(walk, None)
    _note_empty(tree_of(walk), reading)
    return [f"folders without an image: {first_few(reading.empty, _NAMED)}"] if reading.empty else []


def _read(node: Node, reading: _Reading) -> None:
    """Read a folder whose folders are classes, or lead to them."""
    _note_empty(node, reading)
    full = node.full()
    marked = {name: kid for name, kid in full.items() if means_labelled(name) and not reading.is_known(name)}
    silent = {name: kid for name, kid in full.items() if reading.no_label(name)}
    others = {name: kid for name, kid in full.items() if name not in marked and name not in silent}
    if marked:
        _read_labelled(marked, others, reading)
        others = {}
    _unlabelled(node.files, reading)
    for name, kid in silent.items():
        _silent(name, kid, reading)
    parts = {name: kid for name, kid in others.items() if means_part(name) and not reading.is_known(name)}
    if parts and (
        len(parts) == len(others) or (len(parts) > 1 and any(kid.full() for kid in parts.values()))
    ):
        _read_parts(parts, others, reading)
    elif len(others) == 1 and (means_photos(next(iter(others))) or not _lost_classes(node, reading)):
        ((name, kid),) = others.items()
        _read_only(name, kid, bool(silent or node.files), reading)
    else:
        for name, kid in others.items():
            if (below := _labelled_below(kid)) is not None:
                _refuse_beside(below, others.keys() - {name})
            if reading.is_known(name):
                _refuse_if_unclear(name, kid, reading)
            _class(name, kid, reading)


def _read_labelled(marked: dict[str, Node], others: dict[str, Node], reading: _Reading) -> None:
    """Class folders in labelled/: every folder there is a class, except one whose name says that it has no label."""
    top = min(kid.path for kid in marked.values())
    if not any(kid.full() for kid in marked.values()):
        raise UserError(
            f"'{printable(top)}' has no class folders: put its images into {printable(top)}/<class>/"
        )
    _refuse_beside(top, others)
    reading.labelled = True
    for node in marked.values():
        _note_empty(node, reading)
        _unlabelled(node.files, reading)
        kids = node.full()
        if kids and all(means_part(name) for name in kids) and any(kid.full() for kid in kids.values()):
            _read_parts(kids, kids, reading)
            continue
        for name, kid in kids.items():
            if reading.no_label(name):
                _silent(name, kid, reading)
            else:
                _class(name, kid, reading)


def _refuse_beside(labelled: str, others: Collection[str]) -> None:
    if others:
        raise UserError(
            f"'{printable(labelled)}' holds class folders beside others: {first_few(sorted(others))}; "
            "use either labelled/<class>/ beside unlabelled/, or <class>/ beside unlabelled/"
        )


def _labelled_below(node: Node) -> str | None:
    """A folder labelled/ with class folders somewhere in a folder."""
    for name, kid in node.full().items():
        below = kid.path if means_labelled(name) and kid.full() else _labelled_below(kid)
        if below is not None:
            return below
    return None


def _read_parts(parts: dict[str, Node], others: dict[str, Node], reading: _Reading) -> None:
    """Folders that cut a data set into parts for training and testing: none is a class."""
    names = sorted(kid.path for kid in parts.values())
    beside = sorted(kid.path for name, kid in others.items() if name not in parts)
    if beside:
        raise UserError(
            f"{first_few(names)} look like parts of a data set and hold class folders, beside others: "
            f"{first_few(beside)}; give a folder that has only parts or only classes, or a manifest"
        )
    before = len(reading.entries)
    for kid in parts.values():
        _read(kid, reading)
    found = reading.entries[before:]
    bare = sum(entry.label is None for entry in found)
    more = f"; {bare} images in no class folder of theirs are unlabelled" if bare else ""
    plural = len(names) > 1
    reading.notes.append(
        f"{first_few(names, 6)}: read as {'parts' if plural else 'a part'} of one data set and not as "
        f"{'classes; their class folders are joined' if plural else 'a class'}{more} "
        f"(a class of that name goes into labelled/{printable(min(parts))}/)"
    )


def _read_only(name: str, node: Node, beside: bool, reading: _Reading) -> None:
    """The only folder that may be a class: it is one, or it holds the classes, or photos of anything."""
    path = printable(node.path)
    inner = [each for each, kid in node.folders.items() if kid.images or may_be_class(kid, reading.walk)]
    dates = bool(inner) and all(means_date(each) for each in inner)
    if reading.is_known(name) or (reading.known is not None and not _holds_known(node, reading)):
        _refuse_if_unclear(name, node, reading)
        _class(name, node, reading)
    elif means_photos(name) and not beside and (not node.full() or dates):
        inside = (
            f", nor is one of its folders, by their names: {first_few(sorted(inner), _NAMED)}"
            if dates
            else ""
        )
        reading.notes.append(
            f"all images lie in {path}, which is read as a folder of photos and not as a class{inside}"
        )
        reading.entries += [Entry(each) for each in images_below(node)]
        _note_empty(node, reading)
    elif (
        _leads_to_classes(node, reading)
        or (means_photos(name) and node.full() and not dates)
        or (not beside and not node.files and len(inner) == 1)
    ):
        quiet = "move its folders up" if beside else f"give {path} itself"
        reading.notes.append(
            f"{path} is read as the folder of the classes and not as a class, as no other folder has "
            f"{'labels' if beside else 'images'}: {quiet} to keep this line away, or put its photos into "
            f"labelled/{printable(name)}/ if they are one class"
        )
        _read(node, reading)
    else:
        _note_empty(node, reading)
        _class(name, node, reading)


def _refuse_if_unclear(name: str, node: Node, reading: _Reading) -> None:
    """Where a person says what classes are, a folder of folders is no guess to make."""
    inner = sorted(node.full())
    several = len(inner) > 1 and not all(map(means_date, inner)) and not reading.is_known(name)
    if not node.files and (several or any(map(reading.is_known, inner))):
        path = printable(node.path)
        raise UserError(
            f"'{path}' may be one class or hold several: {first_few(inner)}; give that folder itself if they are "
            f"classes, or put its photos straight into it if they are one"
        )


def _holds_known(node: Node, reading: _Reading) -> bool:
    return any(reading.is_known(name) or _holds_known(kid, reading) for name, kid in node.full().items())


def _leads_to_classes(node: Node, reading: _Reading) -> bool:
    """Whether a folder, or the only one in it and so on, holds several that look like classes or are labelled/,
    unlabelled/, train/; one with images of its own only where it holds the documented ones."""
    while True:
        inner = {
            name: kid for name, kid in node.folders.items() if kid.images or may_be_class(kid, reading.walk)
        }
        full = {name for name, kid in inner.items() if kid.images}
        parted = [name for name in full if means_labelled(name) or means_part(name)]
        if any(map(says_unlabelled, full)) or any(inner[name].full() for name in parted):
            return True
        if node.files:
            return False
        if parted or any(map(reading.no_label, full)):
            return True
        if len(inner) != 1:
            return len(inner) > 1 and not all(means_date(name) for name in inner)
        (node,) = inner.values()


def _class(name: str, node: Node, reading: _Reading) -> None:
    label = clean_label(name) or name
    reading.names.setdefault(label, set()).add(name)
    reading.classes.append(node)
    reading.entries += [Entry(path, label) for path in images_below(node)]


def _silent(name: str, node: Node, reading: _Reading) -> None:
    if not says_unlabelled(name):
        reading.words.append(f"{node.path} ({node.images})")
    reading.entries += [Entry(path) for path in images_below(node)]


def _unlabelled(files: list[str], reading: _Reading) -> None:
    reading.loose += len(files)
    reading.entries += [Entry(path) for path in files]


def _note_empty(node: Node, reading: _Reading) -> None:
    """Keep the folders at or below a level of classes that have no image, with what they have instead."""
    for kid in node.folders.values():
        if kid.images:
            continue
        if kid.folders:  # they may be the classes
            _note_empty(kid, reading)
            continue
        others, system, hidden = held_instead(kid, reading.walk)
        counts = [f"{count} {kind}" for kind, count in others.most_common(2)]
        counts += [f"only {printable(each)}" for each in system[:1]]
        counts += [f"{hidden} hidden"] if hidden else []
        reading.empty.append(f"{kid.path} ({', '.join(counts)})" if counts else kid.path)


def _lost_classes(node: Node, reading: _Reading) -> bool:
    return any(
        not kid.images
        and not reading.no_label(name)
        and not means_labelled(name)
        and may_be_class(kid, reading.walk)
        for name, kid in node.folders.items()
    )


def _says_something(name: str) -> bool:
    return means_no_label(name) or means_labelled(name) or means_part(name)


def _about_folders(reading: _Reading) -> list[str]:
    notes = []
    if reading.words:
        notes.append(
            f"folders whose name says that there is no label: {first_few(reading.words, _NAMED)}; "
            "rename one that is a class"
        )
    if reading.empty:
        notes.append(f"folders without an image: {first_few(reading.empty, _NAMED)}")
    return notes


def _about_classes(reading: _Reading) -> list[str]:
    """Lines on class folders that may be meant otherwise."""
    notes = []
    same = [names for names in reading.names.values() if len(names) > 1]
    if same:
        shown = [" = ".join(repr(name) for name in sorted(names)) for names in same]
        notes.append(
            f"folders that are one class, their names differ only in how they are written: {first_few(shown)}"
        )
    inner = [sorted(kid.full()) for kid in reading.classes]
    if len(inner) > 1 and inner[0] and all(each == inner[0] for each in inner):
        notes.append(
            f"every class folder holds the same folders, which are read as part of their class: "
            f"{first_few(inner[0], 6)}; if these are the classes, put them at the top"
        )
    else:
        alone = len(reading.classes) == 1
        deep = [
            f"{node.path} ({first_few(each)})"
            for node, each in zip(reading.classes, inner, strict=True)
            if each and (alone or (not node.files and len(each) > reading.labelled))
        ]
        if deep:
            notes.append(
                f"class folders whose images lie in folders of their own are one class each: {first_few(deep)}; "
                "if those are the classes, give that folder itself or move them up"
            )
    nested = [
        kid.path
        for node in reading.classes
        for kid in node.folders.values()
        if kid.images and _says_something(kid.path.rpartition("/")[2])
    ]
    if nested:
        notes.append(
            f"folders in a class belong to it whatever they are called: {first_few(nested, _NAMED)}; "
            "move them up if that is wrong"
        )
    names = sorted(reading.names)
    near = [name for name in names if nearly_unlabelled(name) or means_part(name)]
    if near:
        notes.append(
            f"read as classes: {first_few(near, _NAMED)}; call such a folder 'unlabelled' if it is none"
        )
    if len(names) > 1 and all(means_date(name) for name in names):
        notes.append(f"classes named like dates or camera folders: {first_few(names)}; if they are none, put them "
                     "into a folder 'unlabelled'")  # fmt: skip
    vague = [name for name in names if means_photos(name) and not reading.is_known(name)]
    if vague:
        notes.append(f"classes named like folders of any photos: {first_few(vague)}; if one is none, give another "
                     "--data, or put its photos into a folder a class")  # fmt: skip
    return notes
