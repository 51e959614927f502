"""The scripts in ``benchmarks/`` that need a card or hours run here in their small form."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"

_WITHOUT = """
import runpy, sys
for name in ("ray", "faiss"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words: object) -> str:
    """A script's standard output, without ray and faiss."""
    answer = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def script(name: str) -> Any:
    """A script as a module."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def test_the_step_on_one_card_is_measured_against_a_plain_one(tmp_path: Path) -> None:
    run(FOLDER / "gpu_step.py", "--small", "--out", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [each["precision"] for each in found["found"]] == ["fp32", "bf16"]
    for each in found["found"]:
        for side in ("plain", "exact", "pool"):
            assert each[side]["step_images_per_second"] >= each[side]["epoch_images_per_second"] > 0
        assert each["refresh_seconds"] > 0 and each["mixture_seconds"] > 0
    assert len(found["ratios"]) == 16
    assert found["tf32"] is False


def test_workers_are_measured_and_their_exponents_fitted(tmp_path: Path) -> None:
    workers = script("workers")
    cases = workers.cases([1, 2], 10_000, False)
    assert len(set(cases)) == len(cases) and workers.Case(2, 10_000, 2000) in cases
    assert not any(case.images > 10_000 for case in cases)
    found = [
        {"workers": w, "images": n, "classes": c, **{f"{name}_seconds": n**1.5 * c / w for name in (
            "features", "assign", "refresh", "mixtures")}}
        for w, n, c in [(1, 100, 5), (2, 100, 5), (4, 100, 5), (2, 200, 5), (2, 400, 5), (2, 100, 10), (2, 100, 20)]
    ]  # fmt: skip
    slopes = workers.exponents(found)
    assert (slopes["mixtures ~ workers^"], slopes["refresh ~ images^"], slopes["assign ~ classes^"]) == (
        -1,
        1.5,
        1,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_nudge_moves_every_weight_to_a_float_next_to_it(seed: int) -> None:
    same_run = script("same_run")
    before = [torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(30)]
    after, again = ([value.clone() for value in before] for _ in range(2))
    same_run.move(after, seed)
    same_run.move(again, seed)
    for old, new, repeated in zip(before, after, again, strict=True):
        assert torch.equal(new, repeated)
        up, down = (torch.nextafter(old, torch.full_like(old, side)) for side in (torch.inf, -torch.inf))
        assert ((new == up) | (new == down)).all()
        assert 0.2 < (new == up).float().mean() < 0.8
