from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.discovery import discover as whole
from partgcd.discovery.discover import discover
from partgcd.discovery.outputs import Answers
from partgcd.disk.files import read_json
from partgcd.run import folder as folders
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

RunOf = Callable[..., RunFolder]
Draw = Callable[..., Path]
SettingsOf = Callable[..., Settings]


def rows_of(run: RunFolder) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(run.predictions).read().to_pylist()
    return rows


def check(run: RunFolder, classes: int | None) -> dict[str, Any]:
    """What holds for every finished run; its summary."""
    catalog, summary, rows = Catalog.load(run.path), read_json(run.summary), rows_of(run)
    records = read_json(run.classes)
    if classes is not None:
        assert summary["classes"]["total"] == classes
    assert len(records) == summary["classes"]["total"]
    assert run.info()["status"] == "finished" and summary["id"] == run.info()["id"]
    assert {row["path"] for row in rows} == {*catalog.paths, *(each.path for each in catalog.duplicates)}
    assert len(rows) == len(catalog) + len(catalog.duplicates)
    for row in rows:
        assert row["label"] is None or row["class_name"] == row["label"]
        assert row["class_id"] in {record["id"] for record in records}
        assert 0 <= row["confidence"] <= 1 and 0 <= row["margin"] <= 1
    assert sum(record["labelled"] + record["assigned"] for record in records) == len(catalog)
    assert len(load_file(run.features)["cls"]) == len(catalog)
    assert run.predictions.with_suffix(".csv").exists()
    return summary  # type: ignore[no-any-return]


def test_a_run_leaves_every_file_it_promises(finished: RunFolder) -> None:
    summary = check(finished, 4)
    for name in (
        "config.yaml", "run.json", "catalog.parquet", "quarantine.csv", "duplicates.csv", "classes.json",
        "metrics.jsonl", "features.safetensors", "predictions.parquet", "predictions.csv", "summary.json",
        "epochs/epoch-0000.npz", "epochs/epoch-0002.npz", "store", "checkpoints",
    ):  # fmt: skip
        assert (finished.path / name).exists(), name
    assert not finished.truth.exists() and not finished.evaluation.exists()
    info = finished.info()
    assert info["backbone"]["name"] == "test_vit" and info["backbone"]["grid"] == [10, 10]
    assert info["parts"]["count"] == summary["parts"] == 3
    assert (info["device"], info["precision"], info["threads"]) == ("cpu", "fp32", 1)
    assert summary["images"] == {"total": 36, "labelled": 12, "unlabelled": 24, "broken": 0, "duplicates": 0}
    assert set(load_file(finished.features)) == {"cls", "part", "attention", "maps", "grid"}


def test_no_file_of_a_run_is_a_pickle_or_left_half_written(finished: RunFolder) -> None:
    files = [path for path in finished.path.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in (".pt", ".pth", ".pkl", ".pickle", ".tmp", ".part")]
    allowed = {".safetensors", ".json"}
    assert {path.suffix for path in files if "checkpoints" in path.parts} == allowed
    for path in files:
        if path.suffix in (".npy", ".npz"):
            np.load(path, allow_pickle=False)
        assert path.read_bytes()[:2] not in (b"\x80\x02", b"\x80\x04", b"\x80\x05"), path


