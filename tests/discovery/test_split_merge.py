"""Out of a local optimum: two kinds in one class and one kind in two are told apart, and nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.discovery.metrics import split_accuracy
from partgcd.discovery.split_merge import split_and_merge
from partgcd.discovery.starts import settle_clusters

KINDS, EACH = 8, 40


def photos(old: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of eight kinds, the last two alike, their truth, and labels for half the images of ``old`` kinds."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.normal(size=(24, KINDS)))[0].T
    centres[KINDS - 1] = centres[KINDS - 2] + 0.7 * centres[KINDS - 1]
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    truth = np.repeat(np.arange(KINDS), EACH)
    rows = centres[truth] + 0.08 * draw.normal(size=(len(truth), 24))
    labels = np.where((truth < old) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    return torch.from_numpy(rows).float(), torch.from_numpy(truth), torch.from_numpy(labels)


def stuck(truth: Tensor) -> Tensor:
    """The two that look alike in one class, and the one before them in two."""
    clusters = truth.clone()
    clusters[truth == KINDS - 1] = KINDS - 2
    clusters[(truth == KINDS - 3) & (torch.arange(len(truth)) % 2 == 0)] = KINDS - 1
    return clusters


def right(truth: Tensor, clusters: Tensor) -> float:
    found = split_accuracy(truth.numpy(), clusters.numpy(), np.zeros(len(truth), dtype=bool))
    return float(found["v2"]["all"])


@pytest.mark.parametrize("old", [0, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_local_optimum_that_iterating_does_not_leave_is_left(old: int, seed: int) -> None:
    features, truth, labels = photos(old, seed)
    start = torch.nn.functional.one_hot(stuck(truth), KINDS).float()
    clusters = settle_clusters(features, labels, start, 0.05)
    assert right(truth, clusters) < 0.95, "iterating alone would do"
    clusters = split_and_merge(features, labels, clusters, old, KINDS, 0.05, seed)
    assert right(truth, clusters) > 0.99
    assert (clusters[labels >= 0] == labels[labels >= 0]).all()


def test_what_is_right_stays_as_it_is() -> None:
    features, truth, labels = photos(3)
    assert torch.equal(split_and_merge(features, labels, truth, 3, KINDS, 0.05, 0), truth)


def test_labelled_classes_are_split_but_never_merged_away() -> None:
    features, truth, labels = photos(3)
    # Kind 3 was taken in by labelled class 2; its own class holds half of kind 4.
    clusters = truth.clone()
    clusters[truth == 3] = 2
    clusters[(truth == 4) & (torch.arange(len(truth)) % 2 == 0)] = 3
    found = split_and_merge(features, labels, clusters, 3, KINDS, 0.05, 0)
    assert right(truth, found) > 0.99
    for kind in range(3):
        assert (found[truth == kind] == kind).all()


def test_a_class_without_images_begins_anew() -> None:
    features, truth, labels = photos(0)
    clusters = torch.where(truth == KINDS - 1, KINDS - 2, truth)
    found = split_and_merge(features, labels, clusters, 0, KINDS, 0.05, 1)
    assert torch.bincount(found, minlength=KINDS).tolist() == [EACH] * KINDS


@pytest.mark.parametrize("old", [KINDS, KINDS - 1])
def test_without_another_new_class_or_unlabelled_image_nothing_is_tried(old: int) -> None:
    features, truth, _ = photos(old)
    everything = split_and_merge(features, truth, truth, old, KINDS, 0.05, 0)
    assert torch.equal(everything, truth)
    if old == KINDS:
        none = torch.full_like(truth, -1)
        assert torch.equal(split_and_merge(features, none, stuck(truth), old, KINDS, 0.05, 0), stuck(truth))


def test_a_seed_decides_all_and_many_images_are_searched_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    features, truth, labels = photos(3)
    once, again = (split_and_merge(features, labels, stuck(truth), 3, KINDS, 0.05, 4) for _ in range(2))
    assert torch.equal(once, again)
    monkeypatch.setattr("partgcd.discovery.split_merge._SEARCHED", 160)
    sampled = split_and_merge(features, labels, stuck(truth), 3, KINDS, 0.05, 4)
    assert right(truth, sampled) > 0.99 and len(sampled) == len(truth)
