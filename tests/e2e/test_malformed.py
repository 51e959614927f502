"""A whole run over a folder of odd and broken images: the readable are categorised, the others are named."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def odd_folder(
    malformed_corpus: tuple[Path, dict[str, Any]], picture_folder: Callable[..., Path]
) -> tuple[Path, dict[str, str], set[str]]:
    """A flat folder: over a hundred odd images and twelve plain ones; reasons of the broken, the readable."""
    folder, expected = malformed_corpus
    picture_folder(folder, 4, 3)
    broken = {name: what.reason for name, what in expected.items() if what.pixels is None}
    return folder, broken, {path.name for path in folder.iterdir()} - broken.keys()


def test_every_image_of_a_malformed_folder_is_either_categorised_or_quarantined(
    odd_folder: tuple[Path, dict[str, str], set[str]], partgcd: Any, tiny: list[str], tmp_path: Path
) -> None:
    folder, broken, readable = odd_folder
    run = tmp_path / "run"
    ended = partgcd("train", "--data", folder, "--out", run, *tiny, "--classes", "4", "--max-broken", "1",
                    "--view-pool", "2")  # fmt: skip
    assert ended.code == 0, ended.err

    quarantine = {row["path"]: row["reason"] for row in rows_of(run / "quarantine.csv")}
    assert quarantine.keys() == broken.keys()
    assert all(quarantine[name].startswith(reason) and quarantine[name] for name, reason in broken.items())

    predictions = rows_of(run / "predictions.csv")
    assert sorted(row["path"] for row in predictions) == sorted(readable)
    assert any("\n" in name for name in readable) and any(not name.isascii() for name in readable)
    table = pq.read_table(run / "predictions.parquet").to_pylist()
    assert [row["path"] for row in table] == [row["path"] for row in predictions]
    assert pq.read_table(run / "catalog.parquet")["path"].to_pylist() == sorted(readable)
    names = {record["name"] for record in json.loads((run / "classes.json").read_text("utf-8"))}
    assert {row["class_name"] for row in predictions} <= names and len(names) == 4

    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["images"] == {
        "total": len(readable), "labelled": 0, "unlabelled": len(readable), "broken": len(broken), "duplicates": 0
    }  # fmt: skip
    assert f"{len(readable)} images, {len(broken)} unreadable" in ended.out

    page = html.unescape((run / "report.html").read_bytes().decode("utf-8"))
    missing = [name for name in broken if name not in page]
    assert not missing


def test_a_name_with_a_newline_is_shown_on_one_line_of_the_report(
    picture_folder: Callable[..., Path], partgcd: Any, tiny: list[str], tmp_path: Path
) -> None:
    folder = picture_folder(tmp_path / "few", 2, 4)
    odd = [
        'new\nline, "quoted".png',
        "vögel im märz ☀.png",
        "<img src=x onerror=alert(1)>.png",
        "crlf\r\n.png",
    ]
    plain = sorted(folder.iterdir())
    for name, path in zip(odd, plain, strict=False):
        path.rename(folder / name)
    (folder / "broken\nüber.png").write_bytes(b"no image")
    run = tmp_path / "run"
    ended = partgcd("train", "--data", folder, "--out", run, *tiny, "--classes", "2", "--batch-size", "4",
                    "--epochs", "1", "--max-broken", "0.5", "--view-pool", "0")  # fmt: skip
    assert ended.code == 0, ended.err
    listed = [row["path"] for row in rows_of(run / "predictions.csv")]
    assert sorted(listed) == sorted(path.name for path in folder.iterdir() if "über" not in path.name)
    assert [row["path"] for row in rows_of(run / "quarantine.csv")] == ["broken\nüber.png"]
    source = (run / "report.html").read_bytes().decode("utf-8")
    page = html.unescape(source)
    assert "vögel im märz ☀.png" in page
    assert odd[2] in page and odd[2] not in source
    assert "new\nline" not in page and "broken\nüber" not in page
    assert 'line, "quoted".png' in page and "über.png" in page


def test_too_many_broken_images_end_a_run_with_one_line_and_a_list(
    odd_folder: tuple[Path, dict[str, str], set[str]], partgcd: Any, tiny: list[str], tmp_path: Path
) -> None:
    folder, broken, _ = odd_folder
    run = tmp_path / "run"
    ended = partgcd("train", "--data", folder, "--out", run, *tiny, "--classes", "4")
    assert ended.code == 1
    lines = [line for line in ended.err.splitlines() if line.startswith("partgcd: ")]
    assert lines == ended.err.splitlines()[-1:]
    assert "Traceback" not in ended.err
    assert f"{len(broken)} of " in lines[0] and "max_broken" in lines[0] and "quarantine.csv" in lines[0]
    assert {row["path"] for row in rows_of(run / "quarantine.csv")} == broken.keys()
    assert not (run / "catalog.parquet").exists() and not (run / "store").exists()
    assert not list(run.glob(".*"))
