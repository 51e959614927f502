from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.cli.rediscover import _bare, rediscover, run_as_job, seconds_of
from partgcd.config.errors import UserError
from partgcd.continual.request import Request
from partgcd.registry.versions import Registry

Partgcd = Callable[..., Any]
LOOK = ("rediscover", "--registry", "r", "--new", "new")


@pytest.fixture(autouse=True)
def registry(partgcd: Partgcd, light_bundle: Callable[..., Path], tmp_path: Path) -> None:
    """A registry ``r``, and an empty folder ``new``."""
    light_bundle("one", ["c-1", "c-2"])
    assert partgcd("registry", "init", "r").code == partgcd("registry", "add", "r", "one").code == 0
    (tmp_path / "new").mkdir()


def test_nothing_new_is_done_at_once(partgcd: Partgcd, tmp_path: Path) -> None:
    answer = partgcd(*LOOK)
    assert answer.code == 0 and answer.out == "nothing new: no images there\n"
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "new" / "one.png")
    answer = partgcd(*LOOK, "--min-new", "5")
    assert answer.code == 0 and answer.out == "1 of 5 new photos: not yet\n"
    for number in range(2):
        (tmp_path / "told" / "c-1").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), 50 * number, np.uint8)).save(tmp_path / f"told/c-1/{number}.png")
    answer = partgcd(*LOOK, "--min-new", "5", "--labelled", "told")
    assert answer.code == 0 and answer.out == "3 of 5 new photos: not yet\n"
    answer = partgcd(*LOOK, "--min-new", "5", "--labelled", "nowhere")
    assert answer.code == 2 and "nowhere" in answer.error


def test_the_command_leaves_to_the_library_how_long_to_train() -> None:
    assert (
        inspect.signature(rediscover).parameters["epochs"].default is None is Request(Path(), Path()).epochs
    )


def test_only_files_that_can_not_be_read_fail(partgcd: Partgcd, tmp_path: Path) -> None:
    (tmp_path / "new" / "empty.jpg").write_bytes(b"")
    answer = partgcd(*LOOK)
    assert answer.code == 1 and "can be read" in answer.error


def test_another_run_under_way_is_75(partgcd: Partgcd) -> None:
    with Registry(Path("r")).training():
        answer = partgcd(*LOOK)
    assert answer.code == 75 and "is busy with a rediscovery" in answer.error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--promote", "maybe"], "use gate, always or never"),
        (["--keep", "some"], "use images or no-images"),
        (["--every", "6"], "--every 6"),
        (["--every", "1h", "--cron", "* * * * *"], "one of them"),
        (["--cron", "nightly"], "is no time"),
        (["--on-drift", "0.3"], "go together"),
        (["--on-drift", "0.3", "--metrics-url", "file:///x"], "is no address"),
        (["--every", "1h", "--jitter", "50m"], "--jitter"),
        (["--submit"], "go together"),
    ],
)
def test_wrong_words_are_usage_errors(partgcd: Partgcd, words: list[str], told: str) -> None:
    answer = partgcd(*LOOK, *words)
    assert answer.code == 2 and told in answer.error


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5m", 90), ("6h", 21600), ("1d", 86400)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text, "--every") == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "1 week"])
def test_times_without_units_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--every"):
        seconds_of(text, "--every")


def test_a_run_of_the_schedule_is_this_command_without_it() -> None:
    words = [
        "rediscover",
        "--registry",
        "r",
        "--every",
        "6h",
        "--min-new=4",
        "--jitter",
        "5m",
        "--promote=never",
    ]
    assert _bare([*words, "--submit", "--address", "http://x:1"]) == [
        "rediscover", "--registry", "r", "--promote=never",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "message", "code"),
    [
        ("SUCCEEDED", "", 0),
        ("FAILED", "entrypoint command failed with exit code 3, last available logs", 3),
        ("FAILED", "the node died", 1),
        ("RUNNING", "", 130),
    ],
)
def test_a_run_as_a_job_ends_as_the_job_does(
    monkeypatch: pytest.MonkeyPatch, end: str, message: str, code: int
) -> None:
    from partgcd.training import jobs

    sent, stopped, looks = list[list[str]](), list[str](), iter(["PENDING", "RUNNING", end])
    monkeypatch.setattr(jobs, "submit_job", lambda address, command: sent.append(command) or "job-1")
    monkeypatch.setattr(
        jobs, "show_job", lambda address, name: jobs.Job(name, next(looks), "", "", "", message)
    )
    monkeypatch.setattr(jobs, "stop_job", lambda address, name: stopped.append(name))
    asked = iter([False, False, True])
    assert run_as_job("http://x:1", ["rediscover"], lambda seconds: next(asked)) == code
    assert sent == [["partgcd", "rediscover"]] and stopped == (["job-1"] if code == 130 else [])


def test_the_schedule_says_in_a_file_what_it_does(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from partgcd.schedule import timer

    ran: list[list[str]] = []
    monkeypatch.setattr(timer.Stopper, "listen", lambda self: None)
    monkeypatch.setattr(timer.Stopper, "run", lambda self, command: ran.append(list(command)) or 3)
    monkeypatch.setattr(timer.Stopper, "wait", lambda self, seconds: bool(ran))
    answer = partgcd(*LOOK, "--every", "6h", "--min-new", "0", "--promote", "never")
    assert answer.code == 0 and ran == [
        ["rediscover", "--registry", "r", "--new", "new", "--promote", "never"]
    ]
    assert "running: due, 0 new photos" in answer.err and "ended with 3" in answer.err
    status = json.loads((tmp_path / "r" / "schedule.json").read_text())
    assert (
        status["state"] == "stopped" and status["history"]["code"] == 3 and status["history"]["failures"] == 0
    )


def test_a_folder_of_corrections_that_is_gone_does_not_end_a_schedule(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.schedule import timer

    ran: list[list[str]] = []
    monkeypatch.setattr(timer.Stopper, "listen", lambda self: None)
    monkeypatch.setattr(timer.Stopper, "run", lambda self, command: ran.append(list(command)) or 2)
    monkeypatch.setattr(timer.Stopper, "wait", lambda self, seconds: bool(ran))
    answer = partgcd(*LOOK, "--every", "6h", "--min-new", "0", "--labelled", "nowhere")
    assert answer.code == 0 and "running: due, 0 new photos" in answer.err and "ended with 2" in answer.err


def wait_for_runs(status: Path, process: subprocess.Popen[bytes], runs: int) -> dict[str, Any]:
    """schedule.json once it tells of ``runs`` runs that ended."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "the scheduler ended by itself"
        told: dict[str, Any] = json.loads(status.read_text()) if status.exists() else {}
        if told.get("history", {}).get("runs", 0) >= runs:
            return told
        time.sleep(0.1)
    raise AssertionError(f"no {runs} runs: {status.read_text() if status.exists() else 'no status'}")


def test_a_scheduler_that_was_killed_between_runs_goes_on(tmp_path: Path) -> None:
    status, words = tmp_path / "r" / "schedule.json", [*LOOK, "--every", "2s", "--min-new", "0"]
    command = [sys.executable, "-m", "partgcd", *words]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        told = wait_for_runs(status, first, 1)
    finally:
        first.kill()
        first.wait()
    second = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        after = wait_for_runs(status, second, told["history"]["runs"] + 1)
        assert after["history"]["began"] == told["history"]["began"] and after["history"]["code"] == 0
        second.terminate()
        assert second.wait(60) == 0
    finally:
        second.kill()
        second.wait()
    assert json.loads(status.read_text())["state"] == "stopped"
