"""What people do to classes: rename, annotate, merge, split, undo. Each is one line in the registry's log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.data.names import printable
from partgcd.export.bundle import EXEMPLARS, Bundle, open_bundle, read_tensors
from partgcd.export.graph_names import FEATURE
from partgcd.registry.log import (
    Event,
    Identity,
    append,
    checked_note,
    fold,
    last_undoable,
    mint,
    read_log,
)
from partgcd.registry.naming import (
    checked_class_name,
    find_class,
    ids_by_word,
    living,
    name_key,
    refuse_taken,
    unique_name,
)
from partgcd.registry.overlay import overlay_of
from partgcd.registry.roster import ClassRow, counts_of, entries_of, first_sizes, list_classes, read_identity
from partgcd.registry.versions import WAIT, Registry, Version

__all__ = [  # with what says who there is, so that who deals with classes looks in one place
    "ClassRow", "find_class", "first_sizes", "history", "ids_by_word", "list_classes", "merge", "note", "read_identity",
    "rename", "settle_names", "split", "undo",
]  # fmt: skip

_SMALLEST = 4
"""Exemplars that a class must have to be split."""


def rename(registry: Registry, word: str, name: str, wait: float = WAIT) -> Event:
    """Give a class a name, which stays whatever is trained later.

    Args:
        word: its id, or a name that means it alone.
        wait: seconds to wait for another process that changes the registry.

    Raises:
        InvalidName: no class can have the name.
        NameTaken: another class has it, or one like it, or an id like it.
        UserError: no such class, it is retired; code 75 where another process would not finish.
    """
    name = checked_class_name(name)
    with registry.changing("renaming a class", wait):
        rows = list_classes(registry)
        row = living(find_class(registry, word))
        refuse_taken(rows, name, row.id)
        return append(registry.log, "rename", id=row.id, name=name, before=row.name)


def note(registry: Registry, word: str, text: str) -> Event:
    """Write something down about a class. Raises UserError where there is no such class, or the text is too long."""
    text = checked_note(text)
    with registry.changing("noting"):
        return append(registry.log, "note", id=find_class(registry, word).id, text=text)


def settle_names(registry: Registry, version: Version) -> list[str]:
    """Give classes of a new version whose names others have names of their own; what was done, a line each.

    Names that people gave are kept, and so are those of classes that were there before. Classes that people labelled
    apart in one training keep names that are alike but not the same; that is only told.
    """
    with registry.changing("settling names"):
        rows, identity = list_classes(registry), read_identity(registry)
        entries = [entry for entry in entries_of(version) if identity.active(entry.id)]
        known = {row.id: row for row in rows if row.since < version.number}
        own = {entry.id for entry in entries}
        holders = {name_key(row.name): row for row in reversed(rows) if row.status in ("active", "dormant")
                   and (row.id not in own or row.id in identity.names)}  # fmt: skip
        names = {key: (row.id, row.name) for key, row in holders.items()}
        taken = set(names) | {name_key(row.id) for row in rows}
        kinds = {entry.id: entry.kind for entry in entries}
        notes = []
        for entry in entries:
            if entry.id in identity.names:
                continue
            key = name_key(entry.name)
            if key not in taken:
                taken.add(key)
                names[key] = (entry.id, entry.name)
                continue
            other, name = names.get(key, (entry.name, entry.name))
            shown = f"class {other} is called '{printable(name)}'"
            if entry.kind == "old" == kinds.get(other) and name != entry.name:
                notes.append(f"{shown} and {entry.id} '{printable(entry.name)}': merge or rename one of them")
                continue
            wanted = unique_name(known[entry.id].name if entry.id in known else entry.name, taken)
            append(registry.log, "rename", id=entry.id, name=wanted, before=entry.name, settled=True)
            taken.add(name_key(wanted))
            notes.append(f"{shown}, so {entry.id} is called '{printable(wanted)}' from now on")
        return notes


def merge(registry: Registry, one: str, other: str) -> Event:
    """Make two classes one: the older id survives, the other answers with it, probabilities are summed.

    Raises:
        UserError: no such class, one of them is retired, or both are the same.
    """
    with registry.changing("merging classes"):
        first, second = (living(find_class(registry, word), answering=True) for word in (one, other))
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
        row = living(find_class(registry, word), answering=True)
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
        rows = list_classes(registry)
        taken = {each.id for each in rows} | set(identity.minted)
        words = {name_key(each) for each in taken} | {
            name_key(each.name) for each in rows if each.status in ("active", "dormant")
        }
        children = []
        for side in (0, 1):
            own = halves == side
            mean = cls[own].mean(axis=0)
            mean = mean / max(float(np.linalg.norm(mean)), 1e-12)
            child = mint(taken)
            taken.add(child)
            name = unique_name(f"{row.name} {'AB'[side]}", words)
            words.add(name_key(name))
            children.append({
                "id": child,
                "name": name,
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
            columns = {entry.id: entry for entry in entries_of(champion)}
            before = fold([*events, {"seq": len(events) + 1, "op": "undo", "undoes": last["seq"]}])
            if last["id"] not in counts_of(before, columns):
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
