"""On real photographs the method beats what its frozen backbone knows, and chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from partgcd.cluster.metrics import clustering_accuracy

EPOCHS = 20
BOUND = 0.42
"""Accuracy over all unlabelled images that the run has to reach, and that both baselines have to miss."""

_BACKBONE = "offline/vit-small"
_FLAGS = ["--protocol", "gcd", "--seed", "0", "--backbone", _BACKBONE, "--image-size", "154", "--classes", "16",
          "--threads", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(photo_sets: Path) -> Path:
    return photo_sets / "cub16"


@pytest.fixture(scope="module")
def frozen(photos: Path, partgcd: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """k-means on the features of the frozen backbone: another run that shares nothing but the photographs."""
    run = tmp_path_factory.mktemp("photos") / "kmeans"
    ended = partgcd("train", "--data", photos, "--out", run, *_FLAGS, "--method", "kmeans", limit=600)
    assert ended.code == 0, ended.err
    return run


def answers(run: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """True and found class of every unlabelled image, as numbers."""
    told = pq.read_table(run / "truth.parquet").to_pydict()
    truth = dict(zip(told["path"], told["truth"], strict=True))
    rows = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["label"] is None]
    columns = [[truth[row["path"]] for row in rows], [row["class_name"] for row in rows]]
    true, found = (np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns)
    return true, found


def chance(run: Path, permutations: int = 20) -> float:
    """Best accuracy of the run's own classes dealt out at random: keeps their sizes and nothing else."""
    true, found = answers(run)
    rng = np.random.default_rng(0)
    return max(clustering_accuracy(true, rng.permutation(found)) for _ in range(permutations))


def accuracy(run: Path) -> float:
    """Accuracy over all unlabelled images, counted here and not taken from the run's word."""
    true, found = answers(run)
    assert len(true) > 300
    measured = clustering_accuracy(true, found)
    said = json.loads((run / "evaluation.json").read_text())["v2"]["all"]
    assert measured == pytest.approx(said, abs=1e-12)
    return measured


@pytest.mark.photos
def test_frozen_features_and_chance_miss_the_bound(frozen: Path) -> None:
    assert chance(frozen) < accuracy(frozen) < BOUND


@pytest.mark.photos
def test_training_on_photographs_reaches_the_bound(
    photos: Path, frozen: Path, partgcd: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = partgcd("train", "--data", photos, "--out", run, *_FLAGS, "--epochs", str(EPOCHS), "--view-pool", "2",
                    limit=1800)  # fmt: skip
    assert ended.code == 0, ended.err
    reached = accuracy(run)
    assert reached >= BOUND > max(chance(run), accuracy(frozen)), reached
