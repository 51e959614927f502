"""The default beats its baselines on photographs: the quick form of the quality bench."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from partgcd.backbone.weights import weights_status


@pytest.mark.photos
def test_the_default_beats_the_global_baseline_and_clustering(partgcd: Any, tmp_path: Path) -> None:
    if not os.environ.get("PARTGCD_PHOTOS"):
        pytest.skip("PARTGCD_PHOTOS does not name a folder of photographs")
    if weights_status("offline/vit-small") is None:
        pytest.skip("the weights are not here: partgcd weights fetch offline/vit-small")
    results = tmp_path / "results"
    ended = partgcd("benchmark", "quality", "--quick", "--threads", "2", "--out", results,
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
