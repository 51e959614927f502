from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from partgcd.data.catalog import Broken, Catalog, Duplicate
from partgcd.data.inspect import Spread, inspect
from partgcd.data.listing import Entry, Listing


def test_counts_sizes_formats_and_reasons() -> None:
    paths = ["a.JPG", "b.jpg", "c\n.png", "d.png", "e.png", "f.png"]
    listing = Listing(Path("/photos"), [Entry(path) for path in paths], ["scanned"], "class folders")
    catalog = Catalog(
        listing.root,
        paths[:3],
        np.arange(3, dtype=np.uint64),
        np.array([1, -1, 1]),
        ["ant", "bee\n"],
        np.array([[10, 30], [20, 20], [90, 10]], np.int32),
        [Broken("d.png", "too small: 1 x 1"), Broken("f.png", "too small: 2 x 1")],
        [Duplicate("e.png", "c\n.png")],
        ["a note"],
    )
    found = inspect(listing, catalog)
    assert (found.found, found.usable, found.labelled, found.unlabelled) == (6, 3, 2, 1)
    assert found.classes == {"ant": 0, "bee\n": 2}
    assert list(found.formats.items()) == [(".png", 4), (".jpg", 2)]
    assert found.width == Spread(10, 20.0, 90) and found.height == Spread(10, 20.0, 30)
    assert found.broken == {"too small": 2} and found.notes == ["a note"]
    assert asdict(found)["width"] == {"least": 10, "median": 20.0, "most": 90}
    lines = found.table().splitlines()
    for line in (
        "/photos: class folders",
        "  images found  6",
        "width, pixels: 10 least, 20 median, 90 most",
        "  bee\\n  2",
        "  ant    0",
        "  d.png: too small: 1 x 1",
        "  e.png = c\\n.png",
        "  a note",
    ):
        assert line in lines, line


def test_long_lists_are_cut_and_nothing_usable_is_fine() -> None:
    entries = [Entry(f"{number}.png") for number in range(30)]
    none = np.zeros(0, np.int64)
    broken = [Broken(entry.path, "empty file") for entry in entries]
    listing = Listing(Path("/x"), entries, [], "no labels")
    catalog = Catalog(listing.root, [], none.astype(np.uint64), none, [], np.zeros((0, 2), np.int32), broken)
    found = inspect(listing, catalog)
    assert found.width is None and found.usable == 0
    assert "  and 20 more" in found.table().splitlines() and "least" not in found.table()
    many = Catalog(
        listing.root,
        [f"{number:02}" for number in range(60)],
        np.arange(60, dtype=np.uint64),
        np.arange(60),
        [f"c{number:02}" for number in range(60)],
        np.ones((60, 2), np.int32),
    )
    assert "  and 20 smaller classes with 20 images" in inspect(listing, many).table().splitlines()
