from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]
Pictures = Callable[[Path, dict[str, int], int], Path]


def info(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())  # type: ignore[no-any-return]


def test_a_run_says_what_it_found_and_where(train: Partgcd, images: Path, tmp_path: Path) -> None:
    answer = train("--data", images, "--classes", "4")
    assert answer.code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert info(run)["id"] in answer.err
    assert (
        "4 categories (given): 2 labelled, 2 discovered; 18 images, 0 unreadable, 0 duplicates" in answer.out
    )
    assert answer.out.splitlines()[-1] == f"report: runs/{run.name}/report.html"
    assert (run / "report.html").stat().st_size > 10_000
    assert info(run)["command"][0] == "train"


def test_flags_settings_files_and_presets_reach_the_run(train: Partgcd, images: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train: {momentum: 0.5}\nloss: {supervised_weight: 0.25}\n")
    answer = train(
        "--data", images, "--out", "run", "--classes", "3", "--preset", "paper-generic", "--config", "mine.yaml",
        "--set", "loss.supervised_weight=0.75", "--seed", "9", "--method", "simgcd",
    )  # fmt: skip
    assert answer.code == 0
    from partgcd.run.folder import RunFolder

    settings = RunFolder.open(tmp_path / "run").settings()
    assert (settings.train.momentum, settings.loss.supervised_weight, settings.parts.alpha) == (
        0.5,
        0.75,
        1.0,
    )
    assert (settings.seed, settings.discovery.method, settings.backbone.name) == (9, "simgcd", "test_vit")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--data FOLDER"),
        (["--data", "absent"], "no such folder"),
        (["--data", "images", "--set", "train.epochs=0"], "train.epochs = 0"),
        (["--data", "images", "--set", "nope.x=1"], "unknown setting 'nope'"),
        (["--data", "images", "--set", "train.batchsize=8"], "did you mean 'train.batch_size'"),
        (["--data", "images", "--set", "epochs"], "a.b=value"),
        (["--data", "images", "--set", "parts.count=1"], "from 2 to 32"),
        (["--data", "images", "--set", "parts.count=33"], "from 2 to 32"),
        (["--data", "images", "--classes", "1"], "at least 2"),
        (["--data", "images", "--classes", "-4"], "at least 2"),
        (["--data", "images", "--classes", "some"], "discovery.classes"),
        (["--data", "images", "--method", "magic"], "discovery.method"),
        (["--data", "images", "--precision", "fp8"], "train.precision"),
        (["--data", "images", "--seed", "-1"], "seed"),
        (["--data", "images", "--max-broken", "2"], "data.max_broken"),
        (["--data", "images", "--preset", "fast"], "no preset 'fast'"),
        (["--data", "images", "--config", "absent.yaml"], "no settings file"),
        (["--data", "images", "--protocol", "other"], "the only one is gcd"),
        (["--data", "images", "--split", "absent.json"], "no such split file"),
        (["--data", "images", "--repeats", "2"], "--repeats needs --out"),
        (["--data", "images", "--repeats", "3", "--out", "r", "--seed", "2147483646", "--method", "kmeans"], "seed"),
        (["--resume", "absent"], "no run 'absent'"),
        (["--resume", "x" * 300], "no run"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_writes_nothing(
    partgcd: Partgcd, images: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    answer = partgcd("train", *words)
    assert answer.code == 2
    assert told in answer.error
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize("out", ["file", "file/below", "x" * 300, "images"])
@pytest.mark.parametrize("repeats", ["1", "2"])
def test_a_run_folder_that_cannot_be_is_one_line(
    train: Partgcd, images: Path, tmp_path: Path, out: str, repeats: str
) -> None:
    (tmp_path / "file").write_text("")
    answer = train("--data", images, "--out", out, "--classes", "3", "--repeats", repeats)
    assert answer.code == 2 and answer.error


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "words", "told"),
    [
        ({}, 0, [], "no images"),
        ({"ash": 3, "birch": 3}, 0, [], "every image is labelled"),
        ({"ash": 3, "birch": 3, "cedar": 3}, 3, ["--classes", "2"], "below the 3 labelled"),
        ({"ash": 3}, 3, ["--classes", "7"], "more than the 6 images"),
        ({"ash": 1}, 2, ["--classes", "2", "--set", "parts.count=4"], "fewer than the 4 parts"),
        ({"ash": 3}, 3, ["--classes", "2", "--device", "cuda:9"], "cuda:9"),
        ({"ash": 3}, 3, ["--classes", "2", "--backbone", "test_vitt"], "test_vit"),
        ({"ash": 3}, 3, ["--classes", "2", "--image-size", "150"], "150"),
        ({}, 4, ["--protocol", "gcd"], "needs every image's class"),
    ],
)  # fmt: skip
def test_data_that_no_run_can_use_is_wrong_usage(
    train: Partgcd, pictures: Pictures, tmp_path: Path, labelled: dict[str, int], unlabelled: int,
    words: list[str], told: str,
) -> None:  # fmt: skip
    (tmp_path / "d").mkdir()
    answer = train("--data", pictures(tmp_path / "d", labelled, unlabelled), *words)
    assert answer.code == 2
    assert told in answer.error


def test_weights_that_cannot_be_reached_fail_with_the_ways_out(
    train: Partgcd, partgcd: Partgcd, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.backbone import hub

    monkeypatch.setattr(hub, "_unreachable", lambda: "it cannot be reached from this machine")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    answer = partgcd(
        "train", "--data", images, "--classes", "3", "--backbone", "resnet10t.c3_in1k", "--image-size", "64",
        "--set", "parts.count=3", "--threads", "1",
    )  # fmt: skip
    assert answer.code == 1
    for way in ("--weights FILE", "partgcd weights fetch", "--random-weights"):
        assert way in answer.error


def test_too_many_broken_images_fail_unless_they_are_tolerated(train: Partgcd, images: Path) -> None:
    for number in range(3):
        (images / "unlabelled" / f"broken {number}.png").write_bytes(b"no image %d" % number)
    answer = train("--data", images, "--out", "a", "--classes", "3")
    assert answer.code == 1 and "3 of 21 images" in answer.error
    answer = train(
        "--data", images, "--out", "b", "--classes", "3", "--max-broken", "0.2", "--method", "simgcd"
    )
    assert answer.code == 0 and "3 unreadable" in answer.out


def test_a_folder_that_holds_a_run_is_not_begun_again(train: Partgcd, images: Path) -> None:
    same = ("--data", images, "--out", "run", "--classes", "3", "--method", "kmeans")
    assert train(*same).code == 0
    before = {path: path.stat().st_mtime_ns for path in (images.parent / "run").rglob("*")}
    assert "--resume" in train(*same).error
    other = train(*same, "--seed", "4", "--set", "train.lr=0.5")
    assert other.code == 2
    assert "seed: 0 != 4" in other.error and re.search(r"train\.lr: \S+ != 0\.5", other.error)
    assert {path: path.stat().st_mtime_ns for path in (images.parent / "run").rglob("*")} == before


def test_a_finished_run_is_resumed_by_path_and_by_id_without_doing_it_again(
    train: Partgcd, partgcd: Partgcd, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        train("--data", "../" + tmp_path.name + "/images", "--classes", "3", "--method", "simgcd").code == 0
    )
    (run,) = (tmp_path / "runs").iterdir()
    before = (run / "predictions.parquet").read_bytes()
    for name in (f"runs/{run.name}", info(run)["id"], run.name):
        answer = partgcd("train", "--resume", name)
        assert answer.code == 0, answer.err
        assert "3 categories" in answer.out
    assert (run / "predictions.parquet").read_bytes() == before
    # What it was begun with may be repeated, in whatever spelling; anything else is refused.
    same = ("--resume", run, "--data", "../" + tmp_path.name + "/images", "--classes", "3")
    assert partgcd("train", *same).code == 0
    assert "seed: 0 != 3" in partgcd("train", *same, "--seed", "3").error
    assert "--data" in partgcd("train", "--resume", run, "--data", tmp_path).error
    assert "--protocol" in partgcd("train", "--resume", run, "--protocol", "gcd").error


def test_an_unknown_run_to_resume_lists_those_that_are_there(
    train: Partgcd, partgcd: Partgcd, images: Path, tmp_path: Path
) -> None:
    train("--data", images, "--classes", "3", "--method", "kmeans")
    (run,) = (tmp_path / "runs").iterdir()
    answer = partgcd("train", "--resume", "20200101-000000-000000")
    assert answer.code == 2 and info(run)["id"] in answer.error


def test_repeats_are_runs_with_seeds_and_a_summary_with_their_spread(
    train: Partgcd, partgcd: Partgcd, pictures: Pictures, tmp_path: Path
) -> None:
    data = pictures(tmp_path / "classes", {"ash": 6, "birch": 6, "cedar": 6}, 0)
    answer = train(
        "--data", data, "--protocol", "gcd", "--out", "rep", "--classes", "3", "--repeats", "2", "--seed", "5",
        "--method", "simgcd",
    )  # fmt: skip
    assert answer.code == 0
    rep = tmp_path / "rep"
    runs = [json.loads((rep / f"seed-{seed}" / "summary.json").read_text()) for seed in (5, 6)]
    summary = json.loads((rep / "summary.json").read_text())
    assert summary["seeds"] == [5, 6] and summary["runs"] == [run["id"] for run in runs]
    scores = [run["accuracy"]["v2"]["all"] for run in runs]
    assert summary["accuracy"]["v2"]["all"] == pytest.approx(sum(scores) / 2)
    assert summary["spread"]["v2"]["all"] == pytest.approx(abs(scores[0] - scores[1]))
    assert "mean over seeds [5, 6]: all " in answer.out
    before = {path: path.read_bytes() for path in rep.glob("seed-*/predictions.parquet")}
    (rep / "summary.json").unlink()
    assert partgcd("train", "--resume", "rep").code == 0
    assert json.loads((rep / "summary.json").read_text()) == summary
    assert {path: path.read_bytes() for path in before} == before
    assert train("--data", data, "--out", "rep", "--repeats", "2").code == 2


def test_a_finished_run_can_be_resumed_after_its_report_was_lost(
    train: Partgcd, partgcd: Partgcd, images: Path
) -> None:
    train("--data", images, "--out", "run", "--classes", "3", "--method", "kmeans")
    report = images.parent / "run" / "report.html"
    report.unlink()
    assert partgcd("train", "--resume", "run").code == 0
    assert report.exists()


def test_running_out_of_memory_says_what_to_lower(
    train: Partgcd, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.discovery import discover as whole

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(whole, "fit", fail)
    answer = train("--data", images, "--classes", "3", "--method", "simgcd")
    assert answer.code == 1 and "--batch-size" in answer.error


def test_a_run_that_was_refused_before_it_trained_can_be_begun_anew(train: Partgcd, images: Path) -> None:
    assert train("--data", images, "--out", "run", "--classes", "500").code == 2
    assert info(Path("run"))["status"] == "refused"
    assert train("--data", images, "--out", "run", "--classes", "4").code == 0
    assert info(Path("run"))["status"] == "finished"
    assert train("--data", images, "--out", "run", "--classes", "5").code == 2


@pytest.mark.parametrize("words", [("--out", "elsewhere"), ("--repeats", "2"), ("--preset", "quick")])
def test_resume_takes_no_option_that_it_would_ignore(train: Partgcd, words: tuple[str, str]) -> None:
    answer = train("--resume", "run", *words)
    assert answer.code == 2 and "drop --out" in answer.error


def test_a_second_training_in_one_folder_is_told_before_any_work(
    train: Partgcd, partgcd: Partgcd, images: Path, tmp_path: Path
) -> None:
    from partgcd.config.tree import Settings
    from partgcd.run.folder import RunFolder, claimed_run

    with claimed_run(tmp_path / "run"):
        for words in (["--out", "run"], ["--out", "run", "--repeats", "2"]):
            answer = train("--data", images, *words)
            assert answer.code == 75 and answer.error.startswith("another process works on the run in 'run'")
        assert list((tmp_path / "run").iterdir()) == []
        run = RunFolder.create(tmp_path / "run", Settings(), images, {"protocol": None, "split": None})
        before = run.record.read_bytes()
        answer = partgcd("train", "--resume", "run")
        assert answer.code == 75 and answer.error and run.record.read_bytes() == before
