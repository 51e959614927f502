from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partgcd.data.errors import UserError
from partgcd.data.truth import read_truth


def write(folder: Path, content: str) -> Path:
    (folder / "t.csv").write_text(content, encoding="utf-8")
    return folder / "t.csv"


def test_truth_column_wins_over_label_and_empty_cells_are_left_out(tmp_path: Path) -> None:
    assert read_truth(write(tmp_path, "path,truth,label\n./a.jpg,cat ,x\nb.jpg,,y\n")) == {"a.jpg": "cat"}
    assert read_truth(write(tmp_path, "path,label\na.jpg,cat\nb.jpg,dog\n")) == {
        "a.jpg": "cat",
        "b.jpg": "dog",
    }


def test_parquet_as_a_run_writes_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a\nb.jpg"], "truth": ["cat"]}), tmp_path / "truth.parquet")
    assert read_truth(tmp_path / "truth.parquet") == {"a\nb.jpg": "cat"}


@pytest.mark.parametrize(
    "content, message",
    [
        ("path,class\na,b\n", "no column 'truth'"),
        ("path,truth\na,\n", "names no class"),
        ("path,truth\na,x\na,y\n", "gives a two classes: x, y"),
    ],
)
def test_bad_truth_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_truth(write(tmp_path, content))
