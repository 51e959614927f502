from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.errors import UserError
from partgcd.data.listing import ALL_LABELLED
from partgcd.data.scan import Listing, scan


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(os.fsencode(path))
    return root


def labels(listing: Listing) -> dict[str, str | None]:
    return {entry.path: entry.label for entry in listing.entries}


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled", "UNKNOWN", "_unlabelled"])
def test_class_folders_beside_an_unlabelled_one(tmp_path: Path, name: str) -> None:
    listing = scan(
        fill(tmp_path, "cat/a.jpg", "cat/deep/er/b.PNG", "dog/c.webp", f"{name}/d.jpg", f"{name}/x/e.gif")
    )
    assert labels(listing) == {
        "cat/a.jpg": "cat",
        "cat/deep/er/b.PNG": "cat",
        "dog/c.webp": "dog",
        f"{name}/d.jpg": None,
        f"{name}/x/e.gif": None,
    }
    assert listing.layout == "class folders"
    # The documented word needs no line; another that says the same might be somebody's class.
    told = [] if "label" in name.lower() else [f"folders whose name says that there is no label: {name} (2); "
                                               "rename one that is a class"]  # fmt: skip
    assert listing.notes == told
    assert [entry.path for entry in listing.entries] == sorted(labels(listing))


def test_labelled_folder_beside_unlabelled(tmp_path: Path) -> None:
    listing = scan(
        fill(tmp_path, "labelled/cat/x/a.jpg", "labelled/dog/b.jpg", "labelled/c.jpg", "unlabelled/cat/d.jpg")
    )
    assert labels(listing) == {
        "labelled/cat/x/a.jpg": "cat",
        "labelled/dog/b.jpg": "dog",
        "labelled/c.jpg": None,
        "unlabelled/cat/d.jpg": None,
    }
    assert listing.layout == "labelled folder"
    assert any("1 loose images" in note for note in listing.notes)


@pytest.mark.parametrize(
    "paths", [("a.jpg", "b.tif"), ("unlabelled/a.jpg",), ("unlabelled/x/a.jpg", "b.jpg")]
)
def test_no_labels_at_all(tmp_path: Path, paths: tuple[str, ...]) -> None:
    listing = scan(fill(tmp_path, *paths))
    assert set(labels(listing).values()) == {None}
    assert listing.layout == "no labels" and any("no image is labelled" in note for note in listing.notes)


def test_class_folders_alone_are_all_labelled_and_said_so(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "cat/a.jpg", "dog/b.jpg"))
    assert labels(listing) == {"cat/a.jpg": "cat", "dog/b.jpg": "dog"}
    assert ALL_LABELLED in listing.notes


def test_loose_images_beside_class_folders_are_unlabelled(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "cat/a.jpg", "b.jpg", "c.jpg"))
    assert labels(listing) == {"b.jpg": None, "c.jpg": None, "cat/a.jpg": "cat"}
    assert any("2 loose images" in note for note in listing.notes)


def test_hidden_and_other_files_are_skipped_and_counted(tmp_path: Path) -> None:
    listing = scan(
        fill(
            tmp_path,
            "cat/a.jpg",
            "cat/.b.jpg",
            ".git/c.jpg",
            "notes.txt",
            "cat/d.TXT",
            "cat/e",
            "empty/readme.md",
            "f.jpg",
        )
    )
    assert list(labels(listing)) == ["cat/a.jpg", "f.jpg"]
    notes = "\n".join(listing.notes)
    assert "2 hidden" in notes and "4 files skipped" in notes and ".txt 2" in notes
    assert "folders without an image: empty" in notes


