"""The quick form's verdict: paired over runs, and as sure as the images allow."""

from __future__ import annotations

import math
from typing import Any

import pytest

from partgcd.bench.verdict import verdicts


def result(
    method: str, value: float, seed: int = 0, images: int = 400, epochs: float = 1.0
) -> dict[str, Any]:
    return {"set": "birds", "backbone": "vit", "method": method, "seed": seed, "images": {"unlabelled": images},
            "accuracy": {"v2": {"all": value}}, "seconds": {"epochs": epochs}}  # fmt: skip


def test_the_doubt_is_two_standard_errors_of_a_difference_of_shares() -> None:
    (one,) = verdicts([result("ours", 0.5), result("rival", 0.5)], "ours")
    assert one.doubt == pytest.approx(2 * math.sqrt(0.25 / 400 * 2))
    (one,) = verdicts([result(m, 0.5, seed) for m in ("ours", "rival") for seed in range(4)], "ours")
    assert one.doubt == pytest.approx(math.sqrt(0.25 / 400 * 2))


def test_only_runs_that_both_have_are_compared() -> None:
    runs = [result("ours", 0.6), result("ours", 0.1, 1), result("rival", 0.5), result("other", 0.2, 7)]
    (one,) = verdicts(runs, "ours")
    assert (one.rival, one.ours, one.theirs) == ("rival", 0.6, 0.5)
    assert verdicts(runs[1:], "ours") == []
    assert verdicts([], "ours") == []


@pytest.mark.parametrize(
    ("lead", "epochs", "lost"),
    [(0.1, 1, False), (0.01, 1, False), (0.0, 1, True), (-0.05, 1, True), (0.05, 0, True), (0.1, 0, False)]
)  # fmt: skip
def test_the_default_leads_a_trained_rival_and_clearly_leads_clustering(
    lead: float, epochs: float, lost: bool
) -> None:
    (one,) = verdicts([result("ours", 0.5 + lead), result("rival", 0.5, epochs=epochs)], "ours")
    assert one.lost is lost
