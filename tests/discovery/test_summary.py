from __future__ import annotations

import json
from typing import Any

import pytest

from partgcd.discovery.summary import summarise_repeats


def run(seed: int, everything: float, new: float | None = 0.5, accuracy: bool = True) -> dict[str, Any]:
    figures = {
        "set": "unlabelled training images (n=10, 5 of old classes)",
        "v2": {"all": everything, "old": 0.25, "new": new},
        "v1": {"all": everything / 2, "old": 0.5, "new": new},
        "plain": 0.5,
        "nmi": everything,
        "ari": None,
        "heads": {},
    }
    return {
        "id": f"r{seed}", "seed": seed, "method": "partgcd", "classes": {"total": 10 + seed},
        "seconds": {"total": 1.25}, "accuracy": figures if accuracy else None,
    }  # fmt: skip


def test_means_and_spreads_are_over_seeds() -> None:
    summary = summarise_repeats([run(0, 0.5), run(1, 0.75), run(2, 0.25)])
    assert summary["seeds"] == [0, 1, 2] and summary["runs"] == ["r0", "r1", "r2"]
    assert summary["classes"]["total"] == [10, 11, 12]
    assert summary["seconds"]["total"] == 3.75
    assert summary["accuracy"]["v2"] == pytest.approx({"all": 0.5, "old": 0.25, "new": 0.5})
    assert summary["accuracy"]["v1"]["all"] == pytest.approx(0.25)
    assert summary["spread"]["v2"] == pytest.approx({"all": 0.5, "old": 0.0, "new": 0.0})
    assert summary["spread"]["nmi"] == pytest.approx(0.5)
    json.dumps(summary, allow_nan=False)


def test_figures_that_some_runs_lack_are_means_of_the_others() -> None:
    summary = summarise_repeats([run(0, 0.5, None), run(1, 0.5, 0.25)])
    assert summary["accuracy"]["v2"]["new"] == 0.25 and summary["spread"]["v2"]["new"] == 0.0
    assert summary["accuracy"]["ari"] is None and summary["spread"]["ari"] is None


def test_a_run_without_truth_leaves_the_accuracy_out() -> None:
    summary = summarise_repeats([run(0, 0.5), run(1, 0.5, accuracy=False)])
    assert summary["accuracy"] is None
    assert "spread" not in summary
