"""Which classes a registry has: of every version, living and retired, under the names that people gave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from partgcd.config.errors import UserError
from partgcd.export.bundle import MANIFEST
from partgcd.export.manifest import ClassEntry, parse_manifest
from partgcd.registry.log import Identity, fold, read_log
from partgcd.registry.overlay import make_overlay
from partgcd.registry.versions import Registry, Version


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
    for number, own in _entries(versions):
        first.setdefault(own.id, (number, own.index))
        entries[own.id] = own
    champion = registry.aliases().get("champion", versions[-1].number if versions else 0)
    current = [version for version in versions if version.number == champion]
    columns = {entry.id: entry for entry in entries_of(current[0])} if current else {}
    counts = counts_of(identity, columns)
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


def entries_of(version: Version) -> list[ClassEntry]:
    """The classes of a version, by column, as its bundle tells them. Raises UserError where it can't be read."""
    file = version.bundle / MANIFEST
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"'{file}' can't be read ({error.strerror or error})", 1) from error
    return parse_manifest(data).classes


def first_sizes(registry: Registry) -> dict[str, int]:
    """Images, labelled and assigned, that each class had in the first version that knew it.

    A class that others were merged into had theirs too: photos of all of them come to it.
    """
    sizes: dict[str, int] = {}
    for _, entry in _entries(registry.versions()):
        sizes.setdefault(entry.id, entry.labelled + entry.assigned)
    identity = read_identity(registry)
    joined = dict.fromkeys(map(identity.canonical, sizes), 0)
    for name, size in sizes.items():
        joined[identity.canonical(name)] += size
    return joined


def _entries(versions: list[Version]) -> Iterator[tuple[int, ClassEntry]]:
    """Every class as every version tells it, with the version's number, oldest first."""
    for version in versions:
        yield from ((version.number, entry) for entry in entries_of(version))


def _age(name: str, first: dict[str, tuple[int, int]], identity: Identity) -> tuple[int, int, int, int]:
    """Sorts older classes before younger ones; children come after the classes of the version they split."""
    if name in identity.minted:
        version, seq = identity.minted[name]
        parent = identity.parents.get(name)
        side = identity.splits[parent].children.index(name) if parent is not None else 0
        return version, 1, seq, side
    version, column = first[name]
    return version, 0, column, 0


def counts_of(identity: Identity, columns: dict[str, ClassEntry]) -> dict[str, tuple[int, int]]:
    """(labelled, assigned) of every class that answers, as the overlay shares them out."""
    dummies = {name: np.eye(2, dtype=np.float32) for name in identity.splits}
    made = make_overlay(identity, list(columns.values()), dummies)
    return {entry.id: (entry.labelled, entry.assigned) for entry in made.classes}
