from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]


def test_inspect_tells_what_is_there_and_what_is_broken_and_writes_nothing(
    partgcd: Partgcd, images: Path
) -> None:
    (images / "unlabelled" / "no image.jpg").write_bytes(b"text")
    shutil.copy(images / "ash" / "0.png", images / "unlabelled" / "copy.png")
    before = sorted(images.parent.rglob("*"))
    answer = partgcd("inspect", "--data", images)
    assert answer.code == 0
    words = answer.out.split()
    assert words[words.index("found") + 1] == "20" and words[words.index("usable") + 1] == "18"
    assert words[words.index("labelled") + 1] == "8"
    assert "unlabelled/no image.jpg: " in answer.out and "unlabelled/copy.png = ash/0.png" in answer.out
    assert sorted(images.parent.rglob("*")) == before


def test_train_says_at_once_what_inspect_says_of_how_folders_are_read(
    partgcd: Partgcd, train: Partgcd, images: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "data" / "photos"
    inner.mkdir(parents=True)
    for name in ("ash", "birch"):
        (images / name).rename(inner / name)
    (images / "unlabelled").rename(tmp_path / "data" / "to sort")
    (inner / "cedar" / "@eaDir").mkdir(parents=True)
    told = partgcd("inspect", "--data", "data").out
    notes = [line.strip() for line in told[told.index("notes:") :].splitlines()[1:]]
    assert "labelled 8" in " ".join(told.split())
    for what in ("photos is read as the folder of the classes", "to sort (10)", "photos/cedar (only @eaDir)"):
        assert sum(what in note for note in notes) == 1, notes
    answer = train("--data", "data", "--out", "run", "--classes", "3", "--method", "kmeans")
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert [line.removeprefix("note: ") for line in lines if line.startswith("note: ")] == notes
    assert "3 categories (given): 2 labelled, 1 discovered" in answer.out


def test_inspect_shows_a_folder_of_nothing_but_broken_images(partgcd: Partgcd, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"")
    answer = partgcd("inspect", "--data", "broken")
    assert answer.code == 0 and "empty file" in answer.out


@pytest.mark.parametrize("name", ["absent", "empty", "file.txt"])
def test_inspect_of_no_images_is_wrong_usage(partgcd: Partgcd, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    answer = partgcd("inspect", "--data", name)
    assert answer.code == 2 and name in answer.error


def test_demo_draws_a_folder_that_train_takes(partgcd: Partgcd, train: Partgcd, tmp_path: Path) -> None:
    answer = partgcd("demo", "--out", "guide", "--species", "4", "--per-species", "4", "--size", "64")
    assert answer.code == 0
    assert "4 species, 2 of them half labelled" in answer.out
    following = next(line for line in answer.out.splitlines() if line.startswith("next: "))
    words = following.removeprefix("next: partgcd train ").split()
    assert train(*words, "--classes", "4").code == 0
    with (tmp_path / "guide" / "truth.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 16
    scored = partgcd("evaluate", "guide/run", "--truth", "guide/truth.csv")
    assert scored.code == 0 and "n=12, 4 of old classes" in scored.out


def test_demo_leaves_a_folder_alone_that_holds_something(partgcd: Partgcd, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").write_bytes(b"")
    answer = partgcd("demo", "--out", "mine", "--species", "2", "--per-species", "4", "--size", "64")
    assert answer.code == 2 and "choose another folder" in answer.error
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["holiday.jpg"]


def test_demo_that_was_interrupted_is_finished_and_a_finished_one_is_kept(
    partgcd: Partgcd, tmp_path: Path
) -> None:
    small = ("demo", "--out", "guide", "--species", "2", "--per-species", "4", "--size", "64")
    assert partgcd(*small).code == 0
    files = {path: path.read_bytes() for path in (tmp_path / "guide").rglob("*") if path.is_file()}
    (tmp_path / "guide" / "truth.csv").unlink()  # it is written last
    next(path for path in files if path.suffix == ".jpg").unlink()
    assert partgcd(*small).code == 0
    assert {path: path.read_bytes() for path in files} == files
    times = {path: path.stat().st_mtime_ns for path in files}
    assert partgcd(*small).code == 0
    assert {path: path.stat().st_mtime_ns for path in files} == times
    assert partgcd(*small, "--seed", "1").code == 2


@pytest.mark.parametrize("out", ["file/below", "x" * 300])
def test_demo_into_a_place_that_cannot_be_is_one_line(partgcd: Partgcd, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    answer = partgcd("demo", "--out", out, "--species", "2", "--per-species", "4", "--size", "64")
    assert answer.code in (1, 2) and answer.error


def test_a_second_demo_in_one_folder_is_told(partgcd: Partgcd, tmp_path: Path) -> None:
    from partgcd.disk.lock import claimed

    with claimed(tmp_path / "d", "draws a field guide"):
        answer = partgcd("demo", "--out", "d")
    assert answer.code == 75 and "another process draws a field guide in 'd'" in answer.error
    assert list((tmp_path / "d").iterdir()) == []
