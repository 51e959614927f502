"""Which files the words of a command line mean, for classify and ask alike."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from partgcd.cli.classify import find_images
from partgcd.config.errors import UserError


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return fill(
        tmp_path, "p/a.jpg", "p/cat/b.PNG", "p/cat/@eaDir/b.PNG/SYNOPHOTO_THUMB_S.jpg", "p/.hidden/c.jpg", "p/n.txt",
        "else/d.jpg", "café/e f.jpg", "Thumbs.db",
    )  # fmt: skip


def found(*words: str) -> list[str]:
    return [str(path) for path in find_images(list(words))]


def test_folders_hold_what_train_sees_and_one_line_says_what_was_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "p" / "link").symlink_to(here / "else")
    (here / "p" / "up").symlink_to(here / "p")
    assert found("p") == ["p/a.jpg", "p/cat/b.PNG", "p/link/d.jpg"]
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    for what in ("@eaDir", ".hidden", ".txt 1", "up"):
        assert told.count(what) == 1, told
    assert found("else") == ["else/d.jpg"] and capsys.readouterr().err == ""


def test_what_is_named_is_taken_and_patterns_leave_out_what_systems_keep(here: Path) -> None:
    assert found("p/n.txt", "p/.hidden/c.jpg", "Thumbs.db") == ["p/n.txt", "p/.hidden/c.jpg", "Thumbs.db"]
    assert found("p/.hidden") == ["p/.hidden/c.jpg"]
    fill(here, "#recycle/g.jpg")
    assert found("#recycle") == ["#recycle/g.jpg"]
    assert found("p/*") == ["p/a.jpg", "p/cat/b.PNG", "p/n.txt"]
    assert found("p/**") == ["p/a.jpg", "p/cat/b.PNG", "p/n.txt"], "each once"
    assert not {"Thumbs.db", "#recycle/g.jpg"} & set(found("*"))


def test_other_spellings_are_found_and_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found("p\\cat\\b.png", "cafe\u0301", (here / "p/a.jpg").as_uri()) == [
        "p/cat/b.PNG", "café/e f.jpg", "p/a.jpg",
    ]  # fmt: skip
    assert "3 paths are written otherwise" in capsys.readouterr().err
    assert found("gone\\x.jpg") == ["gone\\x.jpg"], "its row says that it is not there"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("p/a.jpg\np/cat/b.PNG\n", ["p/a.jpg", "p/cat/b.PNG"]),
        ("\ufeffp/a.jpg\r\n\r\n p/cat/b.PNG \r\n", ["p/a.jpg", "p/cat/b.PNG"]),
        ('"p/a.jpg"\np\\cat\\b.png\n./p//a.jpg', ["p/a.jpg", "p/cat/b.PNG", "p/a.jpg"]),
        ("p/a.jpg\0p/cat/b.PNG\0", ["p/a.jpg", "p/cat/b.PNG"]),
        ("cafe\u0301/e%20f.jpg\n", ["café/e f.jpg"]),
        ("   \n\t\n", []),
        ("gone.jpg\n", ["gone.jpg"]),
    ],
)
def test_a_list_on_stdin_in_its_many_dresses(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert found("-") == expected


def test_a_list_on_stdin_is_read_as_it_comes_and_told_at_its_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9.jpg\nP/A.JPG\n")))
    files = iter(find_images(["-"]))
    assert os.fsencode(next(files)) == b"caf\xe9.jpg" and str(next(files)) == "p/a.jpg"
    assert capsys.readouterr().err == "" and list(files) == []
    assert "stdin: 1 paths" in capsys.readouterr().err


def test_a_folder_without_images_says_what_it_has(here: Path) -> None:
    fill(here, "bin/#recycle/a.jpg", "bin/notes.txt")
    with pytest.raises(UserError, match=r"no images in 'bin'.*#recycle.*\.txt 1"):
        find_images(["bin"])
    with pytest.raises(UserError, match="no file fits"):
        find_images(["bin/#rec*"])
