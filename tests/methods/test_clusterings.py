from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from partgcd.data.catalog import Catalog
from partgcd.export.export import export_run
from partgcd.export.predictor import Answer, Predictor
from partgcd.run.folder import RunFolder

RunOf = Callable[..., RunFolder]


@pytest.mark.parametrize("method", ["gcd", "kmeans"])
def test_a_clustering_is_exported_and_predicts_its_own_clusters(
    run_of: RunOf, tmp_path: Path, method: str
) -> None:
    run = run_of(method)
    catalog = Catalog.load(run.path)
    rows = np.flatnonzero(~catalog.labelled).tolist()
    predictor = Predictor.load(export_run(run, tmp_path / "out").path, 1, "cpu")
    answers = predictor.classify([catalog.file(row) for row in rows])
    table = pq.read_table(run.predictions).to_pydict()
    wanted = dict(zip(table["path"], table["class_id"], strict=True))
    same = [
        isinstance(answer, Answer) and answer.best.id == wanted[catalog.paths[row]]
        for answer, row in zip(answers, rows, strict=True)
    ]
    # k-means measures to centres of any norm, prototypes by angle: an image on a border may change sides.
    assert np.mean(same) > 0.9
