from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.discovery.task import Task, listing_of


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def test_a_task_comes_back_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = Task(tmp_path / "images", None, Path("split.json"))
    record = json.loads(json.dumps({"data": str(task.data), "request": task.request()}))
    monkeypatch.chdir("/")
    assert Task.from_record(record) == Task(tmp_path / "images", None, tmp_path / "split.json")
    plain = Task(tmp_path / "images", "gcd")
    assert Task.from_record({"data": str(plain.data), "request": plain.request()}) == plain


@pytest.mark.parametrize(
    ("protocol", "split", "words"),
    [
        ("gcd", "split.json", "give one of them"),
        ("cgcd", None, "the only one is gcd"),
        ("", None, "no protocol"),
        (None, "absent.json", "no such split file"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(
    tmp_path: Path, protocol: str | None, split: str | None, words: str
) -> None:
    (tmp_path / "split.json").write_text("{}")
    with pytest.raises(UserError, match=words) as caught:
        Task(tmp_path, protocol, tmp_path / split if split else None).check()
    assert caught.value.code == 2


def test_data_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder or manifest"):
        Task(tmp_path / "absent").check()


def test_plain_folders_carry_no_truth(tmp_path: Path) -> None:
    listing, truth = listing_of(Task(touch(tmp_path, "a/1.png", "unlabelled/2.png")), 0)
    assert truth == {}
    assert {entry.path: entry.label for entry in listing.entries} == {
        "a/1.png": "a",
        "unlabelled/2.png": None,
    }


def test_a_manifest_carries_its_own_truth(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png")
    (tmp_path / "m.csv").write_text("path,label,truth\n1.png,a,\n2.png,,b\n")
    _, truth = listing_of(Task(tmp_path / "m.csv"), 0)
    assert truth == {"2.png": "b"}


def test_the_protocol_hides_labels_by_the_seed(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/{i}.png" for name in "abcdef" for i in range(6)))
    task = Task(tmp_path, "gcd")
    listing, truth = listing_of(task, 0)
    labels = {entry.label for entry in listing.entries}
    assert None in labels and len(labels) == 4
    assert len(truth) == 36 and truth["a/0.png"] == "a"
    assert listing_of(task, 0)[0].entries == listing.entries
    assert listing_of(task, 1)[0].entries != listing.entries


def test_a_split_decides_the_labels(tmp_path: Path) -> None:
    touch(tmp_path / "d", "a/0.png", "a/1.png", "b/0.png")
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"old_classes": ["a"], "labelled": ["a/0.png"]}))
    listing, truth = listing_of(Task(tmp_path / "d", None, split), 0)
    assert [(entry.path, entry.label) for entry in listing.entries] == [
        ("a/0.png", "a"), ("a/1.png", None), ("b/0.png", None),
    ]  # fmt: skip
    assert truth == {"a/0.png": "a", "a/1.png": "a", "b/0.png": "b"}


def test_checking_a_task_needs_no_torch() -> None:
    code = "import sys, partgcd.discovery.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
