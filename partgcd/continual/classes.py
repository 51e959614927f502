"""What people do to classes: rename, annotate, merge, split, undo. Each is one line in the registry's log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.continual.identity import (
    Event,
    Identity,
    append,
    checked_name,
    checked_note,
    fold,
    last_undoable,
    mint,
    read_log,
)
from partgcd.continual.overlay import make_overlay, overlay_of
from partgcd.continual.registry import Registry, Version
from partgcd.export.bundle import EXEMPLARS, Bundle, open_bundle, read_tensors
from partgcd.export.graph_names import FEATURE
from partgcd.export.manifest import ClassEntry, parse_manifest

_SMALLEST = 4
"""Exemplars that a class must have to be split."""


@dataclass(frozen=True)
class ClassRow:
    """A class as people see it, living or not.

    Attributes:
        id: stable for life.
        status: 'active'; 'merged' into ``merged_into``; 'split' into ``split_into``; 'dormant' where the champion
            has no such class (it was rolled back).
        parent: the class it was split from.
        since: version that it first came with.
        labelled, assigned: images of the champion's training, merged ones summed.
    """

    id: str
    name: str
    kind: str
    status: str
    merged_into: str | None
    split_into: tuple[str, str] | None
    parent: str | None
    since: int
    labelled: int
    assigned: int
    note: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"split_into": list(self.split_into) if self.split_into else None}


def read_identity(registry: Registry) -> Identity:
    """The state of all classes."""
    return fold(read_log(registry.log))


def list_classes(registry: Registry) -> list[ClassRow]:
    """Every class that ever was, oldest first; those of the champion (or the newest version) are active."""
    identity, versions = read_identity(registry), registry.versions()
    first: dict[str, tuple[int, int]] = {}
    entries: dict[str, ClassEntry] = {}
    for number, told in _told(versions):
        first.setdefault(told.id, (number, told.index))
        entries[told.id] = told
    champion = registry.aliases().get("champion", versions[-1].number if versions else 0)
    current = [version for version in versions if version.number == champion]
    columns = {entry.id: entry for entry in _entries(current[0])} if current else {}
    counts = _counts(identity, columns)
    rows = []
    for name in sorted({*first, *identity.parents}, key=lambda name: _age(name, first, identity)):
        origin = name
        while origin in identity.parents:
            origin = identity.parents[origin]
        entry = columns.get(name) or entries.get(name) or columns.get(origin) or entries.get(origin)
        status = "merged" if name in identity.merged else "split" if name in identity.splits else "active"
        if status == "active" and name not in counts:
            status = "dormant"
        split = identity.splits.get(name)
        labelled, assigned = counts.get(name, (0, 0))
        rows.append(
            ClassRow(
                name,
                identity.names.get(name) or (entry.name if entry else name),
                entry.kind if entry else "discovered",
                status,
                identity.canonical(name) if name in identity.merged else None,
                split.children if split else None,
                identity.parents.get(name),
                first[name][0] if name in first else identity.minted[name][0],
                labelled,
                assigned,
                identity.notes.get(name, ""),
            )
        )
    return rows


def find_class(registry: Registry, word: str) -> ClassRow:
    """The class with id or (unique) name ``word``.

    Raises:
        UserError: none, or several of that name.
    """
    rows = list_classes(registry)
    for row in rows:
        if row.id == word:
            return row
    named = [row for row in rows if row.name == word and row.status in ("active", "dormant")]
    if len(named) == 1:
        return named[0]
    if named:
        raise UserError(
            f"{len(named)} classes are named '{word}': give an id ({', '.join(r.id for r in named)})"
        )
    raise UserError(f"no class '{word}': partgcd classes list '{registry.path}' names them")


def ids_by_word(registry: Registry) -> dict[str, str]:
    """Class ids by id and by name; what was merged goes by its old name and id as well."""
    rows = list_classes(registry)
    active = [row for row in rows if row.status == "active"]
    ids = {row.id for row in active}
    merged = {word: row.merged_into for row in rows if row.merged_into in ids for word in (row.name, row.id)}
    return merged | {row.name: row.id for row in active} | {row.id: row.id for row in active}


def rename(registry: Registry, word: str, name: str) -> Event:
    """Give a class a name, which stays whatever is trained later.

    Raises:
        UserError: no such class, it is retired, or the name can't be one.
    """
    name = checked_name(name)
    with registry.changing("renaming a class"):
        row = _living(find_class(registry, word))
        return append(registry.log, "rename", id=row.id, name=name, before=row.name)


def note(registry: Registry, word: str, text: str) -> Event:
    """Write something down about a class. Errors as `rename`."""
    text = checked_note(text)
    with registry.changing("noting"):
        return append(registry.log, "note", id=find_class(registry, word).id, text=text)


def merge(registry: Registry, one: str, other: str) -> Event:
    """Make two classes one: the older id survives, the other answers with it, probabilities are summed.

    Raises:
        UserError: no such class, one of them is retired, or both are the same.
    """
    with registry.changing("merging classes"):
        first, second = (_living(find_class(registry, word), answering=True) for word in (one, other))
        if first.id == second.id:
            raise UserError(f"'{one}' and '{other}' are the same class")
        order = [row.id for row in list_classes(registry)]
        older, younger = sorted((first, second), key=lambda row: order.index(row.id))
        return append(registry.log, "merge", id=younger.id, into=older.id)


def split(registry: Registry, word: str, seed: int = 0) -> Event:
    """Make a class two: its exemplars are clustered, and the nearer of the two centres decides from now on.

    The parent retires; its children have new ids and names made of its own.

    Raises:
        UserError: no such class, it is retired, the champion does not know it, or it has too few exemplars.
    """
    with registry.changing("splitting a class"):
        row = _living(find_class(registry, word), answering=True)
        champion = registry.version("champion")
        bundle = open_bundle(champion.bundle)
        if FEATURE not in bundle.manifest.graph.outputs:
            raise UserError(
                f"'{bundle.path}' gives no class tokens, which a split needs: export its run again", 1
            )
        identity = read_identity(registry)
        keys, cls = _own_exemplars(bundle, identity, row.id)
        if len(keys) < _SMALLEST:
            raise UserError(
                f"'{row.name}' has {len(keys)} exemplars in the champion, a split needs {_SMALLEST}", 1
            )
        halves = _halves(cls, seed)
        taken = {each.id for each in list_classes(registry)} | set(identity.minted)
        children = []
        for side in (0, 1):
            own = halves == side
            mean = cls[own].mean(axis=0)
            mean = mean / max(float(np.linalg.norm(mean)), 1e-12)
            child = mint(taken)
            taken.add(child)
            children.append({
                "id": child,
                "name": f"{row.name} {'AB'[side]}",
                "prototype": [round(float(value), 7) for value in mean],
                "keys": [f"{int(key):016x}" for key in keys[own]],
            })  # fmt: skip
        return append(
            registry.log, "split", id=row.id, children=children, bundle=bundle.id, version=champion.number
        )


def undo(registry: Registry) -> Event:
    """Take back the newest change that still stands; the line that is undone is returned.

    Raises:
        UserError: there is none, or the champion was trained with it.
    """
    with registry.changing("undoing"):
        events = read_log(registry.log)
        last = last_undoable(events)
        if last is None:
            raise UserError("nothing to undo", 1)
        if last["op"] in ("merge", "split"):
            champion = registry.version("champion")
            columns = {entry.id: entry for entry in _entries(champion)}
            before = fold([*events, {"seq": len(events) + 1, "op": "undo", "undoes": last["seq"]}])
            if last["id"] not in _counts(before, columns):
                raise UserError(
                    f"version {champion.number} was trained with this {last['op']}: roll back first, or "
                    f"{'split' if last['op'] == 'merge' else 'merge'} again",
                    1,
                )
        append(registry.log, "undo", undoes=last["seq"])
        return last


def history(registry: Registry, word: str | None = None) -> list[Event]:
    """The log, oldest first, undone lines marked; of one class only if ``word`` names one."""
    events = read_log(registry.log)
    undone = {event["undoes"] for event in events if event["op"] == "undo"}
    marked = [{**event, "undone": event["seq"] in undone} for event in events]
    if word is None:
        return marked
    name = find_class(registry, word).id
    return [event for event in marked if name in _mentions(event, events)]


def _mentions(event: Event, events: list[Event]) -> set[str]:
    if event["op"] == "undo":
        return _mentions(events[event["undoes"] - 1], events)
    return {event["id"], event.get("into", ""), *(child["id"] for child in event.get("children", ()))}


def _living(row: ClassRow, answering: bool = False) -> ClassRow:
    if row.status == "merged":
        raise UserError(f"'{row.name}' was merged into {row.merged_into}: name that one")
    if row.status == "split":
        raise UserError(f"'{row.name}' was split into {' and '.join(row.split_into or ())}: name one of them")
    if answering and row.status == "dormant":
        raise UserError(f"the champion does not know '{row.name}'", 1)
    return row


def _halves(cls: NDArray[np.float32], seed: int) -> NDArray[np.int64]:
    """0 or 1 for each of the exemplars' class tokens [M, D]; both occur."""
    from sklearn.cluster import KMeans  # takes half a second that no other command needs

    found: NDArray[np.int64] = KMeans(2, n_init=10, random_state=seed).fit_predict(cls).astype(np.int64)
    if len(np.unique(found)) < 2:
        raise UserError("its exemplars are all alike: there is nothing to split", 1)
    # The larger half first, so that a split is the same whatever k-means calls its clusters.
    return found if (found == 0).sum() >= (found == 1).sum() else 1 - found


