from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]


@pytest.fixture(autouse=True)
def registry(partgcd: Partgcd, light_bundle: Callable[..., Path]) -> None:
    """A registry ``r`` whose champion knows c-1, c-2 and c-3."""
    light_bundle("one", ["c-1", "c-2", "c-3"])
    assert partgcd("registry", "init", "r").code == partgcd("registry", "add", "r", "one").code == 0


def rows(partgcd: Partgcd, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(partgcd("classes", "list", "r", "--format", "csv", *words).out)))


def test_classes_are_listed_by_id(partgcd: Partgcd) -> None:
    assert [row["id"] for row in rows(partgcd)] == ["c-1", "c-2", "c-3"]
    lines = partgcd("classes", "list", "r", "--format", "jsonl").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["c-1", "c-2", "c-3"]
    assert partgcd("classes", "list", "r").out.splitlines()[1].startswith("c-1  name 0  old   active")


def test_names_merges_and_notes_are_told_and_taken_back(partgcd: Partgcd) -> None:
    assert partgcd("classes", "rename", "r", "name 0", "Käfer").out == "c-1 is now 'Käfer' (was 'name 0')\n"
    assert partgcd("classes", "merge", "r", "c-3", "Käfer").out.startswith("c-3 is merged into c-1; ")
    assert [(row["id"], row["name"], row["assigned"]) for row in rows(partgcd)] == [
        ("c-1", "Käfer", "8"), ("c-2", "name 1", "4"),
    ]  # fmt: skip
    assert [row["status"] for row in rows(partgcd, "--all")] == ["active", "active", "merged"]
    assert partgcd("classes", "note", "r", "c-2", "rare").code == 0
    assert json.loads(partgcd("classes", "show", "r", "c-2").out)["note"] == "rare"
    assert json.loads(partgcd("classes", "show", "r", "c-3").out)["merged_into"] == "c-1"
    for op in ("note", "merge", "rename"):
        assert partgcd("classes", "undo", "r").out.startswith(f"undone: {op} of c-")
    assert [row["name"] for row in rows(partgcd)] == ["name 0", "name 1", "name 2"]
    history = partgcd("classes", "history", "r").out.splitlines()
    assert len(history) == 7 and "'name 0' to 'Käfer'" in history[1] and history[1].endswith("True")
    told = [
        json.loads(line) for line in partgcd("classes", "history", "r", "--format", "jsonl").out.splitlines()
    ]
    assert [event["op"] for event in told] == ["rename", "merge", "note", "undo", "undo", "undo"]


def test_wrong_words_are_one_line(partgcd: Partgcd) -> None:
    for words, told in (
        (["rename", "r", "c-9", "x"], "no class 'c-9'"),
        (["rename", "r", "c-1", " "], "visible characters"),
        (["merge", "r", "c-1", "c-1"], "the same class"),
        (["split", "r", "c-1"], "gives no class tokens"),
        (["undo", "r"], "nothing to undo"),
        (["list", "nowhere"], "no registry in"),
    ):
        answer = partgcd("classes", *words)
        assert answer.code in (1, 2) and told in answer.error, words
