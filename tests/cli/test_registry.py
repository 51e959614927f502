from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]
Light = Callable[..., Path]


@pytest.fixture
def two(partgcd: Partgcd, light_bundle: Light) -> None:
    """A registry ``r`` with versions 1, the champion, and 2, the candidate."""
    light_bundle("one", ["c-1", "c-2"])
    light_bundle("two", ["c-1", "c-2", "c-3"])
    assert partgcd("registry", "init", "r").code == 0
    answer = partgcd("registry", "add", "r", "one")
    assert answer.code == 0 and "is version 1 (champion)" in answer.out
    answer = partgcd("registry", "add", "r", "two", "--alias", "candidate", "--note", "better")
    assert answer.code == 0 and "is version 2 (candidate)" in answer.out


@pytest.mark.usefixtures("two")
def test_versions_are_listed_for_people_and_programs(partgcd: Partgcd) -> None:
    lines = partgcd("registry", "list", "r").out.splitlines()
    assert lines[0].split() == ["version", "alias", "classes", "parent", "added", "bundle", "note"]
    assert lines[1].split()[:3] == ["1", "champion", "2"] and lines[2].endswith("better")
    rows = list(csv.DictReader(io.StringIO(partgcd("registry", "list", "r", "--format", "csv").out)))
    assert [(row["version"], row["alias"]) for row in rows] == [("1", "champion"), ("2", "candidate")]
    told = [
        json.loads(line) for line in partgcd("registry", "list", "r", "--format", "jsonl").out.splitlines()
    ]
    assert told[1]["note"] == "better" and told[1]["classes"] == 3
    assert "no format 'xml'" in partgcd("registry", "list", "r", "--format", "xml").error


@pytest.mark.usefixtures("two")
def test_aliases_move_and_say_so(partgcd: Partgcd) -> None:
    assert partgcd("registry", "promote", "r", "--why", "looks good").out == "version 2 is the champion\n"
    shown = json.loads(partgcd("registry", "show", "r").out)
    assert shown["version"] == 2 and shown["path"].endswith("versions/000002/bundle")
    assert any(move["why"] == "looks good" and move["alias"] == "champion" for move in shown["moves"])
    assert partgcd("registry", "rollback", "r").out == "version 1 is the champion again\n"
    answer = partgcd("registry", "verify", "r")
    assert answer.code == 0 and "2 versions are whole; champion is 1" in answer.out


@pytest.mark.usefixtures("two")
def test_verify_names_what_is_spoilt(partgcd: Partgcd, tmp_path: Path) -> None:
    (tmp_path / "r" / "versions" / "000002" / "bundle" / "model.onnx").write_bytes(b"other")
    answer = partgcd("registry", "verify", "r")
    assert answer.code == 1 and "model.onnx" in answer.err and "Traceback" not in answer.err
    assert "model.onnx" in partgcd("registry", "promote", "r", "2").error


@pytest.mark.usefixtures("two")
def test_wrong_words_are_one_line(partgcd: Partgcd, light_bundle: Light) -> None:
    light_bundle("strange", ["c-7"])
    for words, code, told in (
        (["registry", "add", "r", "strange"], 2, "another family"),
        (["registry", "add", "r", "nothing"], 2, "no bundle in"),
        (["registry", "add", "r", "one", "--alias", "best"], 2, "no alias 'best'"),
        (["registry", "show", "r", "9"], 1, "no version 9"),
        (["registry", "list", "nowhere"], 2, "no registry in"),
        (["registry", "rollback", "r"], 1, "no previous"),
    ):
        answer = partgcd(*words)
        assert answer.code == code and told in answer.error, words
