from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partgcd.data.errors import UserError
from partgcd.data.listing import Entry
from partgcd.data.manifest import read_manifest, read_table


def write(folder: Path, content: bytes | str, name: str = "m.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "m.parquet")
    return folder / "m.parquet"


WANTED = [Entry("a.jpg", "cat"), Entry("b,c.jpg", None), Entry("ü\nx.jpg", "dog bird")]


@pytest.mark.parametrize(
    "content",
    [
        'path,label\na.jpg,cat\n"b,c.jpg",\n"ü\nx.jpg",dog bird\n',
        ' Path ,LABEL\r\na.jpg, cat \r\n\r\n"b,c.jpg"\r\n"ü\nx.jpg",\tdog bird\r\n',
        'label;path\ncat;a.jpg\n;b,c.jpg\n"dog bird";"ü\nx.jpg"',
        '"label";"path"\ncat;a.jpg\n;b,c.jpg\n"dog bird";"ü\nx.jpg"',
        'path\tlabel\na.jpg\tcat\nb,c.jpg\t  \n"ü\nx.jpg"\tdog bird\n',
        '\n\npath,label\na.jpg,cat\n"b,c.jpg",\n"ü\nx.jpg",dog bird\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_csv_in_its_many_dresses(tmp_path: Path, content: str, encoding: str) -> None:
    listing = read_manifest(write(tmp_path, content.encode(encoding)))
    assert listing.entries == WANTED
    assert listing.root == tmp_path and listing.notes == []


def test_parquet_with_empty_null_and_numeric_labels(tmp_path: Path) -> None:
    listing = read_manifest(
        parquet(tmp_path, path=["b.jpg", "a.jpg", "c.jpg"], label=["x", None, " "], other=[1, 2, 3])
    )
    assert listing.entries == [Entry("a.jpg"), Entry("b.jpg", "x"), Entry("c.jpg")]
    assert listing.notes == ["m.parquet: columns not used: other"]
    listing = read_manifest(parquet(tmp_path, path=["a.jpg", "b.jpg"], label=pa.array([7, None], pa.int64())))
    assert listing.entries == [Entry("a.jpg", "7"), Entry("b.jpg")]
    words = pa.array(["x", None]).dictionary_encode()
    assert read_manifest(parquet(tmp_path, path=["a.jpg", "b.jpg"], label=words)).entries[0].label == "x"


def test_paths_may_lead_anywhere(tmp_path: Path) -> None:
    inside = tmp_path / "sub" / "a.jpg"
    listing = read_manifest(write(tmp_path, f"path\n{inside}\n/else/where/b.jpg\n../c.jpg\n./d//e.jpg\n"))
    assert [entry.path for entry in listing.entries] == [
        "../c.jpg",
        "/else/where/b.jpg",
        "d/e.jpg",
        "sub/a.jpg",
    ]
    assert listing.root / listing.entries[1].path == Path("/else/where/b.jpg")


def test_truth_is_carried_beside_the_label(tmp_path: Path) -> None:
    listing = read_manifest(write(tmp_path, "path,label,truth\na.jpg,cat,cat\nb.jpg,,dog\nc.jpg,,\n"))
    assert listing.entries == [Entry("a.jpg", "cat", "cat"), Entry("b.jpg", None, "dog"), Entry("c.jpg")]


def test_a_repeated_path_counts_once_and_is_reported(tmp_path: Path) -> None:
    listing = read_manifest(
        write(tmp_path, f"path,label\na.jpg,\n./a.jpg,cat\n{tmp_path}/a.jpg,dog\nb.jpg,\n")
    )
    assert listing.entries == [Entry("a.jpg", "cat"), Entry("b.jpg")]
    assert any("2 rows repeat a path" in note for note in listing.notes)
    assert any("keep the first: a.jpg (cat / dog)" in note for note in listing.notes)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "m.csv is empty"),
        (b" \n\t\n", "m.csv is empty"),
        (b"\xef\xbb\xbf", "m.csv is empty"),
        (b"path,label\n", "lists no images"),
        (b"file,label\na.jpg,x\n", "no column 'path', it begins 'file,label': start with 'path,label'"),
        (b"a.jpg,cat\nb.jpg,dog\n", "no column 'path', it begins 'a.jpg,cat'"),
        (b"path,label,path\na,b,c\n", "two columns named 'path'"),
        ("path,label\ncafé.jpg,x\n".encode("latin-1"), r"not UTF-8 text \(line 2\)"),
        (b"path,label\na\0b.jpg,x\n", "NUL"),
        (b"path,label\nb.jpg,x\na,c.jpg,y\n", "line 3: 3 cells for 2 columns"),
        (b'path,label\n"a.jpg,x\n', "not a valid CSV file"),
        (b'path,label\n"a"b.jpg,x\n', "not a valid CSV file"),
        (b"path,label\na.jpg,x\n ,y\n", "line 3: no path"),
        (b"\xff\xfep", "not UTF-8 text"),
        (b"path,label\n" + b"a" * 200_000 + b",x\n", "not a valid CSV file"),
    ],
)
def test_a_bad_csv_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_manifest(write(tmp_path, content))
    assert caught.value.code == 2 and "\n" not in str(caught.value) and "m.csv" in str(caught.value)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"file": ["a"]}, "no column 'path', only file"),
        ({"path": [1, 2]}, "'path' holds int64"),
        ({"path": [b"a"]}, "'path' holds binary"),
        ({"path": ["a"], "label": [1.5]}, "'label' holds double"),
        ({"path": ["a", None]}, "line 2: no path"),
        ({"path": pa.array([], pa.string())}, "lists no images"),
        ({"path": ["a"], "Path ": ["b"]}, "two columns named 'path'"),
    ],
)
def test_a_bad_parquet_is_one_clear_line(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_manifest(parquet(tmp_path, **columns))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"path,label\na,b\n", b"PAR1" + bytes(50) + b"PAR1"])
def test_what_is_no_parquet_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match="is not a Parquet file"):
        read_table(write(tmp_path, content, "m.parquet"))


def test_a_missing_table_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(UserError, match="no such file"):
            read_table(tmp_path / name)
    with pytest.raises(UserError, match="not a table"):
        read_table(tmp_path / "x.txt")


cells = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(cells.filter(lambda text: text.strip() != ""), cells), min_size=1, max_size=8))
def test_whatever_csv_can_write_is_read_back(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("path", "label"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        table = read_table(write(Path(folder), file.getvalue()))
    assert table.columns == {"path": [path for path, _ in rows], "label": [label for _, label in rows]}


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=60).map(lambda data: b"path,label\n" + data),
        st.text("path,label;\t\n\r\"' x", max_size=60).map(str.encode),
    ),
    st.sampled_from(["m.csv", "m.tsv", "m.parquet"]),
)
def test_any_bytes_are_a_listing_or_one_clear_line(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            listing = read_manifest(write(Path(folder), data, name))
        except UserError as error:
            assert "\n" not in str(error) and str(error).isprintable()
        else:
            paths = [entry.path for entry in listing.entries]
            assert paths == sorted(set(paths)) and paths
