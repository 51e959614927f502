from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from partgcd.cli import progress as module
from partgcd.cli.progress import Progress, describe_failure
from partgcd.config.errors import UserError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    return clock


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
    return stream


def test_without_a_terminal_there_are_plain_lines_now_and_then(plain: io.StringIO, clock: Clock) -> None:
    progress = Progress()
    for done in range(101):
        progress.update("training", done, 100, "loss 1.0")
        clock.now += 0.5
    progress.line("report")
    progress.close()
    lines = plain.getvalue().splitlines()
    assert "\r" not in plain.getvalue() and "█" not in plain.getvalue()
    assert lines[0] == "training 0/100 (0%) loss 1.0"
    assert lines[1] == "training 20/100 (20%) 0:40 left loss 1.0"
    assert lines[-2:] == ["training 100/100 (100%) loss 1.0", "report"]
    assert len(lines) == 7


def test_a_terminal_has_one_bar_that_is_wiped(terminal: Terminal, clock: Clock) -> None:
    progress = Progress()
    for done in range(5):
        progress.update("images", done, 4)
        clock.now += 60
    progress.line("done")
    text = terminal.getvalue()
    assert text.count("\n") == 1 and text.endswith("\rdone\n")
    assert "images     ████████████░░░░░░░░░░░░  50% 2:00 left" in text
    drawn = text.split("\r")
    assert drawn[-2].strip() == "", "the bar was not wiped before the line"


def test_a_bar_is_not_redrawn_faster_than_the_eye(terminal: Terminal, clock: Clock) -> None:
    progress = Progress()
    for done in range(1000):
        progress.update("images", done, 1000)
        clock.now += 0.001
    assert terminal.getvalue().count("\r") <= 12


def test_a_shorter_bar_covers_a_longer_one(terminal: Terminal, clock: Clock) -> None:
    progress = Progress()
    progress.update("training", 1, 10, "epoch 1/10 loss 12.345")
    clock.now += 1
    progress.update("training", 2, 10, "")
    first, second = terminal.getvalue().split("\r")[1:]
    assert len(second) >= len(first)


@pytest.mark.parametrize("total", [0, -1])
def test_nothing_to_do_shows_nothing(plain: io.StringIO, total: int) -> None:
    Progress().update("trunk", 0, total)
    assert plain.getvalue() == ""


def test_hours_are_shown_as_hours(plain: io.StringIO, clock: Clock) -> None:
    progress = Progress()
    progress.update("training", 0, 100)
    clock.now += 100
    progress.update("training", 1, 100)
    assert "2:45:00 left" in plain.getvalue()


def test_an_epoch_is_a_line_where_there_is_no_bar(plain: io.StringIO) -> None:
    metrics = {
        "epoch": 3,
        "loss": {"total": 1.25},
        "sizes": {"empty": 2},
        "seconds": {"epoch": 4.0, "refresh": 1.0},
    }
    Progress().epoch(metrics)
    assert plain.getvalue() == "epoch 3 loss 1.250 empty classes 2 4.0 s (1.0 s refresh)\n"


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate"),
     RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
)  # fmt: skip
def test_running_out_of_memory_names_what_to_lower(error: MemoryError | RuntimeError) -> None:
    told = describe_failure(error)
    assert isinstance(told, UserError) and told.code == 1
    assert "--batch-size" in str(told)


def test_other_failures_stay_what_they_are() -> None:
    error = RuntimeError("shapes differ")
    assert describe_failure(error) is error
