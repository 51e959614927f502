from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.discovery.evaluate import evaluate_run
from partgcd.run.folder import RunFolder

NAMES = ["cat", "dog", "new-01 near cat", "new-02 near dog"]
PATHS = ["cat/0.png", "dog/0.png", *(f"u/{i}.png" for i in range(6))]
TRUTH = dict(zip(PATHS, ["cat", "dog", "cat", "cat", "dog", "owl", "owl", "yak"], strict=True))
FUSED = [0, 1, 0, 2, 0, 2, 2, 1]
GLOBAL = [0, 1, 0, 0, 1, 2, 2, 3]
PART = [0, 1, 3, 3, 3, 3, 3, 3]


def hand_made(path: Path) -> RunFolder:
    """A finished run of two labelled images, six others, and a duplicate."""
    run = RunFolder.create(path, Settings(), path.parent, {})
    catalog = Catalog(
        path.parent, PATHS, np.arange(8, dtype=np.uint64), np.array([0, 1, *[-1] * 6]), NAMES[:2],
        np.full((8, 2), 64, np.int32),
    )  # fmt: skip
    catalog.save(path)
    rows = [*range(8), 3]  # the copy of row 3 comes last and is not scored
    columns: dict[str, list[Any]] = {"path": [*PATHS, "copy.png"]}
    for column, answers in (("class_name", FUSED), ("global_class", GLOBAL), ("part_class", PART)):
        columns[column] = [NAMES[answers[row]] for row in rows]
    pq.write_table(pa.table(columns), run.predictions)
    run.classes.write_text(json.dumps([{"name": name, "index": i} for i, name in enumerate(NAMES)]))
    as_rows = np.array([0, 5, 3, 7], dtype=np.int32)
    classes = np.array([0, 2, 2, 3], dtype=np.int32)
    for epoch, predicted in ((0, PART), (1, GLOBAL)):
        run.save_epoch(
            epoch, predicted=np.array(predicted, np.int32), candidate_rows=as_rows[: 2 + 2 * epoch],
            candidate_classes=classes[: 2 + 2 * epoch],
        )  # fmt: skip
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return hand_made(tmp_path / "run")


def test_the_figures_are_those_counted_by_hand(run: RunFolder) -> None:
    result = evaluate_run(run, TRUTH)
    # fused of u0..u5: cat new1 cat new1 new1 dog, in truth: cat cat dog owl owl yak.
    # One match: new1-owl (2), cat-cat or cat-dog (1), dog-yak (1).
    assert result["v2"] == pytest.approx({"all": 4 / 6, "old": 1 / 3, "new": 1.0})
    # Old images alone: new1-cat and cat-dog, two of three.
    assert result["v1"] == pytest.approx({"all": 5 / 6, "old": 2 / 3, "new": 1.0})
    assert result["plain"] == pytest.approx(1 / 3)
    assert result["heads"]["fused"] == result["v2"]
    assert result["heads"]["global"] == {"all": 1.0, "old": 1.0, "new": 1.0}
    assert result["heads"]["part"] == pytest.approx({"all": 2 / 6, "old": 2 / 3, "new": 0.0})
    assert result["true_classes"] == 4
    assert result["set"] == "unlabelled training images (n=6, 3 of old classes)"


def test_the_curve_follows_the_epochs(run: RunFolder) -> None:
    first, last = evaluate_run(run, TRUTH)["curve"]
    assert (first["epoch"], last["epoch"]) == (0, 1)
    assert first["all"] == pytest.approx(2 / 6) and last["all"] == 1.0
    # Candidates of new classes: u3 for new1; then u3 and u1 for new1 (owl, cat), u5 for new2 (yak).
    assert first["purity"] == 1.0
    assert last["purity"] == pytest.approx(2 / 3)


def test_the_result_is_written_as_json(run: RunFolder) -> None:
    result = evaluate_run(run, TRUTH)
    assert json.loads(run.evaluation.read_text()) == json.loads(json.dumps(result))


def test_truth_of_some_images_scores_those_and_says_so(run: RunFolder) -> None:
    result = evaluate_run(run, {"u/0.png": "cat", "u/3.png": "owl", "elsewhere.png": "owl"})
    assert (
        result["set"]
        == "unlabelled training images (n=2, 1 of old classes); 4 unlabelled images have no truth"
    )
    assert result["v2"] == {"all": 1.0, "old": 1.0, "new": 1.0}


def test_figures_of_an_empty_group_are_absent_and_not_zero(run: RunFolder) -> None:
    result = evaluate_run(run, {"u/3.png": "owl", "u/4.png": "owl"})
    assert result["v2"] == {"all": 1.0, "old": None, "new": 1.0}
    assert result["plain"] is None


def test_labelled_images_are_not_scored(run: RunFolder) -> None:
    wrong = {**TRUTH, "cat/0.png": "dog", "dog/0.png": "cat"}
    assert evaluate_run(run, wrong)["v2"] == evaluate_run(run, TRUTH)["v2"]


@pytest.mark.parametrize("truth", [{}, {"cat/0.png": "cat"}, {"images/u/0.png": "cat"}])
def test_truth_that_names_no_unlabelled_image_is_refused(run: RunFolder, truth: dict[str, str]) -> None:
    with pytest.raises(UserError, match="none of the run's 6 unlabelled images") as caught:
        evaluate_run(run, truth)
    assert caught.value.code == 2
    assert not run.evaluation.exists()


def test_an_unfinished_run_is_refused(run: RunFolder) -> None:
    run.predictions.unlink()
    with pytest.raises(UserError, match="--resume") as caught:
        evaluate_run(run, TRUTH)
    assert caught.value.code == 1


def test_a_run_without_parts_has_two_heads(run: RunFolder) -> None:
    table = pq.ParquetFile(run.predictions).read()
    pq.write_table(table.drop_columns(["part_class"]), run.predictions)
    assert set(evaluate_run(run, TRUTH)["heads"]) == {"fused", "global"}


def test_folder_names_with_equals_signs_are_only_names(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "class_name=3" / "seed=1")
    assert evaluate_run(run, TRUTH)["v2"]["all"] == pytest.approx(4 / 6)
