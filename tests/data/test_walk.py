"""The one walker: what is an image, what is left out, and what is told of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.data.scan import scan
from partgcd.data.walk import is_system, walk


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(os.fsencode(path))
    return root


SYSTEM = [
    "@eaDir", "@EADIR", "#recycle", "#snapshot", "@Recycle", ".@__thumb", "@__thumb", "$RECYCLE.BIN", "$Recycle.Bin",
    "RECYCLER", "System Volume Information", "lost+found", "LOST.DIR", "__MACOSX", "Lightroom Catalog Previews.lrdata",
    "Network Trash Folder", "CANONMSC", "_vti_cnf", "FOUND.000", "[Originals]",
]  # fmt: skip


@pytest.mark.parametrize("name", SYSTEM)
@pytest.mark.parametrize("place", ["", "cat/", "cat/deep/"])
def test_folders_of_systems_hold_no_photos_and_are_named(tmp_path: Path, name: str, place: str) -> None:
    found = walk(fill(tmp_path, "cat/a.jpg", f"{place}{name}/thumb.jpg", f"{place}{name}/x/thumb.jpg"))
    assert found.files == ["cat/a.jpg"]
    (note,) = (note for note in found.notes() if name in note)
    assert ("skipped" if name.startswith(".") else "left out") in note


@pytest.mark.parametrize(
    "name",
    [
        "Thumbs.db", "desktop.ini", "ehthumbs_vista.db", "SYNOPHOTO_THUMB_M.jpg", "a.jpg@SynoEAStream", "Icon\r",
    ],
)  # fmt: skip
def test_files_of_systems_are_no_photos(tmp_path: Path, name: str) -> None:
    assert walk(fill(tmp_path, "a.jpg", name)).files == ["a.jpg"] and is_system(name)


@pytest.mark.parametrize(
    "name", [".thumbnails", ".Trash-1000", ".dtrash", ".picasaoriginals", ".AppleDouble", ".cat"]
)
def test_hidden_folders_with_images_are_named_as_such(tmp_path: Path, name: str) -> None:
    found = walk(fill(tmp_path, "cat/a.jpg", "cat/._a.jpg", f"{name}/x/b.jpg", ".git/config"))
    assert found.files == ["cat/a.jpg"] and found.hidden_full == [name]
    assert any(name in note and "rename" in note for note in found.notes())
    assert any("3 hidden" in note for note in found.notes())


@pytest.mark.parametrize(
    "name", ["recycled", "trash", "thumbs", "@cat", "#1", "$5", "macosx", "lrdata", "cat.jpg"]
)
def test_names_that_are_nearly_a_systems_are_somebodys(tmp_path: Path, name: str) -> None:
    assert walk(fill(tmp_path, f"{name}/a.jpg")).files == [f"{name}/a.jpg"]


def test_of_a_photo_library_only_the_originals_are_photos(tmp_path: Path) -> None:
    library = fill(
        tmp_path / "My.photoslibrary",
        "originals/0/a.jpg",
        "resources/derivatives/a_thumb.jpg",
        "database/b.jpg",
    )
    assert walk(tmp_path).files == ["My.photoslibrary/originals/0/a.jpg"]
    assert walk(library).files == ["originals/0/a.jpg"]


@pytest.mark.parametrize("name", [".hidden", "@eaDir", "#recycle"])
def test_a_folder_that_is_given_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    assert walk(fill(tmp_path / name, "a.jpg", "b/c.jpg")).files == ["a.jpg", "b/c.jpg"]


def test_links_are_followed_once_below_each_top_folder(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "cat/a.jpg", "dog/b.jpg")
    fill(tmp_path, "else/c.jpg")
    (data / "cat" / "link").symlink_to(tmp_path / "else")
    (data / "cat" / "more").symlink_to(tmp_path / "else")
    (data / "dog" / "link").symlink_to(tmp_path / "else")
    (data / "dog" / "up").symlink_to(data)
    found = walk(data)
    assert found.files == ["cat/a.jpg", "cat/link/c.jpg", "dog/b.jpg", "dog/link/c.jpg"]
    assert found.repeated == ["cat/more", "dog/up"]


def test_files_come_in_the_order_of_their_paths_whatever_their_bytes(tmp_path: Path) -> None:
    strange = os.fsdecode(b"\xff\xe9.jpg")
    found = walk(fill(tmp_path, "b.jpg", "a b/c.jpg", "a/c.jpg", strange, "a.jpg"))
    assert found.files == sorted(found.files) and strange in found.files and len(found.files) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_root_nobody_may_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    with pytest.raises(UserError, match="Permission denied") as caught:
        walk(tmp_path / "shut")
    assert caught.value.code == 1


def test_a_tree_without_an_end_ends(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 300)
    found = walk(fill(tmp_path, "a.jpg", f"{deep}/b.jpg"))
    assert found.files == ["a.jpg"] and len(found.folders) == 101
    assert any("more than 100 folders deep" in note for note in found.notes())
    below = "/".join(["d"] * 90)
    assert len(scan(fill(tmp_path / "two", f"{below}/c.jpg", f"{below}/d/e.jpg")).entries) == 2