@pytest.mark.parametrize("method", ["partgcd", "simgcd", "gcd", "kmeans"])
def test_every_method_answers_with_probabilities_for_every_image(
    tmp_path: Path, photos: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    seen: list[Answers] = []
    real = whole.write_outputs

    def watch(run: RunFolder, catalog: Catalog, answers: Answers) -> Any:
        seen.append(answers)
        return real(run, catalog, answers)

    monkeypatch.setattr(whole, "write_outputs", watch)
    run = run_of(tmp_path / "run", photos, f"discovery.method={method}", "discovery.classes=4")
    summary = check(run, 4)
    assert summary["method"] == method and summary["accuracy"] is None
    answers = seen[0]
    for value in (answers.overall, answers.part, answers.fused):
        if value is not None:
            assert value.shape == (36, 4) and (value >= 0).all()
            assert value.sum(axis=1) == pytest.approx(np.ones(36), abs=1e-4)
    assert (answers.part is not None) == (method == "partgcd")


@pytest.mark.parametrize("method", ["partgcd", "simgcd", "gcd", "kmeans"])
def test_a_seed_decides_a_run_to_the_last_bit(
    tmp_path: Path, photos: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(folders, "new_run_id", lambda: "20260101-000000-abcdef")
    same = (f"discovery.method={method}", "discovery.classes=4")
    one, two = (run_of(tmp_path / name, photos, *same) for name in "ab")
    for name in (
        "predictions.parquet",
        "predictions.csv",
        "classes.json",
        "features.safetensors",
        "catalog.parquet",
    ):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name
    for (_, first), (_, second) in zip(one.read_epochs(), two.read_epochs(), strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)
    for first, second in zip(one.read_metrics(), two.read_metrics(), strict=True):
        assert first["loss"] == second["loss"]
    if method not in ("kmeans", "gcd"):
        other = run_of(tmp_path / "c", photos, *same, "seed=1")
        assert other.features.read_bytes() != one.features.read_bytes()


@pytest.mark.parametrize("method", ["partgcd", "simgcd", "gcd", "kmeans"])
def test_without_any_label_every_category_is_a_discovered_one(
    tmp_path: Path, draw: Draw, run_of: RunOf, method: str
) -> None:
    data = draw(tmp_path / "flat", {}, [7, 7, 7])
    run = run_of(tmp_path / "run", data, f"discovery.method={method}", "discovery.classes=3")
    summary = check(run, 3)
    assert summary["classes"]["old"] == 0 and summary["classes"]["discovered"] == 3
    assert all(record["name"].startswith("group-") for record in read_json(run.classes))


@pytest.mark.parametrize("method", ["partgcd", "simgcd", "gcd", "kmeans"])
def test_one_labelled_class_is_enough(tmp_path: Path, draw: Draw, run_of: RunOf, method: str) -> None:
    data = draw(tmp_path / "data", {"ash": 5}, [5, 6, 6])
    summary = check(run_of(tmp_path / "run", data, f"discovery.method={method}", "discovery.classes=3"), 3)
    assert summary["classes"]["old"] == 1


@pytest.mark.parametrize("method", ["partgcd", "simgcd", "gcd", "kmeans"])
def test_there_may_be_nothing_new(tmp_path: Path, draw: Draw, run_of: RunOf, method: str) -> None:
    data = draw(tmp_path / "data", {"ash": 5, "birch": 5}, [7, 7])
    run = run_of(tmp_path / "run", data, f"discovery.method={method}", "discovery.classes=2")
    summary = check(run, 2)
    assert summary["classes"]["discovered"] == 0
    assert {row["kind"] for row in rows_of(run)} == {"old"}


@pytest.mark.parametrize("labelled", [{}, {"ash": 6, "birch": 6}], ids=["no labels", "labels"])
def test_the_number_of_classes_and_parts_can_be_left_open(
    tmp_path: Path, draw: Draw, run_of: RunOf, labelled: dict[str, int]
) -> None:
    data = draw(tmp_path / "data", labelled, [8, 8, 8, 8])
    run = run_of(tmp_path / "run", data, "discovery.classes=auto", "parts.count=auto", "parts.count_max=4")
    summary = check(run, None)
    assert summary["classes"]["estimated"] is True
    assert summary["classes"]["total"] == run.info()["class_estimate"]["classes"] >= max(len(labelled), 2)
    assert summary["parts"] in (3, 4)
    assert set(run.info()["parts"]["silhouettes"]) == {"3", "4"}


def test_duplicates_and_broken_images_are_accounted_for(tmp_path: Path, draw: Draw, run_of: RunOf) -> None:
    data = draw(tmp_path / "data", {"ash": 6}, [6, 6, 6])
    shutil.copy(data / "ash" / "00.png", data / "unlabelled" / "same, again.png")
    (data / "unlabelled" / "broken.png").write_bytes(b"no image")
    run = run_of(
        tmp_path / "run", data, "discovery.method=simgcd", "discovery.classes=3", "data.max_broken=0.2"
    )
    summary = check(run, 3)
    assert summary["images"]["broken"] == 1 and summary["images"]["duplicates"] == 1
    rows = {row["path"]: row for row in rows_of(run)}
    assert rows["unlabelled/same, again.png"]["class_name"] == "ash"
    assert "unlabelled/broken.png" not in rows
    with run.quarantine.open(newline="") as stream:
        assert [row["path"] for row in csv.DictReader(stream)] == ["unlabelled/broken.png"]


def manifest(folder: Path, data: Path, truth: dict[str, str]) -> Path:
    """A manifest of ``data`` whose class folders are labels and whose hidden classes are ``truth``."""
    file = folder / "manifest.csv"
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label", "truth"])
        for path in sorted(data.rglob("*.png")):
            name = "" if path.parent.name == "unlabelled" else path.parent.name
            writer.writerow([str(path), name, truth.get(path.name, "") if not name else ""])
    return file


def test_the_hidden_classes_change_nothing_but_the_score(
    tmp_path: Path, photos: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "new_run_id", lambda: "20260101-000000-abcdef")
    hidden = {path.name: path.stem.split("-")[1] for path in (photos / "unlabelled").iterdir()}
    names = ["ash", "birch", "cedar", "elm"]
    honest = {name: names[int(kind)] for name, kind in hidden.items()}
    shuffled = dict(zip(honest, np.random.default_rng(0).permutation(list(honest.values())), strict=True))
    runs = [
        run_of(tmp_path / name / "run", manifest(tmp_path / name, photos, truth), "discovery.classes=4")
        for name, truth in (("honest", honest), ("shuffled", shuffled))
    ]
    one, two = runs
    assert one.truth.read_bytes() != two.truth.read_bytes()
    assert read_json(one.evaluation)["v2"] != read_json(two.evaluation)["v2"]
    for name in ("predictions.parquet", "features.safetensors", "classes.json"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name
    assert json.dumps(read_json(one.summary)["accuracy"]) == json.dumps(read_json(one.evaluation))


def test_training_never_reads_the_truth(
    tmp_path: Path, photos: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = whole.read_truth

    def watch(path: Path) -> dict[str, str]:
        if not (path.parent / "predictions.parquet").exists():
            read.append("before the answers were written")
        return real(path)

    monkeypatch.setattr(whole, "read_truth", watch)
    run_of(tmp_path / "scored", photos_by_class(tmp_path, photos), "discovery.method=simgcd", protocol="gcd")
    assert read == []

    def refuse(path: Path) -> dict[str, str]:
        raise AssertionError("the truth was read")

    monkeypatch.setattr(whole, "read_truth", refuse)
    run_of(tmp_path / "plain", photos, "discovery.method=simgcd", "discovery.classes=4")


def photos_by_class(folder: Path, photos: Path) -> Path:
    data = folder / "by class"
    for path in (photos / "unlabelled").iterdir():
        target = data / f"kind {path.stem.split('-')[1]}" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return data


def test_the_protocol_hides_half_and_scores_the_rest(tmp_path: Path, photos: Path, run_of: RunOf) -> None:
    data = photos_by_class(tmp_path, photos)
    run = run_of(tmp_path / "run", data, "discovery.method=simgcd", "discovery.classes=4", protocol="gcd")
    summary = check(run, 4)
    assert summary["images"]["labelled"] == 6 and summary["classes"]["old"] == 2
    assert "n=18, 6 of old classes" in summary["accuracy"]["set"]
    assert summary["accuracy"] == read_json(run.evaluation)
    stored = pq.ParquetFile(run.path / "catalog.parquet").read()
    assert "truth" not in stored.column_names
    assert [point["epoch"] for point in summary["accuracy"]["curve"]] == [0, 1]


def test_a_finished_run_is_not_done_again(finished: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it was fitted again")

    monkeypatch.setattr(whole, "fit", refuse)
    world = SoloWorld(finished, torch.device("cpu"))
    assert discover(finished, finished.settings(), world) == read_json(finished.summary)


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "assignments", "words"),
    [
        ({"ash": 4, "birch": 4}, [], [], "every image is labelled"),
        ({"ash": 4, "birch": 4, "cedar": 4}, [5], ["discovery.classes=2"], "below the 3 labelled classes"),
        ({"ash": 4}, [5], ["discovery.classes=10"], "more than the 9 images"),
        ({"ash": 2}, [3], ["parts.count=6", "discovery.classes=2"], "fewer than the 6 parts"),
        ({"ash": 2}, [3], ["parts.count=auto", "discovery.classes=2"], "fewer than the 8 parts"),
        ({}, [1], ["discovery.classes=2"], "at least 2"),
        ({"ash": 2}, [3], ["discovery.method=simgcd", "discovery.classes=auto"], "too few to estimate"),
        ({"ash": 2}, [3], ["data.image_size=150", "discovery.classes=2"], "150"),
    ],
)  # fmt: skip
def test_data_that_no_setting_suits_is_wrong_usage(
    tmp_path: Path, draw: Draw, run_of: RunOf, labelled: dict[str, int], unlabelled: list[int],
    assignments: list[str], words: str,
) -> None:  # fmt: skip
    data = draw(tmp_path / "data", labelled, unlabelled)
    with pytest.raises(UserError, match=words) as caught:
        run_of(tmp_path / "run", data, *assignments)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)


def test_too_many_broken_images_fail_and_are_listed(tmp_path: Path, draw: Draw, run_of: RunOf) -> None:
    data = draw(tmp_path / "data", {"ash": 4}, [5])
    (data / "unlabelled" / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"1 of 10 images") as caught:
        run_of(tmp_path / "run", data, "discovery.classes=2")
    assert caught.value.code == 1
    assert "broken.png" in (tmp_path / "run" / "quarantine.csv").read_text()
