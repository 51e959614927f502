"""Paths of lists: the file that is there is found however it is written."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from urllib.parse import quote

import pytest

from partgcd.data.places import Finder
from partgcd.data.spellings import spellings, tidy

FILES = ["cat/1.jpg", "cat/2 a.JPG", "dog/café 3.png", "dog/sub/4.tif", "5.jpg"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for path in FILES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def finders(root: Path, *beside: Path) -> list[Finder]:
    """By what is on disk, and by the paths of a listing."""
    return [Finder(root, beside), Finder(root, beside, FILES)]


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize(
    "write",
    [
        lambda path, root: path,
        lambda path, root: f"./{path}",
        lambda path, root: path.replace("/", "//"),
        lambda path, root: path.replace("/", "\\"),
        lambda path, root: ".\\" + path.replace("/", "\\"),
        lambda path, root: f" {path}\t",
        lambda path, root: f"\ufeff{path}",
        lambda path, root: f"\u202a{path}\u202c",
        lambda path, root: f"{path}\r",
        lambda path, root: f'"{path}"',
        lambda path, root: f" '{path}' ",
        lambda path, root: f"\u201c{path}\u201d",
        lambda path, root: unicodedata.normalize("NFD", path),
        lambda path, root: unicodedata.normalize("NFC", path),
        lambda path, root: path.upper(),
        lambda path, root: path.lower(),
        lambda path, root: path.replace("/", " / "),
        lambda path, root: quote(path),
        lambda path, root: quote(path.replace("/", "\\"), safe="\\"),
        lambda path, root: str(root / path),
        lambda path, root: (root / path).as_uri(),
        lambda path, root: "file://localhost" + quote(str(root / path)),
        lambda path, root: "file:" + str(root / path),
        lambda path, root: f"{root.name}/{path}",
        lambda path, root: f"C:\\Users\\me\\{root.name}\\" + path.replace("/", "\\"),
        lambda path, root: f"file:///D:/me/{root.name}/{quote(path)}",
        lambda path, root: f"/home/other/{root.name}/{path}",
        lambda path, root: f"\\\\server\\share\\{root.name}\\" + path.replace("/", "\\"),
        lambda path, root: str(Path(path).with_suffix("")),
    ],
)
def test_the_file_that_is_there_is_found(root: Path, path: str, write: object) -> None:
    written = write(path, root)  # type: ignore[operator]
    for finder in finders(root):
        assert finder.find(written) == path, written
        spelt = tidy(written) in (path, str(root / path))
        assert bool(finder.notes("list")) is not spelt, "another spelling is told, and only that"


def test_folders_beside_and_below_are_looked_into(root: Path, tmp_path: Path) -> None:
    for finder in finders(root, tmp_path):
        assert finder.find("photos/cat/1.jpg") == "cat/1.jpg"
        assert finder.find("1.jpg") == "cat/1.jpg" and finder.find("sub/4.tif") == "dog/sub/4.tif"
        assert finder.find("2 a") == "cat/2 a.JPG"
        (note,) = finder.notes("m.csv")
        assert "m.csv: 4 paths" in note and "photos/cat/1.jpg -> cat/1.jpg" in note
    assert Finder(root / "cat", [root]).find("dog/sub/4.tif") == str(root / "dog/sub/4.tif")


@pytest.mark.parametrize("exact", ["p\\1.jpg", " 1.jpg", "a%20b.jpg", '"q".jpg', "x\r", "C:1.jpg", "É.JPG"])
def test_the_exact_spelling_always_wins(tmp_path: Path, exact: str) -> None:
    for name in (exact, "1.jpg", "a b.jpg", "q.jpg", "x", "é.jpg", "e\u0301.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "1.jpg").touch()
    finder = Finder(tmp_path)
    assert finder.find(exact) == exact and finder.notes("list") == []


def test_what_may_be_two_files_is_neither_and_said(tmp_path: Path) -> None:
    names = ["Cat.jpg", "cAt.jpg", "a/x.jpg", "b/x.jpg", "y.jpg", "y.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for finder in (Finder(tmp_path), Finder(tmp_path, (), names)):
        assert [finder.find(each) for each in ("CAT.jpg", "x.jpg", "y")] == [None, None, None]
        (note,) = finder.notes("m.csv")
        assert note.count("more than one file could be meant") == 3
        assert finder.find("cat.JPG") is None and finder.find("Y.PNG") == "y.png"


def test_of_files_that_differ_in_unicode_form_the_one_of_that_form_is_meant(tmp_path: Path) -> None:
    for name in ("e\u0301.jpg", "É.jpg"):
        (tmp_path / name).touch()
    assert Finder(tmp_path).find("\u00e9.jpg") == "e\u0301.jpg"


@pytest.mark.parametrize(
    "written, says",
    [
        ("p\\gone.jpg", "backslashes"),
        ("C:\\x\\gone.jpg", "backslashes and a drive"),
        ("file:///x/gone.jpg", "a file:// address"),
        ("https://example.org/1.jpg", "a web address"),
        (" gone.jpg ", "white space"),
        ("a%20b.jpg", "%20"),
    ],
)
def test_of_a_path_that_leads_nowhere_it_is_said_what_is_odd(root: Path, written: str, says: str) -> None:
    for finder in finders(root):
        assert finder.find(written) is None
        assert says in finder.notes("list")[0]
    plain = Finder(root)
    assert plain.find("gone.jpg") is None and plain.find("/gone.jpg") is None and plain.notes("list") == []


@pytest.mark.parametrize(
    "written",
    ["", " ", "\0", ".", "..", "/", "//", "\\", '"', "''", "C:", "file:", "file://", "%", "~", "x" * 5000],
)
def test_odd_paths_are_no_trouble(root: Path, written: str) -> None:
    for finder in finders(root):
        finder.find(written)
        finder.notes("list")
        assert spellings(written)


def test_names_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).touch()
    assert Finder(tmp_path).find(name) == name
    assert Finder(tmp_path).find("caf%E9.jpg") == name


def test_a_listing_is_found_through_another_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    finder = Finder(tmp_path / "link", (), FILES)
    assert finder.find(str(root / "cat/1.jpg")) == "cat/1.jpg"
    assert Finder(root, (), FILES).find(str(tmp_path / "link/cat/1.jpg")) == "cat/1.jpg"


def test_a_name_alone_says_too_little_of_another_machine(root: Path) -> None:
    for finder in finders(root):
        assert finder.find("/elsewhere/5.jpg") is None
        assert finder.find("/elsewhere/photos/5.jpg") == "5.jpg"
