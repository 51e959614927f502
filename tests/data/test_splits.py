from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.config.errors import UserError
from partgcd.data.listing import ALL_LABELLED, Entry, Listing
from partgcd.data.splits import gcd_protocol, read_split


def listing(**sizes: int) -> Listing:
    entries = [
        Entry(f"{name}/{number}.jpg", name) for name, size in sorted(sizes.items()) for number in range(size)
    ]
    return Listing(Path("/data"), entries, [ALL_LABELLED, "kept"], "class folders")


def labelled(split: Listing) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in split.entries:
        if entry.label is not None:
            found.setdefault(entry.label, []).append(entry.path)
    return found


def test_half_the_classes_and_half_their_images_keep_labels() -> None:
    whole = listing(a=10, b=7, c=1, d=2, e=3)
    split, truth = gcd_protocol(whole, seed=0)
    kept = labelled(split)
    assert len(kept) == 3
    sizes = {"a": 5, "b": 3, "c": 1, "d": 1, "e": 1}
    assert {name: len(paths) for name, paths in kept.items()} == {name: sizes[name] for name in kept}
    assert truth == {entry.path: entry.label for entry in whole.entries}
    assert [entry.path for entry in split.entries] == [entry.path for entry in whole.entries]
    assert all(
        entry.truth == truth[entry.path] and entry.label in (None, entry.truth) for entry in split.entries
    )
    assert split.layout == "protocol" and ALL_LABELLED not in split.notes and "kept" in split.notes


def test_the_split_is_the_same_for_ever() -> None:
    kept = labelled(gcd_protocol(listing(ant=4, bee=4, cat=4, dog=4), seed=0)[0])
    assert kept == {"bee": ["bee/2.jpg", "bee/3.jpg"], "cat": ["cat/0.jpg", "cat/3.jpg"]}


@given(st.integers(0, 50), st.lists(st.integers(1, 6), min_size=2, max_size=7))
def test_the_split_is_a_function_of_seed_and_names(seed: int, sizes: list[int]) -> None:
    whole = listing(**{f"class{number}": size for number, size in enumerate(sizes)})
    backwards = Listing(whole.root, whole.entries[::-1], [], "manifest")
    assert labelled(gcd_protocol(whole, seed)[0]) == {
        name: sorted(paths) for name, paths in sorted(labelled(gcd_protocol(backwards, seed)[0]).items())
    }


def test_seeds_differ_and_the_number_of_old_classes_can_be_given() -> None:
    whole = listing(**{f"c{number}": 8 for number in range(10)})
    olds = {tuple(labelled(gcd_protocol(whole, seed)[0])) for seed in range(8)}
    assert len(olds) > 4
    assert len(labelled(gcd_protocol(whole, 0, old_classes=8)[0])) == 8
    fewer, more = (set(labelled(gcd_protocol(whole, 0, old_classes=count)[0])) for count in (3, 4))
    assert fewer < more


def test_hidden_truth_of_a_manifest_can_be_split() -> None:
    entries = [Entry("a", "x"), Entry("b", None, "y"), Entry("c", None, "y")]
    split, truth = gcd_protocol(Listing(Path(), entries, [], "manifest"), 0)
    assert truth == {"a": "x", "b": "y", "c": "y"} and len(labelled(split)) == 1


@pytest.mark.parametrize(
    "data, options, message",
    [
        (Listing(Path(), [Entry("a", "x"), Entry("b\n")], [], ""), {}, r"1 have none \(b\\n\)"),
        (listing(a=5), {}, "at least 2 classes"),
        (listing(a=5, b=5), {"old_classes": 3}, "3 old classes were asked for: there are 2"),
        (listing(a=5, b=5), {"old_classes": 0}, "0 old classes"),
    ],
)
def test_data_that_cannot_be_split_is_one_clear_line(
    data: Listing, options: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        gcd_protocol(data, 0, **options)
    assert "\n" not in str(caught.value)


def stated(folder: Path, split: Any) -> Path:
    (folder / "s.json").write_text(split if isinstance(split, str) else json.dumps(split), encoding="utf-8")
    return folder / "s.json"


def test_a_stated_split_is_followed(tmp_path: Path) -> None:
    file = stated(tmp_path, {"old_classes": ["b", "a"], "labelled": ["a/0.jpg", "b/1.jpg"]})
    split, truth = read_split(file, listing(a=2, b=2, c=1))
    assert labelled(split) == {"a": ["a/0.jpg"], "b": ["b/1.jpg"]}
    assert len(truth) == len(split.entries) == 5 and split.layout == "split"
    file = stated(tmp_path, {"old_classes": ["a"], "labelled": ["a/0.jpg"], "unlabelled": ["c/0.jpg"]})
    split, truth = read_split(file, listing(a=2, b=2, c=1))
    assert [entry.path for entry in split.entries] == ["a/0.jpg", "c/0.jpg"]
    assert truth == {"a/0.jpg": "a", "c/0.jpg": "c"}


@pytest.mark.parametrize(
    "split, message",
    [
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ([], "is no split"),
        ({"labelled": []}, "no key old_classes"),
        ({"old_classes": [], "labelled": [], "test": []}, "unknown key test"),
        ({"old_classes": "a", "labelled": []}, "'old_classes' must be a list of text"),
        ({"old_classes": ["a"], "labelled": [3]}, "'labelled' must be a list of text"),
        ({"old_classes": ["q", "p"], "labelled": []}, "not in the data: p, q"),
        (
            {"old_classes": ["a"], "labelled": [f"x/{n}.jpg" for n in range(8)]},
            "images that are not in the data: .* and 3 more",
        ),
        ({"old_classes": ["a"], "labelled": ["a/0.jpg", "b/0.jpg"]}, "not among its old classes: b/0.jpg"),
        ({"old_classes": ["a", "b"], "labelled": ["a/0.jpg"]}, "labels no image of these old classes: b"),
        (
            {"old_classes": ["a"], "labelled": ["a/0.jpg"], "unlabelled": ["a/0.jpg"]},
            "both as labelled and as unlabelled",
        ),
        ({"old_classes": ["a"], "labelled": ["a/0.jpg"], "unlabelled": ["z"]}, "not in the data: z"),
    ],
)
def test_a_bad_split_is_one_clear_line(tmp_path: Path, split: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_split(stated(tmp_path, split), listing(a=2, b=2))
    assert caught.value.code == 2 and "\n" not in str(caught.value) and "s.json" in str(caught.value)


def test_paths_of_a_split_are_found_however_written(tmp_path: Path) -> None:
    lines = ["/data/a/0.jpg", "A\\1.JPG", " b/0.jpg"]
    split, _ = read_split(
        stated(tmp_path, {"old_classes": ["a ", "b"], "labelled": lines}), listing(a=2, b=2, c=1)
    )
    assert labelled(split) == {"a": ["a/0.jpg", "a/1.jpg"], "b": ["b/0.jpg"]}
    assert any("2 paths are written otherwise" in note for note in split.notes), "an absolute path is exact"
    with pytest.raises(UserError, match=r"not in the data: z.*9.jpg \(.*backslashes"):
        read_split(stated(tmp_path, {"old_classes": ["a"], "labelled": ["z\\9.jpg"]}), listing(a=2))


def test_a_missing_split_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such split file"):
        read_split(tmp_path / "none.json", listing(a=2, b=2))
