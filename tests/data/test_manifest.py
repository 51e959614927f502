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

from partgcd.config.errors import UserError
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


@pytest.mark.parametrize(
    "content",
    [
        'path, label\n"a.jpg", "cat"\n"b,c.jpg",\n"ü\nx.jpg", "dog bird"\n',
        'path,label\n"a.jpg" ,"cat"\n"b,c.jpg" ,""\n"ü\nx.jpg" , "dog bird" \n',
        'path,label\ra.jpg,cat\r"b,c.jpg",\r"ü\nx.jpg",dog bird\r',
        'sep=;\npath;label\na.jpg;cat\nb,c.jpg;\n"ü\nx.jpg";dog bird\n',
        '"sep=;"\r\npath;label\r\na.jpg;cat\r\nb,c.jpg;\r\n"ü\nx.jpg";dog bird\r\n',
        '\ufeffpath,label\na.jpg,cat\n"b,c.jpg",\n"ü\nx.jpg",dog bird\n',
        'path,label,,\na.jpg,cat,,\n"b,c.jpg",,,\n"ü\nx.jpg",dog bird,,,,\n',
    ],
)
def test_csv_as_programs_vary_it(tmp_path: Path, content: str) -> None:
    listing = read_manifest(write(tmp_path, content.encode("utf-8-sig")))
    assert listing.entries == WANTED
    assert all("columns not used" in note for note in listing.notes)


def test_a_blank_before_quotes_inside_a_cell_means_nothing(tmp_path: Path) -> None:
    content = 'path,label\n"x, ""y"".jpg", cat\n" z.jpg",dog\n'
    entries = read_manifest(write(tmp_path, content)).entries
    assert [(entry.path, entry.label) for entry in entries] == [(" z.jpg", "dog"), ('x, "y".jpg', "cat")]


@pytest.mark.parametrize(
    "cells, labels, says",
    [
        (["1.0", "2.0", ""], ["1", "2", None], "1.0 is read as 1"),
        (["1.0", "2", "nan"], ["1", "2", None], "1.0 is read as 1"),
        (["1.0", "cat", "x"], ["1.0", "cat", "x"], None),
        (["001", "2", "3"], ["001", "2", "3"], None),
        (["True", "False", ""], ["True", "False", None], "names of classes"),
        (["-1", "0", "1"], ["-1", "0", "1"], "'-1' is read as a class"),
        (["unlabelled", "cat", "Unknown"], [None, "cat", None], "Unknown (1)"),
        (["N/A", "NULL", "cat"], [None, None, "cat"], "write another word for a class"),
        (["to_sort", "?", "none"], [None, None, None], "to_sort (1)"),
    ],
)
@pytest.mark.parametrize("kind", ["m.csv", "m.parquet"])
def test_labels_that_are_numbers_or_say_that_there_is_none(
    tmp_path: Path, cells: list[str], labels: list[str | None], says: str | None, kind: str
) -> None:
    if kind == "m.csv":
        rows = "".join(f"{number}.jpg,{cell}\n" for number, cell in enumerate(cells))
        listing = read_manifest(write(tmp_path, "path,label\n" + rows))
    else:
        listing = read_manifest(parquet(tmp_path, path=["0.jpg", "1.jpg", "2.jpg"], label=cells))
    assert [entry.label for entry in listing.entries] == labels
    assert any(says in note for note in listing.notes) if says else listing.notes[:-1] == []


@pytest.mark.parametrize(
    "column, labels",
    [
        (pa.array([1.0, 2.0, None]), ["1", "2", None]),
        (pa.array([1.0, float("nan"), -3.0], pa.float32()), ["1", None, "-3"]),
        (pa.array([True, False, None]), ["True", "False", None]),
        (pa.array([1, 2, None], pa.int8()).dictionary_encode(), ["1", "2", None]),
        (pa.array([None, None, None]), [None, None, None]),
    ],
)
def test_columns_of_numbers_as_pandas_writes_them(
    tmp_path: Path, column: Any, labels: list[str | None]
) -> None:
    listing = read_manifest(parquet(tmp_path, path=["a.jpg", "b.jpg", "c.jpg"], label=column))
    assert [entry.label for entry in listing.entries] == labels


@pytest.mark.parametrize("path", ["file", "File Name", "image_path", "filepath", "img"])
@pytest.mark.parametrize("label", ["class", "Category", "species", "class_name", "y"])
def test_the_only_column_with_a_usual_other_name_is_taken_and_told(
    tmp_path: Path, path: str, label: str
) -> None:
    for listing in (
        read_manifest(write(tmp_path, f"id;{path};{label}\n1;a.jpg;cat\n2;b.jpg;\n")),
        read_manifest(parquet(tmp_path, **{path: ["a.jpg", "b.jpg"], label: ["cat", None], "id": [1, 2]})),
    ):
        assert listing.entries == [Entry("a.jpg", "cat"), Entry("b.jpg")]
        told = "\n".join(listing.notes)
        assert (
            f"'{path.lower()}' is read as 'path'" in told and f"'{label.lower()}' is read as 'label'" in told
        )
        assert "columns not used: id" in told


def test_of_two_columns_none_is_guessed_and_beside_the_truth_none_at_all(tmp_path: Path) -> None:
    listing = read_manifest(write(tmp_path, "path,class,species\na.jpg,x,y\n"))
    assert listing.entries == [Entry("a.jpg")]
    assert any("class, species may be it: call one 'label'" in note for note in listing.notes)
    listing = read_manifest(write(tmp_path, "path,truth,class\na.jpg,x,x\n"))
    assert listing.entries == [Entry("a.jpg", None, "x")], "what is hidden must not become a label"


def test_paths_that_are_written_otherwise_are_found_and_told(tmp_path: Path) -> None:
    for name in ("p/0.jpg", "p/1.JPG", "q/é 2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    content = "path,label\np\\0.jpg ,a\nP/1.jpg,b\nq/e\u0301%202.jpg,\nr\\9.jpg,c\n"
    listing = read_manifest(write(tmp_path, content))
    assert listing.entries == [
        Entry("p/0.jpg", "a"),
        Entry("p/1.JPG", "b"),
        Entry("q/é 2.jpg"),
        Entry("r\\9.jpg", "c"),
    ]
    told = "\n".join(listing.notes)
    assert (
        "3 paths are written otherwise" in told
        and "r\\9.jpg (backslashes, and no such file)" in told.replace("\\\\", "\\")
    )
    twice = read_manifest(write(tmp_path, "path,label\np/0.jpg,a\np\\0.jpg,b\n"))
    assert twice.entries == [Entry("p/0.jpg", "a")] and any("two labels" in note for note in twice.notes)


def test_a_long_manifest_is_read_in_seconds_and_its_folders_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    (tmp_path / "p").mkdir()
    for number in range(300):
        (tmp_path / f"p/{number}.jpg").touch()
    listed: list[object] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: listed.append(place) or real(place))
    rows = "".join(f"P\\{number}.JPG,x\n" for number in range(300))
    listing = read_manifest(write(tmp_path, "path,label\n" + rows))
    assert [entry.path for entry in listing.entries] == sorted(f"p/{number}.jpg" for number in range(300))
    assert len(listed) == len(set(listed)) < 10


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
        (b"where,label\na.jpg,x\n", "no column 'path', it begins 'where,label': start with 'path,label'"),
        (b"file,image,label\na.jpg,b.jpg,x\n", "several that may be it: file, image; call one 'path'"),
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
        ({"where": ["a"]}, "no column 'path', only where"),
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
