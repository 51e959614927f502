from __future__ import annotations

import numpy as np
import pytest

from partgcd.cluster.metrics import clustering_accuracy
from partgcd.cluster.semi_kmeans import semi_kmeans


def _blobs(classes: int, each: int, dim: int = 16, noise: float = 0.15, seed: int = 0):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(classes, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    truth = np.repeat(np.arange(classes), each)
    rows = centres[truth] + noise * draw.normal(size=(len(truth), dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


@pytest.mark.parametrize("old", [0, 1, 3, 6])
def test_new_clusters_are_found_and_labelled_images_stay(old):
    features, truth = _blobs(6, 30)
    labels = np.where((truth < old) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    centres, clusters = semi_kmeans(features, labels, old, 6, seed=0)
    assert centres.shape == (6, 16)
    assert np.allclose(np.linalg.norm(centres, axis=1), 1, atol=1e-5)
    assert (clusters[labels >= 0] == labels[labels >= 0]).all()
    assert clustering_accuracy(truth, clusters) > 0.95
    if old:
        assert (clusters[truth < old] == truth[truth < old]).mean() > 0.9


def test_a_label_holds_even_where_the_image_lies_elsewhere():
    features, _truth = _blobs(3, 20, noise=0.05)
    labels = np.full(60, -1)
    labels[[0, *range(20, 30)]] = 1
    labels[5] = 0
    _, clusters = semi_kmeans(features, labels, 2, 3, seed=1)
    assert clusters[0] == 1


def test_more_clusters_than_unlabelled_images():
    features, _truth = _blobs(2, 3)
    labels = np.array([0, 0, 0, 1, 1, -1])
    centres, clusters = semi_kmeans(features, labels, 2, 5, seed=0)
    assert centres.shape == (5, 16) and np.isfinite(centres).all()
    assert clusters[:5].tolist() == [0, 0, 0, 1, 1]


def test_the_seed_decides():
    features, _ = _blobs(8, 15, noise=0.6)
    labels = np.full(len(features), -1)
    one, again = (semi_kmeans(features, labels, 0, 8, seed=3)[0] for _ in range(2))
    assert np.array_equal(one, again)
