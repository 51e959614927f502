"""``partgcd benchmark``: what would run, the table of what has run, and the verdict of the quick form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partgcd.bench.plan import Job, Plan
from partgcd.bench.results import QUALITY, add_result, measured_settings

Partgcd = Callable[..., Any]

PLAN = """
sets: {birds: {folder: birds, note: a small set}}
methods:
  gcd: {settings: {discovery.method: gcd}}
  simgcd: {settings: {discovery.method: simgcd}}
  partgcd: {}
blocks:
  - {name: all, sets: [birds], methods: [gcd, simgcd, partgcd], seeds: [0, 1]}
  - {name: quick, sets: [birds], methods: [gcd, simgcd, partgcd]}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return file


def put(plan: Path, results: Path, **accuracy: float) -> None:
    """Results as a run of seed 0 would leave them."""
    read = quality_plan(plan)
    for method, value in accuracy.items():
        job = Job("birds", "offline/vit-small", method, 0)
        three = {"all": value, "old": value, "new": value}
        add_result(results, QUALITY, {
            "set": "birds", "backbone": job.backbone, "method": method, "seed": 0,
            "drawn": read.sets["birds"].drawn(), "settings": measured_settings(read.settings(job, 4, {})),
            "accuracy": {"v2": three, "heads": {"global": three, "fused": three}, "nmi": 0.5, "ari": 0.4},
            "purity": [0.25, 0.5], "classes": {"true": 4, "used": 4, "empty": 0}, "images": {"unlabelled": 384},
            "seconds": {"epochs": 0 if method == "gcd" else 3.0, "discovery": 4.0},
        })  # fmt: skip


def quality_plan(file: Path) -> Plan:
    from partgcd.bench.plan import read_plan

    return read_plan(file)


def test_list_names_what_has_no_result(partgcd: Partgcd, plan: Path, tmp_path: Path) -> None:
    put(plan, tmp_path / "results", gcd=0.5)
    answer = partgcd("benchmark", "quality", "--plan", plan, "--out", "results", "--list")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert len(lines) == 5 and "birds offline/vit-small gcd seed 1" in lines
    assert "birds offline/vit-small gcd seed 0" not in lines


def test_the_table_shows_results_and_what_a_set_is(partgcd: Partgcd, plan: Path, tmp_path: Path) -> None:
    put(plan, tmp_path / "results", gcd=0.5, partgcd=0.75)
    answer = partgcd("benchmark", "table", "--plan", plan, "--out", "results")
    assert answer.code == 0
    assert "| birds | offline/vit-small | partgcd | 0 | 75.0 |" in answer.out
    assert "25 to 50" in answer.out and "simgcd" not in answer.out
    assert answer.out.splitlines()[-1] == "birds: a small set"


@pytest.mark.parametrize(
    ("ours", "gcd", "code"),
    [(0.7, 0.4, 0), (0.62, 0.4, 0), (0.6, 0.4, 1), (0.54, 0.4, 1), (0.65, 0.6, 1), (0.3, 0.4, 1)],
)
def test_the_quick_form_fails_where_the_default_does_not_win(
    partgcd: Partgcd, plan: Path, tmp_path: Path, ours: float, gcd: float, code: int
) -> None:
    """384 images tell differences of 7: a trained baseline has to trail, clustering by more than that."""
    put(plan, tmp_path / "results", gcd=gcd, simgcd=0.6, partgcd=ours)
    (tmp_path / "photos").mkdir()
    answer = partgcd(
        "benchmark", "quality", "--plan", plan, "--out", "results", "--photos", "photos", "--quick"
    )
    assert answer.code == code
    assert f"default {100 * ours:.1f}, simgcd 60.0: {100 * ours - 60:+.1f}" in answer.out


def test_bad_asks_are_one_line(
    partgcd: Partgcd, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARTGCD_PHOTOS", raising=False)
    assert "--photos" in partgcd("benchmark", "quality", "--plan", plan).error
    answer = partgcd("benchmark", "quality", "--plan", plan, "--block", "other")
    assert answer.code == 2 and "no block 'other'" in answer.error
    assert "no plan" in partgcd("benchmark", "table", "--plan", "none.yaml").error
    (tmp_path / "photos").mkdir()
    missing = partgcd("benchmark", "quality", "--plan", plan, "--photos", "photos", "--out", "r")
    assert missing.code == 2 and "no data set 'birds'" in missing.error
