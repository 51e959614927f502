from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partgcd.cli.results import print_accuracy

Partgcd = Callable[..., Any]


@pytest.fixture
def run(train: Partgcd, images: Path) -> Path:
    answer = train("--data", images, "--out", "run", "--classes", "3", "--method", "simgcd")
    assert answer.code == 0, answer.err
    return images.parent / "run"


def truth_file(folder: Path, images: Path) -> Path:
    file = folder / "truth.csv"
    rows = [
        f"{path.relative_to(images).as_posix()},{'ash' if number % 2 else 'oak'}"
        for number, path in enumerate(sorted((images / "unlabelled").iterdir()))
    ]
    file.write_text("\n".join(["path,truth", *rows]) + "\n")
    return file


def test_a_run_is_scored_reported_and_remembers_its_score(partgcd: Partgcd, run: Path, images: Path) -> None:
    before = (run / "report.html").read_bytes()
    answer = partgcd("evaluate", run, "--truth", truth_file(run.parent, images))
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "on unlabelled training images (n=10, 5 of old classes):"
    assert "v2" in answer.out and "NMI" in answer.out and "candidate purity" in answer.out
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert json.loads((run / "summary.json").read_text())["accuracy"] == evaluation
    assert (run / "report.html").read_bytes() != before
    assert f"All {100 * evaluation['v2']['all']:.1f}%" in answer.out


def test_truth_that_is_written_otherwise_is_found_and_told(partgcd: Partgcd, run: Path, images: Path) -> None:
    plain = truth_file(run.parent, images)
    scored = partgcd("evaluate", run, "--truth", plain).out
    lines = plain.read_text().replace("path,truth", "file,class").replace("/", "\\").splitlines()
    other = run.parent / "other.csv"
    rows = [line.upper().replace(",ASH", ",ash").replace(",OAK", ",oak") for line in lines[1:]]
    other.write_text("\r\n".join([lines[0], *rows, "elsewhere.png,ash"]))
    answer = partgcd("evaluate", run, "--truth", other)
    assert answer.code == 0 and answer.out == scored
    for what in ("'file' is read as 'path'", "10 paths are written otherwise", "1 of 11 paths are no image"):
        assert answer.err.count(what) == 1, answer.err


def test_a_run_without_truth_asks_for_it(partgcd: Partgcd, run: Path) -> None:
    answer = partgcd("evaluate", run)
    assert answer.code == 2 and "--truth FILE" in answer.error


@pytest.mark.parametrize(
    "content", [None, "path,truth\nelsewhere/1.png,ash\n", "a,b\n1,2\n", "", "path,truth\n"]
)
def test_truth_that_does_not_fit_is_wrong_usage(partgcd: Partgcd, run: Path, content: str | None) -> None:
    if content is not None:
        (run.parent / "t.csv").write_text(content)
    answer = partgcd("evaluate", run, "--truth", "t.csv")
    assert answer.code == 2 and answer.error
    assert not (run / "evaluation.json").exists()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_run_that_is_not_there_lists_those_that_are(
    partgcd: Partgcd, train: Partgcd, images: Path, command: str
) -> None:
    assert "holds no runs" in partgcd(command, "nope").error
    train("--data", images, "--classes", "3", "--method", "kmeans")
    (begun,) = (images.parent / "runs").iterdir()
    answer = partgcd(command, "nope")
    assert answer.code == 2 and json.loads((begun / "run.json").read_text())["id"] in answer.error


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_name_no_folder_can_have_is_one_line(partgcd: Partgcd, command: str) -> None:
    assert partgcd(command, "x" * 300).code == 2


def test_a_report_is_written_again_and_elsewhere(partgcd: Partgcd, run: Path) -> None:
    (run / "report.html").unlink()
    answer = partgcd("report", run)
    assert answer.code == 0 and Path(answer.out.strip()) == run / "report.html"
    assert partgcd("report", run, "--out", "page.html").code == 0
    assert (run.parent / "page.html").read_bytes() == (run / "report.html").read_bytes()
    assert partgcd("report", run, "--out", run / "config.yaml" / "page.html").code == 1


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_an_unfinished_run_says_how_to_finish_it(
    partgcd: Partgcd, run: Path, images: Path, command: str
) -> None:
    for name in ("predictions.parquet", "summary.json", "classes.json"):
        (run / name).unlink()
    extra = ["--truth", truth_file(run.parent, images)] if command == "evaluate" else []
    answer = partgcd(command, run, *extra)
    assert answer.code in (1, 2) and str(run) in answer.error


def test_figures_that_do_not_exist_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    three = {"all": 0.5, "old": None, "new": 0.5}
    print_accuracy({
        "set": "s", "v2": three, "v1": three, "heads": {"fused": three}, "plain": None, "nmi": 0.25, "ari": -0.1,
        "curve": [{"epoch": epoch, "purity": None if epoch == 0 else epoch / 20} for epoch in range(21)],
    })  # fmt: skip
    text = capsys.readouterr().out
    assert "Old   - " in text and "NMI 25.0%" in text and "ARI -10.0%" in text
    curve = next(line for line in text.splitlines() if "purity" in line)
    assert "epoch 1 5.0%" in curve and "epoch 20 100.0%" in curve and curve.count("epoch") == 6
