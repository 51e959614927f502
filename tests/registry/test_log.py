from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from partgcd.config.errors import UserError
from partgcd.registry.log import append, checked_name, checked_note, fold, last_undoable, mint, read_log

ROOTS = [f"c-{number}" for number in range(4)]


def split_of(parent: str, first: str, second: str) -> dict[str, Any]:
    children = [
        {"id": name, "name": name, "prototype": [1.0, 0.0], "keys": ["00"]} for name in (first, second)
    ]
    return {"id": parent, "children": children, "bundle": "b", "version": 1}


class Log(RuleBasedStateMachine):
    """Whatever people do and undo, every id has one fate, and no id is ever given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.before: list[dict[str, Any]] = []
        self.minted: list[str] = []

    def tell(self, op: str, **fields: Any) -> None:
        if op != "undo":
            self.before.append(vars(fold(self.events)))
        self.events.append({"seq": len(self.events) + 1, "op": op, **fields})

    def active(self) -> list[str]:
        state = fold(self.events)
        return [name for name in (*ROOTS, *state.parents) if state.active(name)]

    @rule(pick=st.integers(0, 99), name=st.text("ab", min_size=1, max_size=3))
    def rename(self, pick: int, name: str) -> None:
        self.tell("rename", id=self.active()[pick % len(self.active())], name=name)

    @precondition(lambda self: len(self.active()) > 1)
    @rule(one=st.integers(0, 99), other=st.integers(1, 99))
    def merge(self, one: int, other: int) -> None:
        names = self.active()
        first = one % len(names)
        second = (first + 1 + other % (len(names) - 1)) % len(names)
        self.tell("merge", id=names[first], into=names[second])

    @rule(pick=st.integers(0, 99))
    def split(self, pick: int) -> None:
        taken = {*ROOTS, *fold(self.events).minted}
        first = mint(taken)
        second = mint(taken | {first})
        self.minted += [first, second]
        self.tell("split", **split_of(self.active()[pick % len(self.active())], first, second))

    @rule()
    def undo(self) -> None:
        last = last_undoable(self.events)
        if last is None:
            return
        self.tell("undo", undoes=last["seq"])
        state, was = vars(fold(self.events)), self.before.pop()
        assert {**state, "minted": None} == {**was, "minted": None}, "undo is not what was before"

    @invariant()
    def every_id_has_one_fate(self) -> None:
        state = fold(self.events)
        assert len(self.minted) == len(set(self.minted)) and set(self.minted) == set(state.minted)
        assert not set(state.merged) & set(state.splits), "merged and split at once"
        for name in (*ROOTS, *state.parents):
            end = state.canonical(name)
            assert end not in state.merged
        assert self.active(), "every class is gone"
        for parent, made in state.splits.items():
            assert all(state.parents[child] == parent for child in made.children)


Log.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_ids_keep_their_meaning = Log.TestCase


def test_a_line_that_a_kill_cut_off_is_nobodys(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_log(file) == []
    append(file, "rename", id="c-1", name="ä", before="a")
    whole = file.read_bytes()
    append(file, "note", id="c-1", text="x" * 100)
    both = file.read_bytes()
    for cut in range(len(whole), len(both)):
        file.write_bytes(both[:cut])
        assert [event["op"] for event in read_log(file)] == ["rename"]
    append(file, "rename", id="c-1", name="b", before="ä")
    assert [event["seq"] for event in read_log(file)] == [1, 2]
    assert [event["name"] for event in read_log(file)] == ["ä", "b"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "log"
    for name in "abc":
        append(file, "rename", id="c-1", name=name, before="")
    lines = file.read_bytes().splitlines(keepends=True)
    for bad in (b"{\n", json.dumps({"seq": 9, "op": "note"}).encode() + b"\n", b"[]\n"):
        file.write_bytes(lines[0] + bad + lines[2])
        with pytest.raises(UserError, match="line 2"):
            read_log(file)


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "two\nlines", "a\x00b", "\ud800"])
def test_names_that_can_not_be(name: str) -> None:
    with pytest.raises(UserError):
        checked_name(name)


def test_names_and_notes_are_tidied() -> None:
    assert checked_name("  Käfer ") == "Käfer"
    assert checked_note(" seen\nin May ") == "seen\nin May"
    with pytest.raises(UserError):
        checked_note("x" * 5000)
