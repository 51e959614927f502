"""The default beats its baselines on photographs: the quick form of the quality bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.photos
def test_the_default_beats_its_baselines_and_clustering_with_every_head(
    partgcd: Any, photo_sets: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    ended = partgcd("benchmark", "quality", "--quick", "--threads", "1", "--photos", photo_sets, "--out", results,
                    "--work", tmp_path / "work", limit=1800)  # fmt: skip
    assert ended.code == 0, ended.err + ended.out
    found = {}
    for file in results.rglob("seed-*.json"):
        result = json.loads(file.read_text())
        found[result["method"]] = result
    assert set(found) == {"gcd", "simgcd-entropy-2", "partgcd"}
    # That the default beats the baseline is what the exit code says.
    ours, clustering = found["partgcd"]["accuracy"], found["gcd"]["accuracy"]["v2"]["all"]
    for head in ("fused", "global", "part"):
        assert ours["heads"][head]["all"] > clustering + 0.05, head
    assert ours["v2"]["all"] >= ours["heads"]["part"]["all"], "what is fused is not below its part head"
    pure = found["partgcd"]["purity"]
    assert pure[-1] > pure[0], "candidates get purer through training"
