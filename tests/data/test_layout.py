"""Labels from folder names, for the trees that people have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.data.listing import ALL_LABELLED, NO_LABELS, Listing
from partgcd.data.scan import scan


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        place = root / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_bytes(os.fsencode(path))
    return root


def classes(listing: Listing) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for entry in listing.entries:
        counts[entry.label] = counts.get(entry.label, 0) + 1
    return counts


def told(listing: Listing) -> str:
    return "\n".join(note for note in listing.notes if note not in (ALL_LABELLED, NO_LABELS))


THREE = ["{}/cat/a.jpg", "{}/cat/b.jpg", "{}/dog/c.jpg", "{}/eel/d.jpg"]


@pytest.mark.parametrize(
    "above", ["photos", "data/data", "my set/images/all", "2024", "Bilder", "set-v1/set", "train"]
)
@pytest.mark.parametrize("beside", [(), ("unlabelled/u.jpg",), ("u.jpg",), ("Unsorted/x/u.jpg", "u.jpg")])
def test_a_tree_in_more_folders_keeps_its_classes_and_says_so(
    tmp_path: Path, above: str, beside: tuple[str, ...]
) -> None:
    listing = scan(fill(tmp_path, *(path.format(above) for path in THREE), *beside))
    expected = {"cat": 2, "dog": 1, "eel": 1} | ({None: len(beside)} if beside else {})
    assert classes(listing) == expected
    assert above.split("/")[0] in told(listing) and "not as a class" in told(listing)


@pytest.mark.parametrize("inner", ["labelled", "Labeled"])
def test_the_documented_folders_in_one_more(tmp_path: Path, inner: str) -> None:
    listing = scan(fill(tmp_path, f"pack/{inner}/cat/a.jpg", "pack/unlabelled/b.jpg"))
    assert classes(listing) == {"cat": 1, None: 1} and listing.layout == "labelled folder"
    assert "pack" in told(listing)


@pytest.mark.parametrize(
    "paths, expected",
    [
        (["train/cat/a.jpg", "test/cat/b.jpg", "val/dog/c.jpg"], {"cat": 2, "dog": 1}),
        (["train/cat/a.jpg", "test/b.jpg"], {"cat": 1, None: 1}),
        (["Training/cat/a.jpg", "Testing/cat/b.jpg", "unlabelled/c.jpg"], {"cat": 2, None: 1}),
        (["train/cat/a.jpg", "train/unlabelled/c.jpg", "test/dog/b.jpg"], {"cat": 1, "dog": 1, None: 1}),
        (["set/train/cat/a.jpg", "set/test/cat/b.jpg"], {"cat": 2}),
        (["train/labelled/cat/a.jpg", "train/unlabelled/c.jpg", "test/dog/b.jpg"], {"cat": 1, "dog": 1, None: 1}),
        (["labelled/train/cat/a.jpg", "labelled/test/dog/b.jpg", "unlabelled/c.jpg"], {"cat": 1, "dog": 1, None: 1}),
        (["train/images/a.jpg", "train/labels/a.txt", "valid/images/b.jpg"], {None: 2}),
        (["train/a.jpg", "test/b.jpg"], {None: 2}),
        (["train/a.jpg", "unlabelled/b.jpg"], {None: 2}),
        (["images/train/cat/a.jpg", "images/val/cat/b.jpg", "labels/train/a.txt"], {"cat": 2}),
    ],
)  # fmt: skip
def test_parts_for_training_and_testing_are_no_classes(
    tmp_path: Path, paths: list[str], expected: dict[str | None, int]
) -> None:
    listing = scan(fill(tmp_path, *paths))
    assert classes(listing) == expected
    assert "not as" in told(listing)


def test_a_class_that_is_called_train_is_kept_where_it_is_labelled(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "labelled/train/a.jpg", "labelled/test/b.jpg", "unlabelled/c.jpg"))
    assert classes(listing) == {"train": 1, "test": 1, None: 1}
    assert classes(scan(fill(tmp_path / "two", "train/a.jpg", "bus/b.jpg"))) == {"train": 1, "bus": 1}


@pytest.mark.parametrize(
    "paths, message",
    [
        (["train/cat/a.jpg", "test/cat/b.jpg", "bird/c.jpg"], "'?test, train'?.* beside others: bird"),
        (["labelled/cat/a.jpg", "dog/b.jpg"], "holds class folders beside others: dog"),
        (
            ["pack/labelled/cat/a.jpg", "pack/dog/b.jpg"],
            "'pack/labelled' holds class folders beside others: dog",
        ),
    ],
)
def test_two_layouts_at_once_are_refused_in_one_line(tmp_path: Path, paths: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        scan(fill(tmp_path, *paths))
    assert "\n" not in str(caught.value) and caught.value.code == 2


@pytest.mark.parametrize("top", ["", "labelled/", "photos/", "train/"])
@pytest.mark.parametrize(
    "lost",
    ["bird/", "bird/a.cr2", "bird/@eaDir/a.jpg", "bird/.a.jpg", "bird/deep/notes.txt", "bird/sub/sub/"],
)
def test_a_class_that_lost_its_photos_is_named(tmp_path: Path, top: str, lost: str) -> None:
    listing = scan(fill(tmp_path, f"{top}cat/a.jpg", f"{top}dog/b.jpg", f"{top}{lost}", "unlabelled/c.jpg"))
    assert classes(listing) == {"cat": 1, "dog": 1, None: 1}
    assert f"folders without an image: {top}bird" in told(listing)


def test_all_labelled_classes_lost_is_told(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "labelled/cat/", "labelled/dog/a.cr2", "unlabelled/c.jpg"))
    assert classes(listing) == {None: 1}
    assert "labelled/cat" in told(listing) and "labelled/dog (1 .cr2)" in told(listing)


@pytest.mark.parametrize("word", ["unknown", "to sort", "None", "n-a", "?", "Unbekannt", "unlabelled images"])
@pytest.mark.parametrize("top", ["", "labelled/", "pack/"])
def test_words_for_no_label_are_told_so_that_a_class_can_be_kept(tmp_path: Path, word: str, top: str) -> None:
    beside = ["unlabelled/z.jpg"] if top == "labelled/" else []
    listing = scan(fill(tmp_path, f"{top}cat/a.jpg", f"{top}dog/b.jpg", f"{top}{word}/c.jpg", *beside))
    assert classes(listing) == {"cat": 1, "dog": 1, None: 1 + len(beside)}
    assert f"{top}{word} (1); rename one that is a class" in told(listing)


def test_names_that_become_one_class_are_told(tmp_path: Path) -> None:
    listing = scan(
        fill(tmp_path, "e\u0301/a.jpg", "\u00e9/b.jpg", "cat /c.jpg", "cat/d.jpg", "unlabelled/e.jpg")
    )
    assert classes(listing) == {"\u00e9": 2, "cat": 2, None: 1}
    assert "'cat' = 'cat '" in told(listing)
    listing = scan(fill(tmp_path / "b", "Gold fish/a.jpg", "gold_fish/b.jpg"))
    assert "Gold fish / gold_fish" in told(listing)


@pytest.mark.parametrize(
    "paths, expected, says",
    [
        (["cat/left/a.jpg", "cat/right/b.jpg", "dog/left/c.jpg", "dog/right/d.jpg"], {"cat": 2, "dog": 2},
         "every class folder holds the same folders.*left, right"),
        (["birds/crow/a.jpg", "birds/jay/b.jpg", "dog/c.jpg"], {"birds": 2, "dog": 1}, r"birds \(crow, jay\)"),
        (["cat/a.jpg", "cat/deep/b.jpg", "cat/near/c.jpg", "unlabelled/d.jpg"], {"cat": 3, None: 1}, "one class"),
        (["oak/2020/a.jpg", "oak/2021/b.jpg", "unlabelled/c.jpg"], {"oak": 2, None: 1}, r"oak \(2020, 2021\)"),
        (["oak/x/a.jpg", "unlabelled/c.jpg"], {"oak": 1, None: 1}, r"oak \(x\); if those are"),
        (["cat/unknown/a.jpg", "dog/b.jpg"], {"cat": 1, "dog": 1}, "cat/unknown"),
        (["cat/a.jpg", "unlabled/b.jpg"], {"cat": 1, "unlabled": 1}, "unlabled; call such a folder 'unlabelled'"),
        (["cat/a.jpg", "dog/b.jpg", "test/c.jpg"], {"cat": 1, "dog": 1, "test": 1}, "read as classes: test"),
        (["2019/a.jpg", "2020/b.jpg"], {"2019": 1, "2020": 1}, "like dates"),
        (["images/a.jpg", "unlabelled/b.jpg"], {"images": 1, None: 1}, "any photos: images"),
        (["images/a.jpg", "masks/b.png"], {"images": 1, "masks": 1}, "any photos: images"),
        (["images/a.jpg", "labels/a.txt"], {None: 1}, "folder of photos.*"),
        (["DCIM/100CANON/a.jpg", "DCIM/101CANON/b.jpg"], {None: 2}, "DCIM"),
        (["images/cat/a.jpg", "images/dog/b.jpg", "labels/cat/a.txt", "README.md"], {"cat": 1, "dog": 1}, "images"),
    ],
)  # fmt: skip
def test_a_guess_is_never_silent(
    tmp_path: Path, paths: list[str], expected: dict[str | None, int], says: str
) -> None:
    import re

    listing = scan(fill(tmp_path, *paths))
    assert classes(listing) == expected
    assert re.search(says, told(listing), re.DOTALL), told(listing)


@pytest.mark.parametrize(
    "paths",
    [
        ["cat/a.jpg", "dog/b.jpg", "unlabelled/c.jpg"],
        ["cat/x/a.jpg", "cat/b.jpg", "dog/c.jpg", "unlabelled/x/d.jpg"],
        ["labelled/cat/a.jpg", "labelled/dog/x/b.jpg", "unlabelled/c.jpg"],
        ["0/a.jpg", "1/b.jpg", "unlabelled/c.jpg"],
        ["a.jpg", "b.jpg"],
    ],
)
def test_what_is_documented_needs_no_line(tmp_path: Path, paths: list[str]) -> None:
    assert told(scan(fill(tmp_path, *paths))) == ""


def test_where_classes_have_names_those_decide(tmp_path: Path) -> None:
    data = fill(tmp_path, "oak/x/a.jpg", "oak/y/b.jpg")
    assert classes(scan(data)) == {"x": 1, "y": 1}
    assert classes(scan(data, {"oak"})) == {"oak": 2}
    assert classes(scan(data, {"x"})) == {"x": 1, "y": 1}
    with pytest.raises(UserError, match="'oak' may be one class or hold several: x, y"):
        scan(data, {"elm"})
    data = fill(tmp_path / "words", "unknown/a.jpg", "train/b.jpg", "elm/c.jpg")
    assert classes(scan(data, {"unknown", "elm"})) == {"unknown": 1, "train": 1, "elm": 1}
