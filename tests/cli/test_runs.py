from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_runs_of_this_folder_are_listed_and_shown(train: Partgcd, partgcd: Partgcd, images: Path) -> None:
    assert partgcd("runs", "list").out == ""
    train("--data", images, "--classes", "3", "--method", "simgcd")
    (line,) = partgcd("runs", "list").out.splitlines()
    name, status, *_, data = line.split()
    assert (status, data) == ("finished", str(images))
    shown = dict(each.split(": ", 1) for each in partgcd("runs", "show", name).out.splitlines())
    assert (shown["id"], shown["status"], shown["workers"], shown["epochs"]) == (
        name,
        "finished",
        "1",
        "1 of 1",
    )
    assert float(shown["loss"]) > 0


@pytest.mark.parametrize("words", [("logs", "x"), ("stop", "x")])
def test_jobs_are_followed_on_a_cluster(partgcd: Partgcd, words: tuple[str, ...]) -> None:
    answer = partgcd("runs", *words)
    assert answer.code == 2 and "--address" in answer.error


def test_a_run_that_is_not_there_is_one_line(partgcd: Partgcd) -> None:
    assert "no run 'x'" in partgcd("runs", "show", "x").error
