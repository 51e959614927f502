"""The inbox's list on disks that are full, and shared by several servers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.errors import UserError
from partgcd.export.predictor import Answer, Choice
from partgcd.serving.inbox import Inbox
from partgcd.serving.inbox_lines import LINES, Lines
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Collecting

ANSWER = Answer((Choice("c-1", "red", "old", 0.9),), False, 1.5, "v" * 64)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    made = Inbox(Collecting(folder=tmp_path / "in"), Metrics())
    yield made
    made.close()


def line(number: int, count: int = 10) -> dict[str, object]:
    return {"sha256": f"{number:064x}", "bytes": count}


def whole(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def images(inbox: Inbox) -> list[str]:
    return sorted(each.name for each in inbox.settings.folder.iterdir() if each.name != LINES)


@pytest.mark.parametrize("room", [0, 1, 40, 200])
def test_a_full_disk_keeps_an_image_and_its_line_or_neither(
    inbox: Inbox, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes ``room`` bytes of the second line, then it is full; later there is room again."""
    write, left = os.write, [10**9]

    def nearly_full(handle: int, data: bytes) -> int:
        count = min(left[0], len(data))
        if count == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= count
        return write(handle, data[:count])

    monkeypatch.setattr("partgcd.serving.inbox_lines.os.write", nearly_full)
    assert inbox._kept(b"\xff\xd8\xffone", ANSWER) == "kept"
    left[0] = room
    with pytest.raises(UserError, match="disk is full"):
        inbox._kept(b"\xff\xd8\xfftwo", ANSWER)
    assert len(whole(inbox.settings.folder / LINES)) == len(images(inbox)) == 1
    left[0] = 10**9
    assert [inbox._kept(b"\xff\xd8\xff" + each, ANSWER) for each in (b"two", b"three", b"two")] == [
        "kept", "kept", "known",
    ]  # fmt: skip
    assert sorted(each["file"] for each in whole(inbox.settings.folder / LINES)) == images(inbox)


def test_an_image_that_can_not_be_written_has_no_line(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inbox._kept(b"\xff\xd8\xffone", ANSWER) == "kept"

    def full(path: Path, data: bytes) -> None:
        raise UserError("the disk is full", 1)

    with monkeypatch.context() as patched:
        patched.setattr("partgcd.serving.inbox.write_bytes", full)
        with pytest.raises(UserError):
            inbox._kept(b"\xff\xd8\xfftwo", ANSWER)
    assert len(whole(inbox.settings.folder / LINES)) == 1
    assert inbox._kept(b"\xff\xd8\xfftwo", ANSWER) == "kept"
    assert len(whole(inbox.settings.folder / LINES)) == len(images(inbox)) == 2


def test_a_resend_gets_the_line_that_is_missing(inbox: Inbox) -> None:
    inbox._kept(b"\xff\xd8\xffone", ANSWER)
    (inbox.settings.folder / LINES).write_text("")
    assert inbox._kept(b"\xff\xd8\xffone", ANSWER) == "kept"
    assert inbox._kept(b"\xff\xd8\xffone", ANSWER) == "known"
    (told,) = whole(inbox.settings.folder / LINES)
    assert told["file"] == images(inbox)[0] and told["bytes"] == 6


def test_a_resend_gets_the_image_that_is_missing(inbox: Inbox) -> None:
    inbox._kept(b"\xff\xd8\xffone", ANSWER)
    (inbox.settings.folder / images(inbox)[0]).unlink()
    assert inbox._kept(b"\xff\xd8\xffone", ANSWER) == "kept"
    assert len(images(inbox)) == len(whole(inbox.settings.folder / LINES)) == 1


@pytest.mark.parametrize(
    "left", [b'{"sha256": "ab', b"x" * 3_000_000, b'{"sha256": "' + b"0" * 64 + b'", "bytes": 3}']
)
def test_half_a_line_is_never_glued_to_the_next(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / LINES
    path.write_bytes(json.dumps(line(1)).encode() + b"\n" + left)
    lines = Lines(path)
    with lines.locked():
        lines.append(line(2))
        assert lines.has(f"{1:064x}") and lines.has(f"{2:064x}")
    assert whole(path)[0] == line(1) and whole(path)[-1] == line(2)


def test_a_quota_holds_over_two_servers(tmp_path: Path) -> None:
    """Both look into the folder once a minute, and yet know what the other one kept."""
    servers = [Inbox(Collecting(folder=tmp_path, quota_mb=0.001), Metrics()) for _ in range(2)]
    try:
        results = [
            servers[number % 2]._kept(b"\xff\xd8\xff" + bytes([number]) * 97, ANSWER) for number in range(30)
        ]
    finally:
        for each in servers:
            each.close()
    assert results.count("kept") == 10 and results[10:] == ["quota"] * 20
    assert len(whole(tmp_path / LINES)) == 10


def test_two_processes_write_into_one_list(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from partgcd.serving.inbox_lines import Lines\n"
        "lines, first = Lines(Path(sys.argv[1])), int(sys.argv[2])\n"
        "for number in range(first, first + 60):\n"
        "    with lines.locked():\n"
        "        if not lines.has(f'{number:064x}'): lines.append({'sha256': f'{number:064x}', 'bytes': 1})\n"
    )
    path = tmp_path / LINES
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), str(each)]) for each in (0, 30)]
    assert [each.wait(60) for each in processes] == [0, 0]
    assert sorted(int(each["sha256"], 16) for each in whole(path)) == list(range(90))


def test_a_list_that_was_moved_away_begins_anew(inbox: Inbox) -> None:
    inbox._kept(b"\xff\xd8\xffone", ANSWER)
    path = inbox.settings.folder / LINES
    path.rename(inbox.settings.folder / "old.jsonl")
    assert inbox._kept(b"\xff\xd8\xfftwo", ANSWER) == "kept"
    assert len(whole(path)) == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("file", "a file, not a folder"), ("pipe", "a pipe, not a folder"), ("link", "a link, not a folder"),
        ("dangling", "a link, not a folder"), ("list pipe", "a pipe, not a file"), ("list link", "a link, not a file"),
        ("list folder", "a folder, not a file"),
    ],
)  # fmt: skip
def test_an_inbox_that_is_something_else_is_refused_at_once(tmp_path: Path, kind: str, words: str) -> None:
    folder = tmp_path / "in"
    place = folder / LINES if kind.startswith("list") else folder
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    if kind.endswith("file"):
        place.write_text("x")
    elif kind.endswith("pipe"):
        os.mkfifo(place)
    elif kind.endswith("folder"):
        place.mkdir()
    else:
        place.symlink_to(tmp_path / ("nowhere" if kind == "dangling" else "elsewhere"))
    with pytest.raises(UserError, match=words) as caught:
        Inbox(Collecting(folder=folder), Metrics())
    assert caught.value.code == 1 and "--collect" in str(caught.value) and "\n" not in str(caught.value)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_list_that_becomes_a_pipe_holds_nobody(inbox: Inbox) -> None:
    path = inbox.settings.folder / LINES
    path.unlink()
    os.mkfifo(path)
    with pytest.raises((UserError, OSError)):
        inbox._kept(b"\xff\xd8\xffone", ANSWER)
    assert images(inbox) == []