def test_strange_names_survive(tmp_path: Path) -> None:
    strange = [
        "é\nü/new\nline.jpg",
        "日本/猫.png",
        " spaced /a b.jpg",
        'quo"te,s/x.jpg',
        "e\u0301/y.jpg",
        "\u00e9/z.jpg",
    ]
    found = labels(scan(fill(tmp_path, *strange)))
    assert set(found) == set(strange)
    assert found[" spaced /a b.jpg"] == "spaced"
    assert (
        found["e\u0301/y.jpg"] == found["\u00e9/z.jpg"] == "\u00e9"
    )  # one name in two spellings is one class
    bad = os.fsdecode(b"caf\xe9/\xff.jpg")
    assert bad in labels(scan(fill(tmp_path, bad)))


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", "cat/a.jpg", "dog/b.jpg")
    fill(tmp_path, "elsewhere/c.jpg")
    (data / "bird").symlink_to(tmp_path / "elsewhere")
    (data / "unlabelled").symlink_to(tmp_path / "elsewhere")
    (data / "cat" / "self").symlink_to(data / "cat")
    (data / "cat" / "up").symlink_to(data)
    (data / "cat" / "gone.jpg").symlink_to("nowhere.jpg")
    (data / "dog" / "round").symlink_to("round")
    (data / "dog" / "round.jpg").symlink_to("round.jpg")
    listing = scan(data)
    assert labels(listing) == {
        "bird/c.jpg": "bird",
        "cat/a.jpg": "cat",
        "cat/gone.jpg": "cat",  # listed, so that it is quarantined and does not vanish
        "dog/b.jpg": "dog",
        "dog/round.jpg": "dog",
        "unlabelled/c.jpg": None,
    }
    assert any("cat/self" in note and "cat/up" in note for note in listing.notes)


def test_many_links_to_each_other_end(tmp_path: Path) -> None:
    for number in range(12):
        fill(tmp_path, f"class/{number}/{number}.jpg")
        for other in range(12):
            (tmp_path / f"class/{number}/to{other}").symlink_to(tmp_path / f"class/{other}")
    assert len(scan(tmp_path).entries) == 12


def test_an_unreadable_folder_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "cat/a.jpg", "dog/b.jpg", "unlabelled/c.jpg")
    real = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path).name == blocked:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", guarded)
    blocked = "dog"
    listing = scan(tmp_path)
    assert list(labels(listing)) == ["cat/a.jpg", "unlabelled/c.jpg"]
    assert any("could not be read" in note and "dog (Permission denied)" in note for note in listing.notes)
    blocked = tmp_path.name
    with pytest.raises(UserError, match="Permission denied"):
        scan(tmp_path)


def test_names_that_differ_only_in_case_are_noted(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "Cat/a.jpg", "cat/b.jpg", "unknown/c.jpg"))
    assert labels(listing)["Cat/a.jpg"] == "Cat"
    assert any("Cat / cat" in note for note in listing.notes)


def test_one_folder_around_the_class_folders_is_noted(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path, "photos/cat/a.jpg", "photos/dog/b.jpg"))
    assert any("give photos itself" in note for note in listing.notes)


@pytest.mark.parametrize(
    "paths, message",
    [
        ((), "no images in .*\\.jpg"),
        (("a.txt", "b/c.cr2"), "no images in .*2 files skipped"),
        (("labelled/cat/a.jpg", "dog/b.jpg"), "holds class folders beside others: dog"),
        (("labelled/a.jpg", "unlabelled/b.jpg"), "'labelled' has no class folders"),
    ],
)
def test_wrong_usage_is_one_clear_line(tmp_path: Path, paths: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        scan(fill(tmp_path, *paths))
    assert caught.value.code == 2 and "\n" not in str(caught.value)


def test_a_missing_folder_and_a_lone_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        scan(tmp_path / "none")
    fill(tmp_path, "a.jpg")
    with pytest.raises(UserError, match="neither a folder nor a manifest"):
        scan(tmp_path / "a.jpg")


def test_a_manifest_is_recognised_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "list.CSV").write_text("path,label\na.jpg,cat\nb.jpg,\n")
    listing = scan(tmp_path / "list.CSV")
    assert listing.layout == "manifest" and labels(listing) == {"a.jpg": "cat", "b.jpg": None}
