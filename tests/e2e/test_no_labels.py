"""Images without any label: groups, numbered by size."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("classes", ["auto", "3"])
def test_a_flat_folder_without_labels_becomes_numbered_groups(
    classes: str, picture_folder: Callable[..., Path], partgcd: Any, tiny: list[str], tmp_path: Path
) -> None:
    folder, run = picture_folder(tmp_path / "pictures", 3, 9), tmp_path / "run"
    ended = partgcd("train", "--data", folder, "--out", run, *tiny, "--classes", classes, "--view-pool", "2")
    assert ended.code == 0, ended.err

    records = json.loads((run / "classes.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["classes"]["total"] == len(records) == summary["classes"]["discovered"]
    assert summary["classes"]["estimated"] == (classes == "auto")
    assert len(records) == 3 or (classes == "auto" and 2 <= len(records) <= 6)
    assert {record["name"] for record in records} == {f"group-{n + 1:02d}" for n in range(len(records))}
    assert {record["kind"] for record in records} == {"discovered"}
    sizes = [record["assigned"] for record in sorted(records, key=lambda record: record["name"])]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == 27

    with (run / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 27
    assert {row["label"] for row in rows} == {""}
    assert {row["class_name"] for row in rows} <= {record["name"] for record in records}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        loss = json.loads(line)["loss"]
        assert not [
            name for name in loss if "supervised" in name and "unsupervised" not in name and loss[name]
        ]
    assert (run / "report.html").stat().st_size > 10_000
