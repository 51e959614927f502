"""Who a class is, whatever the model of the day: an append-only log of names, notes, merges and splits.

The state is a fold over the log, so that undo is one more line and nothing is ever lost. A line is one write; a line
that a kill cut off has no newline, is read by nobody, and is cut away before the next one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.data.names import clean_label, printable, storable
from partgcd.disk.files import append_line, whole_lines

Event = dict[str, Any]

_LONGEST_NAME, _LONGEST_NOTE = 200, 4000


@dataclass(frozen=True)
class Split:
    """A class that became two.

    Attributes:
        children: ids of the two.
        prototypes: [2][D] unit-norm class tokens; the nearer one decides.
        keys: content keys of the exemplars that each one was made from.
        bundle: id of the bundle whose class tokens they are.
    """

    children: tuple[str, str]
    prototypes: tuple[tuple[float, ...], tuple[float, ...]]
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    bundle: str


@dataclass
class Identity:
    """What the log says, undone lines left out.

    Attributes:
        names, notes: by class id, where a person set one.
        merged: id to the id that answers for it.
        splits: retired parent to its split.
        parents: child to the parent it was split from.
        minted: ids that splits ever made, undone ones too, with the line and version that made them.
    """

    names: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    splits: dict[str, Split] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    minted: dict[str, tuple[int, int]] = field(default_factory=dict)

    def canonical(self, name: str) -> str:
        """The id that answers for ``name`` after merges; a retired parent stays itself."""
        while name in self.merged:
            name = self.merged[name]
        return name

    def active(self, name: str) -> bool:
        """Whether ``name`` can still be an answer."""
        return name not in self.merged and name not in self.splits


def fold(events: Iterable[Event]) -> Identity:
    """The state after ``events``, oldest first."""
    events = list(events)
    undone = {event["undoes"] for event in events if event["op"] == "undo"}
    state = Identity()
    for event in events:
        if event["op"] == "split":
            for child in event["children"]:
                state.minted[child["id"]] = (int(event["version"]), int(event["seq"]))
        if event["seq"] in undone:
            continue
        if event["op"] == "rename":
            state.names[event["id"]] = event["name"]
        elif event["op"] == "note":
            state.notes[event["id"]] = event["text"]
        elif event["op"] == "merge":
            state.merged[event["id"]] = event["into"]
        elif event["op"] == "split":
            first, second = event["children"]
            state.splits[event["id"]] = Split(
                (first["id"], second["id"]),
                (tuple(first["prototype"]), tuple(second["prototype"])),
                (tuple(first["keys"]), tuple(second["keys"])),
                event["bundle"],
            )
            for child in event["children"]:
                state.parents[child["id"]] = event["id"]
                state.names[child["id"]] = child["name"]
    return state


def last_undoable(events: list[Event]) -> Event | None:
    """The newest line that a person made and that is neither an undo nor undone."""
    undone = {event["undoes"] for event in events if event["op"] == "undo"}
    for event in reversed(events):
        if event["op"] != "undo" and event["seq"] not in undone and not event.get("settled"):
            return event
    return None


def read_log(file: Path) -> list[Event]:
    """The lines of a log, oldest first.

    Raises:
        UserError: a line in the middle is damaged.
    """
    try:
        lines = whole_lines(file)
    except FileNotFoundError:
        return []
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            if event["seq"] != number or not isinstance(event["op"], str):
                raise ValueError("out of order")
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{file}' is damaged in line {number}: {error}", 1) from error
        events.append(event)
    return events


def append(file: Path, op: str, **fields: Any) -> Event:
    """Add one line; only for who holds the registry's lock."""
    events = read_log(file)
    event: Event = {
        "seq": len(events) + 1,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "op": op,
        **fields,
    }
    append_line(file, json.dumps(event, ensure_ascii=False, allow_nan=False).encode())
    return event


def mint(taken: set[str]) -> str:
    """A new random id that nobody has or had."""
    while True:
        name = f"c-{secrets.token_hex(5)}"
        if name not in taken:
            return name


def checked_name(name: str) -> str:
    """A name as people may give it, tidied.

    Raises:
        UserError: empty, too long, or nothing that can be shown.
    """
    cleaned = clean_label(name)
    if not cleaned or len(cleaned) > _LONGEST_NAME or printable(cleaned) != cleaned:
        raise UserError(f"a class name has 1 to {_LONGEST_NAME} visible characters")
    return cleaned


def checked_note(text: str) -> str:
    """A note as people may give it. Raises UserError where it is too long."""
    text = storable(text)
    if len(text) > _LONGEST_NOTE:
        raise UserError(f"a note has at most {_LONGEST_NOTE} characters")
    return text.strip()
