from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Partgcd = Callable[..., Any]
FEW = ("--set", "parts.projection=8", "--image-size", "64", "--classes", "3", "--set", "parts.min_patches=10")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the first test of this file made, for those after it."""
    return {"at": tmp_path_factory.mktemp("kept")}


@pytest.fixture
def exported(partgcd: Partgcd, train: Partgcd, images: Path, kept: dict[str, Path]) -> Path:
    """A bundle named ``model`` beside ``images``, made by the command line once."""
    if "model" not in kept:
        assert train("--data", images, "--out", "run", *FEW).code == 0
        answer = partgcd("export", "run", "--out", "model")
        assert answer.code == 0, answer.err
        lines = answer.out.splitlines()
        assert lines[0].startswith("bundle ") and "in model: 3 categories, fp32" in lines[0]
        assert lines[1].startswith("parity with torch ") and len(lines) == 2
        kept["model"] = shutil.copytree("model", kept["at"] / "model")
        kept["run"] = shutil.copytree("run", kept["at"] / "run")
    target = images.parent / "model"
    if not target.exists():
        shutil.copytree(kept["model"], target)
    return target


def test_a_run_becomes_a_bundle_that_checks(partgcd: Partgcd, exported: Path) -> None:
    answer = partgcd("bundle", "check", exported)
    assert answer.code == 0 and "is whole: " in answer.out and "fp32, opset 20" in answer.out
    data = bytearray((exported / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (exported / "weights.safetensors").write_bytes(data)
    answer = partgcd("bundle", "check", exported)
    assert answer.code == 1 and "weights.safetensors is not the file that was exported" in answer.error


def test_export_refuses_before_it_works(partgcd: Partgcd, exported: Path, kept: dict[str, Path]) -> None:
    answer = partgcd("export", kept["run"], "--out", "model")
    assert answer.code == 2 and "never overwritten" in answer.error
    assert partgcd("export", kept["run"], "--out", "x", "--int8", "--fp16").code == 2
    assert "holds no runs" in partgcd("export", "nope", "--out", "x").error
    assert partgcd("bundle", "check", "nope").code == 2


def test_csv_names_every_image(partgcd: Partgcd, exported: Path, images: Path) -> None:
    answer = partgcd("classify", "model", "images", "--format", "csv", "--top-k", "2", "--threads", "1")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert len(rows) == 18 and len({row["path"] for row in rows}) == 18
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    for row in rows:
        assert row["class_id"].startswith("c-") and row["class_id_2"] != row["class_id"]
        assert float(row["confidence"]) >= float(row["confidence_2"])
        assert row["novel"] in ("true", "false") and row["error"] == "" and len(row["model_version"]) == 64


def test_json_lines_hold_the_same(partgcd: Partgcd, exported: Path) -> None:
    answer = partgcd("classify", "model", "images/ash", "--format", "jsonl", "--top-k", "9")
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert len(lines) == 4 and all(len(line["top"]) == 3 for line in lines)
    assert {*lines[0]} == {"path", "top", "novel", "novelty", "model_version"}
    assert {*lines[0]["top"][0]} == {"id", "name", "kind", "confidence"}


def test_a_table_is_for_people(partgcd: Partgcd, exported: Path) -> None:
    answer = partgcd("classify", "model", "images/ash", "images/birch/0.png", "--top-k", "2")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["image", "category", "sure", "novel"] and len(lines) == 1 + 2 * 5
    assert lines[1].startswith("images/ash/0.png") and "%" in lines[1] and lines[2].startswith(" ")


def test_patterns_and_stdin_name_images_too(
    partgcd: Partgcd, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = partgcd("classify", "model", "images/*/[01].png", "--format", "csv")
    assert len(answer.out.splitlines()) == 1 + 6
    monkeypatch.setattr("sys.stdin", io.StringIO("images/ash/1.png\r\n\nimages/ash/0.png"))
    answer = partgcd("classify", "model", "-", "--format", "jsonl")
    paths = [json.loads(line)["path"] for line in answer.out.splitlines()]
    assert answer.code == 0 and paths == ["images/ash/1.png", "images/ash/0.png"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert partgcd("classify", "model", "-", "--format", "jsonl").out == ""


def test_an_image_that_can_not_be_read_says_why_in_its_row(
    partgcd: Partgcd, exported: Path, images: Path
) -> None:
    (images / "odd.png").write_text("no image")
    words = ["images/odd.png", "images/gone.jpg", "images/ash/0.png", "x" * 300]
    answer = partgcd("classify", "model", *words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert answer.code == 1 and "3 of the images could not be read" in answer.err
    assert "not an image" in rows[0]["error"] and rows[1]["error"] == "file not found"
    assert rows[0]["class_id"] == "" and rows[2]["error"] == "" and rows[2]["class_id"]
    answer = partgcd("classify", "model", *words, "--format", "jsonl")
    assert [("error" in json.loads(line)) for line in answer.out.splitlines()] == [True, True, False, True]
    answer = partgcd("classify", "model", *words)
    assert answer.code == 1 and "not read: file not found" in answer.out


def test_explanations_are_drawn_beside_the_rows(partgcd: Partgcd, exported: Path) -> None:
    from PIL import Image

    answer = partgcd("classify", "model", "images/ash", "--format", "csv", "--explain", "drawn")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert rows[0]["explanation"] == "drawn/000001-0.png"
    assert all(Image.open(row["explanation"]).size == (64, 64) for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model", "images", "--format", "xml"], "no format 'xml'"),
        (["model", "empty"], "no images in 'empty'"),
        (["model", "images/*.gif"], "no file fits"),
        (["model", "-", "images"], "give it alone"),
        (["nothing", "images"], "no bundle in"),
    ],
)
def test_wrong_usage_is_one_line(partgcd: Partgcd, exported: Path, words: list[str], told: str) -> None:
    (exported.parent / "empty").mkdir()
    answer = partgcd("classify", *words)
    assert answer.code == 2 and told in answer.error and answer.out == ""


def test_numbers_out_of_range_are_wrong_usage(partgcd: Partgcd, exported: Path) -> None:
    for words in (["--top-k", "0"], ["--batch", "0"], ["--threads", "-1"]):
        assert partgcd("classify", "model", "images", *words).code == 2
    assert partgcd("classify", "model").code == 2
