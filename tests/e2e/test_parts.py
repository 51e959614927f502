"""Part maps mean the drawn parts, and mean the same in every category: real weights on sample images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partgcd.backbone.weights import weights_status

pytestmark = pytest.mark.slow

_BACKBONE = "offline/vit-small"


@pytest.fixture(scope="module")
def scores(partgcd: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    if weights_status(_BACKBONE) is None:
        pytest.skip(f"the weights are not here: partgcd weights fetch {_BACKBONE}")
    folder: Path = tmp_path_factory.mktemp("parts")
    guide, run = folder / "guide", folder / "run"
    steps = [
        ("demo", "--out", guide, "--species", "8", "--per-species", "16", "--size", "192"),
        ("train", "--data", guide / "images", "--out", run, "--classes", "8", "--backbone", _BACKBONE,
         "--image-size", "154", "--epochs", "2", "--batch-size", "32", "--view-pool", "2", "--threads", "1",
         "--set", "parts.count=5", "--set", "train.lr=0.01"),
        ("evaluate", run, "--truth", guide / "truth.csv", "--masks", guide / "masks"),
    ]  # fmt: skip
    for words in steps:
        ended = partgcd(*words, limit=400)
        assert ended.code == 0, ended.err
    found: dict[str, dict[str, float]] = json.loads((run / "evaluation.json").read_text())["parts"]["scores"]
    return found


@pytest.mark.parametrize("other", ["k-means", "shuffled"])
@pytest.mark.parametrize("score", ["mutual_information", "slot_agreement"])
def test_part_maps_beat(scores: dict[str, dict[str, float]], score: str, other: str) -> None:
    assert scores["partgcd"][score] > 1.2 * scores[other][score]


def test_slots_agree_more_than_aligned_clusters(scores: dict[str, dict[str, float]]) -> None:
    assert scores["partgcd"]["slot_agreement"] > scores["k-means, aligned"]["slot_agreement"]
