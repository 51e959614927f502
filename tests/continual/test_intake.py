from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings
from partgcd.continual.intake import (
    content_key,
    empty_pictures,
    look_through,
)
from partgcd.data.ingest import ingest
from partgcd.data.scan import scan

Photos = Callable[..., Path]
NOBODY = np.zeros(0, np.uint64)


def test_every_photo_once_and_none_that_was_seen(photos: Photos) -> None:
    folder = photos("new", {0: 3, 1: 2})
    (folder / "sub").mkdir()
    (folder / "sub" / "copy.png").write_bytes((folder / "0-500.png").read_bytes())
    (folder / "inbox.jsonl").write_text("{}\n")
    seen = np.array([content_key((folder / "1-500.png").read_bytes())], np.uint64)
    found = look_through(folder, seen)
    assert (found.files, found.seen, found.copies, len(found.keys)) == (6, 1, 1, 4)
    assert all(entry.label is None for entry in found.listing.entries)
    assert found.digest() == look_through(folder, seen).digest() != look_through(folder, NOBODY).digest()


def test_folders_are_no_labels_and_an_empty_inbox_is_no_error(photos: Photos, tmp_path: Path) -> None:
    photos("new/monday", {0: 2})
    photos("new/labelled", {1: 2})
    assert {entry.label for entry in look_through(tmp_path / "new", NOBODY).listing.entries} == {None}
    (tmp_path / "empty").mkdir()
    assert look_through(tmp_path / "empty", NOBODY).files == 0
    with pytest.raises(UserError, match="no such folder"):
        look_through(tmp_path / "nowhere", NOBODY)


def test_pictures_of_nothing_are_told_from_photos(photos: Photos, tmp_path: Path) -> None:
    folder = photos("mixed", {0: 3, 3: 3})
    draw = np.random.default_rng(0)
    for number, side in enumerate((40, 72, 300)):
        noise = draw.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"noise-{number}.png")
        Image.fromarray(noise).save(folder / f"noise-{number}.jpg", quality=60)
        Image.new("RGB", (side, side), (number * 80, 20, 20)).save(folder / f"blank-{number}.png")
    settings = DataSettings(image_size=64)
    catalog = ingest(scan(folder), tmp_path / "store", settings)
    from partgcd.data.pixels import PixelStore

    empty = empty_pictures(PixelStore.open(tmp_path / "store"), 64)
    assert {path for path, none in zip(catalog.paths, empty, strict=True) if not none} == {
        f"{kind}-{number}.png" for kind in (0, 3) for number in (500, 501, 502)
    }


def test_linked_hidden_and_system_folders_are_as_for_training_and_told(
    photos: Photos, tmp_path: Path
) -> None:
    folder = photos("new", {0: 2})
    photos("else", {1: 1})
    photos("new/@eaDir", {2: 1})
    photos("new/.thumbnails", {3: 1})
    (folder / "link").symlink_to(tmp_path / "else")
    (folder / "inbox.jsonl").write_text("{}\n")
    found = look_through(folder, NOBODY)
    assert [entry.path for entry in found.listing.entries] == [entry.path for entry in scan(folder).entries]
    assert len(found.keys) == 3 and any(entry.path.startswith("link/") for entry in found.listing.entries)
    told = found.left_out()
    assert told.count("@eaDir") == told.count(".thumbnails") == 1 and ".jsonl" not in told
    assert look_through(tmp_path / "else", NOBODY).left_out() == ""


def test_a_list_of_new_photos_names_them_however_it_is_written(photos: Photos, tmp_path: Path) -> None:
    photos("new", {0: 2})
    (tmp_path / "list.csv").write_text("file,species\nnew\\0-500.png,oak\n NEW/0-501.png,unknown\n")
    found = look_through(tmp_path / "list.csv", NOBODY)
    assert [entry.path for entry in found.listing.entries] == ["new/0-500.png", "new/0-501.png"]
    assert "2 paths are written otherwise" in found.left_out()
