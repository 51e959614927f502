"""The default beats its baselines on photographs: the quick form of the quality bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.photos
def test_the_default_beats_the_global_baseline_and_clustering(
    partgcd: Any, photo_sets: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    ended = partgcd("benchmark", "quality", "--quick", "--threads", "2", "--photos", photo_sets, "--out", results,
                    "--work", tmp_path / "work", limit=1800)  # fmt: skip
    assert ended.code == 0, ended.err + ended.out
    found = {}
    for file in results.rglob("seed-*.json"):
        result = json.loads(file.read_text())
        found[result["method"]] = result["accuracy"]
    assert set(found) == {"gcd", "simgcd", "partgcd"}
    ours = found["partgcd"]["v2"]["all"]
    assert ours > max(found[name]["v2"]["all"] for name in ("gcd", "simgcd"))
    assert ours >= found["partgcd"]["heads"]["part"]["all"]
