from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from partgcd.config.errors import UserError
from partgcd.data.catalog import Broken, Catalog, Duplicate, Role, write_quarantine

CATALOG = Catalog(
    root=Path("/photos/vögel"),
    paths=["a.jpg", 'b\nc, "d".png', "日本/猫.png"],
    keys=np.array([2**64 - 1, 0, 7], np.uint64),
    labels=np.array([1, -1, 0], np.int64),
    label_names=["cat\n", "dog"],
    sizes=np.array([[10, 20], [30, 40], [50, 60]], np.int32),
    broken=[Broken("x\ny.jpg", "truncated"), Broken("z.jpg", "empty file")],
    duplicates=[Duplicate("q,r.jpg", "a.jpg")],
    notes=["a note", "another"],
    roles=np.array([Role.CORRECTED, Role.NEW, Role.REPLAYED], np.uint8),
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    CATALOG.save(tmp_path / "run=1")
    loaded = Catalog.load(tmp_path / "run=1")
    for name in ("root", "paths", "label_names", "broken", "duplicates", "notes"):
        assert getattr(loaded, name) == getattr(CATALOG, name), name
    for name in ("keys", "labels", "sizes", "roles"):
        found, wanted = getattr(loaded, name), getattr(CATALOG, name)
        assert found.dtype == wanted.dtype and (found == wanted).all(), name
    assert loaded.digest() == CATALOG.digest()
    assert loaded.file(0) == Path("/photos/vögel/a.jpg")
    assert loaded.labelled.tolist() == [True, False, True]


def test_an_empty_catalog_survives_too(tmp_path: Path) -> None:
    none = np.zeros(0, np.int64)
    empty = Catalog(Path("/x"), [], none.astype(np.uint64), none, [], np.zeros((0, 2), np.int32))
    empty.save(tmp_path)
    assert len(Catalog.load(tmp_path)) == 0


def test_a_catalog_that_was_saved_without_roles_has_new_images(tmp_path: Path) -> None:
    file = CATALOG.save(tmp_path)
    pq.write_table(pq.read_table(file).drop_columns(["role"]), file)
    assert Catalog.load(tmp_path).roles.tolist() == [Role.NEW] * 3


def test_the_table_is_readable_by_others(tmp_path: Path) -> None:
    table = pq.read_table(CATALOG.save(tmp_path))
    assert table.schema.names == ["path", "key", "label", "width", "height", "role"]
    assert table["role"].to_pylist() == ["corrected", "new", "replayed"]
    assert table["label"].to_pylist() == ["dog", None, "cat\n"]
    assert table["key"].to_pylist() == [2**64 - 1, 0, 7]


@pytest.mark.parametrize(
    "change",
    [
        {"paths": ["a.jpg", "b.png", "c.png"]},
        {"keys": np.array([2**64 - 1, 0, 8], np.uint64)},
        {"labels": np.array([1, 0, 0])},
        {"label_names": ["cat", "dog"]},
    ],
)
def test_the_digest_tells_catalogs_apart(change: dict[str, object]) -> None:
    assert replace(CATALOG, **change).digest() != CATALOG.digest()  # type: ignore[arg-type]
    assert replace(CATALOG, notes=[], root=Path("/y")).digest() == CATALOG.digest()


def test_quarantine_is_csv_whatever_the_names(tmp_path: Path) -> None:
    write_quarantine(tmp_path / "q.csv", CATALOG.broken)
    with (tmp_path / "q.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["path", "reason"],
            ["x\ny.jpg", "truncated"],
            ["z.jpg", "empty file"],
        ]


@pytest.mark.parametrize("name", ["catalog.parquet", "quarantine.csv"])
def test_a_damaged_catalog_is_one_clear_line(tmp_path: Path, name: str) -> None:
    CATALOG.save(tmp_path)
    (tmp_path / name).write_bytes(b'path,reason\n"a')
    with pytest.raises(UserError, match="is damaged") as caught:
        Catalog.load(tmp_path)
    assert caught.value.code == 1 and "\n" not in str(caught.value)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        Catalog.load(tmp_path)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 paths"):
        replace(CATALOG, labels=np.zeros(2, np.int64))
