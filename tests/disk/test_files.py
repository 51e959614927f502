from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.config.errors import UserError
from partgcd.disk.files import disk_errors, read_json, write_bytes, write_csv, write_json, write_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "file.bin", b"\0\1")
    assert (tmp_path / "a" / "b" / "file.bin").read_bytes() == b"\0\1"
    assert names(tmp_path / "a" / "b") == ["file.bin"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_failure_in_the_middle_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    file = tmp_path / "file"
    write_text(file, "old")

    def fail(*_: object) -> None:
        raise RuntimeError("the power went")

    monkeypatch.setattr(*((os, "fsync") if moment == "fsync" else (Path, "replace")), fail)
    with pytest.raises(RuntimeError):
        write_text(file, "new and longer")
    assert file.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_what_is_on_disk_when_the_name_changes_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []
    replace = Path.replace

    def watch(self: Path, target: Path) -> Path:
        seen.append((self.read_text(), target.read_text() if target.exists() else None))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    write_text(tmp_path / "file", "one")
    write_text(tmp_path / "file", "two")
    assert seen == [("one", None), ("two", "one")]


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOSPC, 1, "disk is full"),
        (errno.EDQUOT, 1, "disk is full"),
        (errno.EACCES, 1, "not allowed"),
        (errno.EROFS, 1, "not allowed"),
        (errno.ENOTDIR, 2, "choose another --out"),
        (errno.ENAMETOOLONG, 2, "choose another --out"),
    ],
)
def test_a_disk_that_refuses_is_one_line_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, words: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    file = tmp_path / "metrics.json"
    file.write_text("{}")
    with pytest.raises(UserError, match=words) as caught:
        write_json(file, {"a": 1})
    assert caught.value.code == code
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert file.read_text() == "{}"
    assert names(tmp_path) == ["metrics.json"]


def test_a_path_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out"):
        write_bytes(tmp_path / "file" / "inside", b"")


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), disk_errors(tmp_path):
        raise ConnectionError(errno.ECONNRESET, "reset")


@given(value=JSON)
def test_json_comes_back_equal_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "value.json"
    write_json(file, value)
    back = read_json(file)
    assert back == value
    assert json.dumps(back) == json.dumps(value)  # tells 1 from 1.0 and -0.0 from 0.0


def test_a_path_that_is_no_utf8_comes_back_from_json(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"data": "a\udcffb"})
    assert read_json(tmp_path / "file") == {"data": "a\udcffb"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused_and_leave_no_file(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "file", [value])
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"\xff\xfe"])
def test_missing_or_damaged_json_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"run\.json") as caught:
        read_json(file)
    assert caught.value.code == 1
    assert "\n" not in str(caught.value)


@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\r\0")),
            st.text(st.characters(codec="utf-8", exclude_characters="\r\0")),
        ),
        max_size=6,
    )
)
def test_csv_fields_come_back_with_commas_quotes_and_newlines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "table.csv"
    write_csv(file, ["path", "reason"], rows)
    with file.open(newline="", encoding="utf-8") as stream:
        assert [tuple(row) for row in csv.reader(stream)] == [("path", "reason"), *rows]
