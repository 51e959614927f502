from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog, Duplicate
from partgcd.discovery.outputs import Answers, write_outputs
from partgcd.run.folder import RunFolder

NAMES = ["cat", "dog"]


def probabilities(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    paths = ['a "b", c.png', "cat/0.png", "new\nline.png", "vögel ☀.png"]
    return Catalog(
        tmp_path, paths, np.array([1, 2**63 + 5, 3, 4], np.uint64), np.array([-1, 0, -1, -1]), NAMES,
        np.full((4, 2), 64, np.int32), [], [Duplicate("copy.png", "cat/0.png")], [],
    )  # fmt: skip


@pytest.fixture
def answers() -> Answers:
    draw = np.random.default_rng(0)
    return Answers(
        overall=probabilities((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.2, 0.2, 0.6), (0.4, 0.5, 0.1)),
        part=probabilities((0.9, 0.1, 0.0), (0.2, 0.7, 0.1), (0.0, 0.0, 1.0), (0.2, 0.1, 0.7)),
        fused=probabilities((0.7, 0.2, 0.1), (0.15, 0.75, 0.1), (0.1, 0.1, 0.8), (0.3, 0.3, 0.4)),
        cls=draw.normal(size=(4, 6)).astype(np.float32),
        feature=draw.normal(size=(4, 6)).astype(np.float32),
        attention=np.full((4, 4), 0.25, np.float32),
        maps=np.full((4, 4, 2), 0.5, np.float16),
        grid=(2, 2),
        prototypes=np.eye(3, 6, dtype=np.float32),
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Settings(), tmp_path, {})


def rows_of(run: RunFolder) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.ParquetFile(run.predictions).read().to_pylist()
    return rows


def test_every_image_and_every_copy_has_a_row(run: RunFolder, catalog: Catalog, answers: Answers) -> None:
    write_outputs(run, catalog, answers)
    rows = rows_of(run)
    assert [row["path"] for row in rows] == [*catalog.paths, "copy.png"]
    assert {**rows[4], "path": ""} == {**rows[1], "path": ""}
    assert [row["key"] for row in rows[:2]] == ["0000000000000001", "8000000000000005"]


def test_a_labelled_image_keeps_its_label_and_says_how_likely_it_was(
    run: RunFolder, catalog: Catalog, answers: Answers
) -> None:
    write_outputs(run, catalog, answers)
    first, labelled, new, split = rows_of(run)[:4]
    assert (labelled["label"], labelled["class_name"], labelled["kind"]) == ("cat", "cat", "old")
    assert labelled["confidence"] == 0.15 and labelled["global_class"] == "dog"
    assert (first["label"], first["class_name"]) == (None, "cat")
    assert new["kind"] == "discovered" and str(new["class_name"]).startswith("new-01")
    assert [first[key] for key in ("confidence", "global_confidence", "part_confidence", "margin")] == [
        0.7, 0.5, 0.9, 0.5,
    ]  # fmt: skip
    assert (split["global_class"], split["part_class"]) == ("dog", new["class_name"])


def test_classes_and_predictions_name_the_same_ids(
    run: RunFolder, catalog: Catalog, answers: Answers
) -> None:
    records = write_outputs(run, catalog, answers)
    stored = json.loads(run.classes.read_text())
    assert [record["id"] for record in stored] == [record.id for record in records]
    by_id = {record["id"]: record for record in stored}
    for row in rows_of(run):
        assert by_id[row["class_id"]]["name"] == row["class_name"]
        assert by_id[row["class_id"]]["kind"] == row["kind"]
    assert [record["labelled"] for record in stored] == [1, 0, 0]
    assert [record["assigned"] for record in stored] == [1, 0, 2]


def test_the_csv_says_what_the_parquet_says(run: RunFolder, catalog: Catalog, answers: Answers) -> None:
    write_outputs(run, catalog, answers)
    with run.predictions.with_suffix(".csv").open(newline="", encoding="utf-8") as stream:
        told = list(csv.DictReader(stream))
    wanted = [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in rows_of(run)
    ]
    assert told == wanted


def test_features_are_stored_in_half_precision(run: RunFolder, catalog: Catalog, answers: Answers) -> None:
    write_outputs(run, catalog, answers)
    stored = load_file(run.features)
    assert {name: (value.shape, value.dtype) for name, value in stored.items()} == {
        "cls": ((4, 6), np.float16), "part": ((4, 6), np.float16), "attention": ((4, 4), np.float16),
        "maps": ((4, 4, 2), np.float16), "grid": ((2,), np.int64),
    }  # fmt: skip
    assert stored["cls"] == pytest.approx(answers.cls, abs=1e-2)


def test_without_parts_there_are_no_part_columns(run: RunFolder, catalog: Catalog, answers: Answers) -> None:
    write_outputs(run, catalog, replace(answers, part=None, feature=None, maps=None, attention=None))
    assert set(load_file(run.features)) == {"cls", "grid"}
    assert not any("part" in name for name in rows_of(run)[0])
    assert "margin" in rows_of(run)[0]


def test_a_failure_in_the_middle_leaves_the_predictions_of_before(
    run: RunFolder, catalog: Catalog, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_outputs(run, catalog, answers)
    before = run.predictions.read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise RuntimeError("the power went")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RuntimeError):
        write_outputs(run, catalog, replace(answers, fused=answers.fused[:, ::-1].copy()))
    assert run.predictions.read_bytes() == before
