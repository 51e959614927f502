from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partgcd.cli.engine import Wide, _without_ours
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.run.folder import RunFolder

Partgcd = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Settings(), tmp_path, {"protocol": None, "split": None})


@pytest.mark.parametrize(
    ("wide", "workers"),
    [
        (Wide(), None),
        (Wide("auto", workers=1), None),
        (Wide(gpu=True), None),
        (Wide("inline"), None),
        (Wide("ray"), 1),
        (Wide(workers=3), 3),
        (Wide(address="10.0.0.1:6379"), 1),
        (Wide(storage="s3://x"), 1),
        (Wide("ray", workers=2, gpu=True, max_failures=0), 2),
    ],
)
def test_the_engine_is_ray_where_more_than_this_process_is_asked_for(
    run: RunFolder, wide: Wide, workers: int | None
) -> None:
    pytest.importorskip("ray")
    wide.check()
    cluster = wide.cluster(run)
    assert (cluster.workers if cluster else None) == workers
    assert ("cluster" in run.info()) == (workers is not None)


def test_a_resumed_run_goes_on_as_wide_as_it_was_unless_told_otherwise(run: RunFolder) -> None:
    pytest.importorskip("ray")
    Wide(workers=3, storage="s3://x", max_failures=0).cluster(run)
    again = Wide().cluster(run)
    assert again is not None and (again.workers, again.storage, again.max_failures) == (3, "s3://x", 0)
    narrower = Wide(workers=1).cluster(run)
    assert narrower is not None and (narrower.workers, narrower.storage) == (1, "s3://x")
    assert Wide("inline").cluster(run) is None


@pytest.mark.parametrize(
    ("wide", "told"),
    [
        (Wide("spark"), "no engine 'spark'"),
        (Wide("inline", workers=2), "--engine inline"),
        (Wide("inline", storage="x"), "--engine inline"),
    ],
)
def test_contradictions_are_refused(wide: Wide, told: str) -> None:
    with pytest.raises(UserError, match=told):
        wide.check()


def test_what_is_submitted_says_nothing_of_where_it_came_from() -> None:
    words = ["train", "--data", "d", "--submit", "--address", "http://a:1", "--workers", "2", "--verbose"]
    assert _without_ours(words) == ["train", "--data", "d", "--workers", "2"]
    assert _without_ours(["train", "--engine=ray", "--address=x", "--data=d"]) == ["train", "--data=d"]


def test_submitting_needs_an_address(partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    answer = partgcd("train", "--data", "x", "--submit")
    assert answer.code == 2 and "--address" in answer.error


def test_without_ray_one_line_says_what_to_install(
    train: Partgcd, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = train("--data", images, "--classes", "3", "--workers", "2")
    assert answer.code == 2 and "pip install 'partgcd[cpu]'" in answer.error
