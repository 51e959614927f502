"""Two workers under Ray do what one process does, and go on when one of them dies."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

# One process at a time starts Ray: two at once on two cores miss its time limits.
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]

Ray = Any
EPOCHS = 12
_OF_THE_MACHINE = {"seconds", "images_per_second", "peak_memory_mb", "worker_memory_mb", "workers"}


def losses(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def classes(run: Path) -> list[tuple[str, str]]:
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return [(row["path"], row["class_name"]) for row in csv.DictReader(file)]


def figures(run: Path) -> list[dict[str, Any]]:
    """Every epoch's line without what a clock or a machine decides."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in _OF_THE_MACHINE} for line in lines]


@pytest.fixture(scope="module")
def whole(ray: Ray, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers that nobody disturbed, with a storage. Its answer is kept beside it."""
    folder = tmp_path_factory.mktemp("whole")
    answer = ray.train(
        *ray.tiny, "--workers", 2, "--data", pictures, "--epochs", EPOCHS, "--out", "run",
        "--storage", (folder / "storage").as_uri(), cwd=folder,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (folder / "err").write_text(answer.err)
    return folder / "run"


def test_two_workers_find_what_one_process_finds(whole: Path, inline: Path) -> None:
    steps = 20 // 4  # four steps an epoch: the first twenty
    for one, other in list(zip(losses(inline), losses(whole), strict=True))[:steps]:
        assert other == pytest.approx(one, rel=1e-4, abs=1e-6)
    assert sum(a != b for a, b in zip(classes(inline), classes(whole), strict=True)) <= 1


def test_a_run_says_how_wide_it_was_and_keeps_ray_quiet(whole: Path, ray: Ray) -> None:
    err = (whole.parent / "err").read_text()
    assert "2 worker(s) under Ray share each batch of 9 images" in err
    assert "epoch 12 loss" in err
    assert not any(noise in err for noise in ("INFO", "WARNING", "RayTrainWorker", "Traceback")), err
    info = json.loads((whole / "run.json").read_text())
    assert (info["status"], info["workers"]) == ("finished", 2)
    assert info["cluster"]["workers"] == 2
    line = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(line["worker_memory_mb"]) == 2


def test_nothing_is_left_behind(whole: Path, ray: Ray) -> None:
    assert list(ray.home.iterdir()) == []
    assert not (whole / "ray").exists()
    ray.until(lambda: not ray.alive("RayTrainWorker") and not ray.alive("TrainController"))


def test_the_storage_has_the_results_and_the_newest_checkpoints(whole: Path) -> None:
    (kept,) = (whole.parent / "storage").iterdir()
    assert kept.name == json.loads((whole / "run.json").read_text())["id"]
    assert (kept / "results" / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
    assert (kept / "results" / "report.html").exists()
    assert len(list(kept.glob("checkpoint_2*"))) == 2
    assert not list(kept.rglob("pixels.u8")) and not list(kept.rglob("tokens.f16"))


def test_a_killed_worker_is_replaced_and_a_stopped_run_goes_on_from_the_storage(
    whole: Path, ray: Ray, pictures: Path, tmp_path: Path
) -> None:
    run, storage = tmp_path / "run", tmp_path / "storage"
    training = ray.begin_training(
        *ray.tiny, "--workers", 2, "--data", pictures, "--epochs", EPOCHS, "--out", "run",
        "--storage", storage.as_uri(), cwd=tmp_path,
    )  # fmt: skip
    ray.until(lambda: ray.epochs(run) >= 1)
    os.kill(ray.alive("RayTrainWorker")[-1], signal.SIGKILL)
    reached = ray.epochs(run)
    # The epoch that ended as the worker died may still be written; a second one takes a new worker.
    ray.until(lambda: ray.epochs(run) >= reached + 2)
    training.send_signal(signal.SIGTERM)
    answer = ray.end(training)
    assert answer.code == 130 and "partgcd train --resume run" in answer.err
    assert ray.epochs(run) < EPOCHS
    (kept,) = storage.iterdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    answer = ray.train("--resume", kept.as_uri(), cwd=elsewhere)
    assert answer.code == 0, answer.err
    run = elsewhere / "runs" / kept.name
    assert figures(run) == figures(whole)
    assert classes(run) == classes(whole)


def test_what_a_user_got_wrong_is_one_line_though_one_worker_finds_it(
    ray: Ray, pictures: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    for image in sorted(pictures.rglob("*.png"))[::6]:
        (few / image.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(image, few / image.parent.name)
    answer = ray.train(
        *ray.tiny, "--workers", 2, "--data", few, "--classes", "auto", "--out", "run", cwd=tmp_path
    )
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("partgcd: 6 images are too few to estimate the number of")
    assert "Traceback" not in answer.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "refused"