def _own_exemplars(
    bundle: Bundle, identity: Identity, name: str
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """Keys and unit-norm class tokens of the champion's exemplars that answer with class ``name``."""
    found = read_tensors(bundle, EXEMPLARS)
    cls = found["cls"].astype(np.float32)
    cls /= np.maximum(np.linalg.norm(cls, axis=1, keepdims=True), 1e-12)
    overlay = overlay_of(bundle, identity)
    columns = np.zeros((len(cls), len(bundle.manifest.classes)), dtype=np.float32)
    columns[np.arange(len(cls)), found["classes"].astype(np.int64)] = 1.0
    place = [entry.id for entry in overlay.classes]
    if name not in place:
        raise UserError(f"the champion does not know class {name}", 1)
    own = overlay(columns, cls).argmax(axis=1) == place.index(name)
    return found["keys"][own], cls[own]


def _entries(version: Version) -> list[ClassEntry]:
    return parse_manifest((version.bundle / "manifest.json").read_bytes()).classes


def first_sizes(registry: Registry) -> dict[str, int]:
    """Images, labelled and assigned, that each class had in the first version that knew it.

    A class that others were merged into had theirs too: photos of all of them come to it.
    """
    sizes: dict[str, int] = {}
    for _, entry in _told(registry.versions()):
        sizes.setdefault(entry.id, entry.labelled + entry.assigned)
    identity = read_identity(registry)
    joined = dict.fromkeys(map(identity.canonical, sizes), 0)
    for name, size in sizes.items():
        joined[identity.canonical(name)] += size
    return joined


def _told(versions: list[Version]) -> Iterator[tuple[int, ClassEntry]]:
    """Every class as every version tells it, with the version's number, oldest first."""
    for version in versions:
        yield from ((version.number, entry) for entry in _entries(version))


def _age(name: str, first: dict[str, tuple[int, int]], identity: Identity) -> tuple[int, int, int, int]:
    """Sorts older classes before younger ones; children come after the classes of the version they split."""
    if name in identity.minted:
        version, seq = identity.minted[name]
        parent = identity.parents.get(name)
        side = identity.splits[parent].children.index(name) if parent is not None else 0
        return version, 1, seq, side
    version, column = first[name]
    return version, 0, column, 0


def _counts(identity: Identity, columns: dict[str, ClassEntry]) -> dict[str, tuple[int, int]]:
    """(labelled, assigned) of every class that answers, as the overlay shares them out."""
    dummies = {name: np.eye(2, dtype=np.float32) for name in identity.splits}
    made = make_overlay(identity, list(columns.values()), dummies)
    return {entry.id: (entry.labelled, entry.assigned) for entry in made.classes}
