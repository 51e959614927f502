"""A run is sent to a cluster as a job, followed there, and stopped with its state saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# One process at a time starts Ray: two at once on two cores miss its time limits.
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]

Ray = Any


def test_a_run_is_submitted_followed_and_stopped(ray: Ray, pictures: Path, tmp_path: Path) -> None:
    def runs(*words: object) -> str:
        answer = ray.end(ray.begin("runs", *words, "--address", ray.jobs, cwd=tmp_path))
        assert answer.code == 0, answer.err
        out: str = answer.out
        return out

    run = tmp_path / "run"
    answer = ray.end(ray.begin(
        "train", *ray.tiny, "--workers", 2, "--data", pictures, "--epochs", 5000, "--out", run, "--submit",
        "--address", ray.jobs, cwd=tmp_path,
    ))  # fmt: skip
    assert answer.code == 0, answer.err
    job = answer.out.split()[1].rstrip(";")
    ray.until(lambda: ray.epochs(run) >= 1)
    (line,) = [each for each in runs("list").splitlines() if each.startswith(job)]
    assert line.split()[1] == "running" and "--engine ray --address auto" in line
    assert "RUNNING" in runs("show", job.removeprefix("partgcd-"))
    assert f"asked {job} to stop" in runs("stop", job)
    ray.until(lambda: "RUNNING" not in runs("show", job))
    assert "interrupted; go on with: partgcd train --resume" in runs("logs", job)
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert list((run / "checkpoints").glob("epoch-*"))
    assert ray.end(ray.begin("runs", "show", "nobody", "--address", ray.jobs, cwd=tmp_path)).code == 2
