from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from partgcd.bench.plan import SetSpec
from partgcd.bench.sets import write_set
from partgcd.config.errors import UserError
from partgcd.data.scan import scan


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 20 files; nothing here opens an image."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(12):
        folder = root / "birds" / f"class {number:02d}"
        folder.mkdir(parents=True)
        for image in range(20):
            (folder / f"{image:02d}.jpg").touch()
        (folder / "notes.txt").touch()
    return root


def classes_of(manifest: Path) -> Counter[str]:
    with manifest.open(newline="") as stream:
        return Counter(row["label"] for row in csv.DictReader(stream))


def test_a_draw_and_its_rest_share_nothing_and_miss_nothing(photos: Path, tmp_path: Path) -> None:
    drawn, rest, whole = (
        classes_of_set(photos, tmp_path / f"{name}.csv", spec)
        for name, spec in {
            "drawn": SetSpec(folder="birds", draw=5),
            "rest": SetSpec(folder="birds", draw=5, rest=True),
            "whole": SetSpec(folder="birds"),
        }.items()
    )
    assert (len(drawn), len(rest), len(whole)) == (5, 7, 12)
    assert not set(drawn) & set(rest) and set(drawn) | set(rest) == set(whole)
    assert set(whole.values()) == {20}


def classes_of_set(photos: Path, manifest: Path, spec: SetSpec) -> Counter[str]:
    assert write_set(spec, photos, manifest) == len(classes_of(manifest))
    return classes_of(manifest)


def test_a_tail_falls_from_the_largest_to_the_smallest(photos: Path, tmp_path: Path) -> None:
    sizes = sorted(
        classes_of_set(photos, tmp_path / "tail.csv", SetSpec(folder="birds", tail=(20, 2))).values()
    )
    assert (sizes[0], sizes[-1]) == (2, 20)
    assert sizes[len(sizes) // 2] < 10  # geometric, not linear


def test_the_scan_reads_what_was_written(photos: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "deep" / "set.csv"
    manifest.parent.mkdir()
    write_set(SetSpec(folder="birds", draw=3), photos, manifest)
    listing = scan(manifest)
    assert len(listing.entries) == 60
    assert all((listing.root / entry.path).exists() for entry in listing.entries)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SetSpec(folder="fish"), "no data set 'fish'"),
        (SetSpec(folder="birds", draw=13), "12 classes, 13"),
        (SetSpec(folder="birds", rest=True), "rest needs a draw"),
    ],
)
def test_what_cannot_be_made_says_so(photos: Path, tmp_path: Path, spec: SetSpec, says: str) -> None:
    with pytest.raises(UserError, match=says):
        write_set(spec, photos, tmp_path / "x.csv")
