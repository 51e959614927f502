from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from partgcd.backbone.known import offline_names
from partgcd.cli import checkup as checks
from partgcd.cli.checkup import checkup, installed

Partgcd = Callable[..., Any]
GOOD = {"faiss-cpu": "1.12.0", "onnxruntime": "1.23.0", "torch": "2.9.0+cpu", "torchvision": "0.24.0"}


@pytest.fixture(autouse=True)
def vision_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's own words on the torch it needs."""
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy", "torch==2.9.0", "pillow"])


def problems_with(**changes: str | None) -> list[str]:
    versions = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return checkup(ask_hub=False, version=versions.get)[1]


def test_a_good_machine_has_no_problem() -> None:
    assert problems_with() == []
    assert problems_with(faiss_cpu=None, faiss_gpu="1.12", onnxruntime=None, onnxruntime_gpu="1.23") == []


@pytest.mark.parametrize("pair", [("faiss-cpu", "faiss-gpu"), ("onnxruntime", "onnxruntime-gpu")])
def test_both_of_a_pair_overwrite_each_other(pair: tuple[str, str]) -> None:
    (problem,) = problems_with(**dict.fromkeys(pair, "1.0"))
    assert f"{pair[0]} and {pair[1]} are both installed" in problem
    assert f"pip uninstall {pair[0]} {pair[1]}" in problem


@pytest.mark.parametrize("name", ["faiss-cpu", "onnxruntime"])
def test_neither_of_a_pair_names_the_line_that_helps(name: str) -> None:
    (problem,) = problems_with(**{name: None})
    assert f"neither {name} nor" in problem and "pip install 'partgcd[cpu]'" in problem


def test_torch_and_torchvision_have_to_belong_together() -> None:
    (problem,) = problems_with(torch="2.10.1+cu128")
    assert "torchvision 0.24.0 needs torch 2.9.0, but 2.10.1+cu128 is installed" in problem
    assert problems_with(torch="2.9.0+cu128") == []


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_a_missing_one_of_the_two_is_named(name: str) -> None:
    (problem,) = problems_with(**{name: None})
    assert problem.startswith(f"{name} is not installed")


def test_all_problems_are_told_at_once() -> None:
    assert len(problems_with(faiss_gpu="1", onnxruntime=None, torch="2.8.0")) == 3


def test_the_lines_tell_versions_devices_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = checkup(ask_hub=False, version=GOOD.get)
    text = "\n".join(lines)
    assert "torch 2.9.0+cpu" in text and "ray absent" in text
    assert re.search(r"cpu: \d+ cores, torch uses \d+ threads", text)
    assert re.search(r"precision auto: (fp32|bf16)", text)
    assert all(f"weights {name}: " in text for name in offline_names())
    assert "hub" not in text
    monkeypatch.setattr(checks, "_hub", lambda: "not reachable")
    assert checkup(ask_hub=True, version=GOOD.get)[0][-1] == "weights hub: not reachable"


def test_a_hub_that_does_not_answer_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    assert "not reachable (ConnectionError)" in checks._hub()


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert installed("no-such-package-anywhere") is None
    assert installed("numpy")


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["torch is broken"], 1)])
def test_doctor_fails_where_something_is_wrong(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch, problems: list[str], code: int
) -> None:
    asked: list[bool] = []

    def fake(ask_hub: bool) -> tuple[list[str], list[str]]:
        asked.append(ask_hub)
        return ["a line"], problems

    monkeypatch.setattr(checks, "checkup", fake)
    answer = partgcd("doctor", "--offline")
    assert answer.code == code and asked == [False]
    assert answer.out.splitlines() == ["a line", *([f"problem: {each}" for each in problems] or ["all well"])]


def test_weights_that_are_not_fetched_say_so(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from partgcd.backbone import weights

    monkeypatch.setattr(weights, "weights_status", lambda name: None if "vit" in name else "/cache/file")
    lines = partgcd("weights", "list").out.splitlines()
    assert lines == [
        "offline/vit-small: not fetched", "offline/efficientnet-lite0: /cache/file",
    ]  # fmt: skip


def test_fetching_is_of_the_named_weights_or_of_all(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.backbone import weights

    fetched: list[str] = []
    monkeypatch.setattr(weights, "fetch_weights", lambda name: fetched.append(name) or f"/cache/{name}")
    assert "/cache/offline/vit-small" in partgcd("weights", "fetch", "offline/vit-small").out
    assert fetched == ["offline/vit-small"]
    partgcd("weights", "fetch")
    assert fetched[1:] == offline_names()


def test_weights_that_do_not_exist_are_wrong_usage(partgcd: Partgcd) -> None:
    answer = partgcd("weights", "fetch", "offline/vit-giant")
    assert answer.code == 2
    assert "choose from offline/vit-small" in answer.error
