from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partgcd.config.errors import UserError
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
        ("path,colour\na,b\n", "no column 'truth'"),
        ("path,truth\na,\n", "names no class"),
        ("path,truth\na,x\na,y\n", "gives a two classes: x, y"),
    ],
)
def test_bad_truth_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_truth(write(tmp_path, content))


PATHS = ["cat/é 1.JPG", "cat/2.jpg", "/elsewhere/3.jpg"]


@pytest.mark.parametrize(
    "written",
    ["cat\\e\u0301 1.jpg", "./cat/é 1.JPG", "CAT/É%201.jpg", " cat/é 1.JPG ", "{root}/cat/é 1.JPG", "file://{root}/cat/%C3%A9%201.JPG"],
)  # fmt: skip
def test_paths_are_found_among_those_of_a_catalog_however_written(tmp_path: Path, written: str) -> None:
    root = tmp_path / "photos"
    lines = [written.format(root=root), "cat/2.jpg", "/elsewhere/3.jpg", "other.jpg"]
    file = write(tmp_path, "path,truth\n" + "".join(f'"{line}",x\n' for line in lines))
    told: list[str] = []
    assert set(read_truth(file, root, PATHS, told.append)) == {*PATHS, "other.jpg"}
    assert any("1 of 4 paths are no image of the run: other.jpg" in line for line in told)


def test_words_and_other_columns_are_told_as_for_labels(tmp_path: Path) -> None:
    told: list[str] = []
    file = write(tmp_path, "file,species\ncat/2.jpg,1.0\n/elsewhere/3.jpg,unknown\n")
    assert read_truth(file, tmp_path, PATHS, told.append) == {"cat/2.jpg": "1"}
    lines = "\n".join(told)
    assert "'file' is read as 'path'" in lines and "unknown (1)" in lines and "1.0 is read as 1" in lines


def test_two_spellings_of_a_path_may_not_differ_in_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gives cat/2\.jpg two classes: x, y"):
        read_truth(write(tmp_path, "path,truth\ncat/2.jpg,x\nCAT\\2.jpg,y\n"), tmp_path, PATHS)
