"""Prototypes set anew to clusters: what is found, what keeps its index, what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partgcd.discovery.starts import refit_clusters, set_prototypes, settle_clusters


def blobs(classes: int, each: int = 30, dim: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(classes, dim))
    truth = np.repeat(np.arange(classes), each)
    rows = centres[truth] / np.linalg.norm(centres[truth], axis=1, keepdims=True)
    rows = rows + 0.1 * draw.normal(size=rows.shape)
    return torch.from_numpy(rows).float(), torch.from_numpy(truth)


@pytest.mark.parametrize("old", [0, 2, 5])
def test_clusters_keep_the_index_of_the_class_they_were(old: int) -> None:
    features, truth = blobs(6)
    labels = torch.where((truth < old) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
    order = torch.cat(
        [torch.arange(old), old + torch.randperm(6 - old, generator=torch.Generator().manual_seed(1))]
    )
    predicted = order[truth]
    worse = predicted.clone()
    worse[::5] = 5  # a class head that is wrong on every fifth image
    clusters = refit_clusters(features, labels, worse, old, 6, seed=3)
    assert (clusters[labels >= 0] == labels[labels >= 0]).all()
    assert (clusters == predicted).float().mean() > 0.95


def test_a_class_that_no_image_chose_gets_images_again() -> None:
    features, truth = blobs(4)
    labels = torch.full_like(truth, -1)
    predicted = torch.where(truth == 3, 2, truth)  # class 3 is empty
    clusters = refit_clusters(features, labels, predicted, 0, 4, seed=0)
    assert sorted(torch.bincount(clusters, minlength=4).tolist()) == [30, 30, 30, 30]
    assert (clusters[truth == 0] == 0).all() and (clusters[truth == 1] == 1).all()


@pytest.mark.parametrize("first", [0, 2])
def test_prototypes_turn_to_their_clusters_and_keep_their_size(first: int) -> None:
    features, truth = blobs(4)
    weight = torch.randn(5, features.shape[1], generator=torch.Generator().manual_seed(2))
    before = weight.clone()
    set_prototypes(weight, features, truth, first)
    assert torch.equal(weight[:first], before[:first])
    assert torch.equal(weight[4], before[4])  # no image: left where it was
    size = before.norm(dim=1).mean()
    for row in range(first, 4):
        mean = features[truth == row].mean(dim=0)
        assert torch.allclose(weight[row], mean / mean.norm() * size, atol=1e-5)


def test_settling_repairs_wrong_answers_and_holds_labels() -> None:
    features, truth = blobs(4)
    labels = torch.full_like(truth, -1)
    labels[::7] = truth[::7]
    labels[0] = 3  # a label holds even where the image looks like another class
    said = truth.clone()
    said[1::4] = (said[1::4] + 1) % 4  # a quarter of the answers is wrong
    start = torch.nn.functional.one_hot(said, 4).float() * 0.6 + 0.1
    clusters = settle_clusters(features, labels, start, 0.05)
    assert (clusters[labels >= 0] == labels[labels >= 0]).all()
    assert (clusters == truth)[1:].all()


def test_settling_does_not_even_out_class_sizes() -> None:
    draw = np.random.default_rng(0)
    rows = np.concatenate([
        np.eye(8)[0] + 0.35 * draw.normal(size=(400, 8)), np.eye(8)[1] + 0.05 * draw.normal(size=(12, 8)),
    ])  # fmt: skip
    features, truth = torch.from_numpy(rows).float(), torch.tensor([0] * 400 + [1] * 12)
    start = torch.nn.functional.one_hot(truth, 2).float() * 0.8 + 0.1
    clusters = settle_clusters(features, torch.full_like(truth, -1), start, 0.05)
    assert (clusters[400:] == 1).all() and int((clusters == 1).sum()) < 40


def test_shares_that_are_known_keep_a_loose_class_from_a_tight_one_beside_it() -> None:
    """Class 1 is a look-alike of 0, of which many labelled images are there: a share of all images would starve it."""
    draw = np.random.default_rng(1)
    alike = np.eye(8)[0] + 0.3 * np.eye(8)[1]
    rows = np.concatenate([
        np.eye(8)[0] + 0.12 * draw.normal(size=(260, 8)), alike + 0.12 * draw.normal(size=(40, 8)),
    ])  # fmt: skip
    features, truth = torch.from_numpy(rows).float(), torch.tensor([0] * 260 + [1] * 40)
    labels = torch.where(torch.arange(300) < 240, 0, -1)
    start = torch.nn.functional.one_hot(truth, 2).float() * 0.2 + 0.4
    right = [
        int((settle_clusters(features, labels, start, 0.05, shares=shares)[260:] == 1).sum())
        for shares in (None, torch.tensor([20 / 60, 40 / 60]))
    ]
    assert right[1] > 30 > right[0]
