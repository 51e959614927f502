from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partgcd.config.errors import UserError
from partgcd.data.catalog import Broken, Catalog, Duplicate
from partgcd.report.read import part_count, read_features, read_part_maps, read_run


def test_rows_follow_the_catalog_whatever_the_order_of_the_predictions(full_run: Path) -> None:
    before = read_run(full_run)
    table = pq.read_table(full_run / "predictions.parquet")
    pq.write_table(
        table.take(np.random.default_rng(0).permutation(len(table))), full_run / "predictions.parquet"
    )
    after = read_run(full_run)
    np.testing.assert_array_equal(after.confidence, before.confidence)
    for old, new in zip(before.categories, after.categories, strict=True):
        assert sorted(new.rows.tolist()) == old.rows.tolist()


def test_answers_for_copies_are_no_rows(full_run: Path) -> None:
    table = pq.read_table(full_run / "predictions.parquet")
    copy = table.slice(0, 1).set_column(0, "path", pa.array(["Melon/copy of 12.jpg"]))
    pq.write_table(pa.concat_tables([table, copy]), full_run / "predictions.parquet")
    assert sum(len(category.rows) for category in read_run(full_run).categories) == 90


def test_predictions_of_another_run_are_refused(full_run: Path) -> None:
    table = pq.read_table(full_run / "predictions.parquet")
    other = table.slice(0, 1).set_column(0, "path", pa.array(["elsewhere.jpg"]))
    pq.write_table(other, full_run / "predictions.parquet")
    with pytest.raises(UserError, match="mixes two runs"):
        read_run(full_run)


def test_catalog_is_read_as_the_catalog_writes_it(full_run: Path) -> None:
    record = read_run(full_run)
    catalog = Catalog(
        root=Path("photos"),
        paths=record.paths,
        keys=np.arange(90, dtype=np.uint64),
        labels=np.array([0 if known else -1 for known in record.labelled], dtype=np.int64),
        label_names=["Anjou"],
        sizes=np.ones((90, 2), np.int32),
        broken=[Broken("a\nb.jpg", "short")],
        duplicates=[Duplicate("c.jpg", "d.jpg")],
        notes=["a note"],
    )
    catalog.save(full_run)
    again = read_run(full_run)
    assert (again.paths, again.notes) == (record.paths, ["a note"])
    assert (again.quarantine, again.duplicates) == ([("a\nb.jpg", "short")], [("c.jpg", "d.jpg")])
    np.testing.assert_array_equal(again.labelled, record.labelled)


def test_nearest_is_a_class_people_named(full_run: Path) -> None:
    named = {category.name for category in read_run(full_run).categories if not category.discovered}
    for category in read_run(full_run).categories:
        assert category.nearest is not None
        assert category.nearest.name in named - {category.name}


def test_half_a_last_metrics_line_is_passed_over(full_run: Path) -> None:
    with (full_run / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 21, "loss": {"to')
    assert len(read_run(full_run).metrics) == 20


@pytest.mark.parametrize("name", ["run.json", "classes.json", "catalog.parquet", "predictions.parquet"])
def test_missing_and_damaged_files_are_user_errors(full_run: Path, name: str) -> None:
    (full_run / name).write_text("{ not this")
    with pytest.raises(UserError, match=name):
        read_run(full_run)
    (full_run / name).unlink()
    with pytest.raises(UserError, match=f"no finished run .*{name}"):
        read_run(full_run)


@pytest.mark.parametrize(
    "name", ["config.yaml", "quarantine.csv", "duplicates.csv", "summary.json", "metrics.jsonl"]
)
def test_optional_files_may_be_missing(full_run: Path, name: str) -> None:
    (full_run / name).unlink()
    assert len(read_run(full_run).paths) == 90


def test_part_maps_are_those_of_the_rows_asked_for(full_run: Path) -> None:
    every = read_part_maps(full_run, list(range(90)))
    some = read_part_maps(full_run, [7, 3])
    assert (
        every is not None and some is not None and some.attention is not None and every.attention is not None
    )
    assert some.grid == (4, 4) and some.maps.shape == (2, 16, 4)
    np.testing.assert_array_equal(some.maps, every.maps[[7, 3]])
    np.testing.assert_array_equal(some.attention, every.attention[[7, 3]])
    assert part_count(full_run) == 4


def test_features_of_another_number_of_images_are_not_used(full_run: Path) -> None:
    found = read_features(full_run, 90)
    assert found is not None and found.dtype == np.float32
    assert read_features(full_run, 89) is None


def test_run_without_features_has_none(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ["a"], 0, [["1.jpg"]])
    assert read_features(run, 1) is None
    assert read_part_maps(run, [0]) is None
    assert part_count(run) == 0
