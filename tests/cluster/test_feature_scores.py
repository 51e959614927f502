from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.cluster.feature_scores import hidden_class_accuracy, neighbour_structure


def clumps(
    classes: int, each: int, spread: float, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit-norm features [N, 16] in clumps of a class each, and the classes [N]."""
    draw = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), each)
    rows = draw.normal(size=(classes, 16))[truth] + spread * draw.normal(size=(len(truth), 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


@pytest.mark.parametrize("classes", [4, 7, 20])
def test_clear_classes_score_high_by_both_and_blurred_ones_low(classes: int) -> None:
    hidden, shared = [], []
    for spread in (0.05, 0.8, 3.0):
        features, truth = clumps(classes, 20, spread)
        labels = np.where(np.random.default_rng(1).random(len(truth)) < 0.7, truth, -1)
        found = hidden_class_accuracy(features, labels, 0)
        assert found is not None
        hidden.append(found)
        shared.append(neighbour_structure(features, 0))
    assert hidden[0] > 0.85 and hidden == sorted(hidden, reverse=True)
    assert min(shared[:2]) > shared[2] + 0.05 and abs(shared[2]) < 0.06, shared


@pytest.mark.parametrize(("images", "dimensions"), [(80, 4), (200, 16), (300, 256)])
def test_noise_has_no_structure_however_many_dimensions_it_has(images: int, dimensions: int) -> None:
    """Mutual neighbours alone would call few dimensions structured: half of these are mutual in 4 dimensions."""
    noise = np.random.default_rng(0).normal(size=(images, dimensions)) * np.geomspace(1, 0.1, dimensions)
    unit = (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)
    assert abs(neighbour_structure(unit, 0)) < 0.06


def test_what_is_unlabelled_decides_nothing() -> None:
    features, truth = clumps(6, 12, 0.5)
    labels = np.where(np.arange(len(truth)) % 2 == 0, truth, -1)
    other = features.copy()
    other[labels < 0] = other[labels < 0][::-1]
    assert hidden_class_accuracy(features, labels, 3) == hidden_class_accuracy(other, labels, 3)


@pytest.mark.parametrize("classes", [0, 1, 3])
def test_too_few_labelled_classes_say_nothing(classes: int) -> None:
    features, truth = clumps(8, 6, 0.1)
    assert hidden_class_accuracy(features, np.where(truth < classes, truth, -1), 0) is None


def test_classes_of_one_image_and_a_handful_of_images_are_no_trouble() -> None:
    features, _ = clumps(5, 1, 0.1)
    assert 0 <= (hidden_class_accuracy(features, np.arange(5), 0) or 0) <= 1
    assert neighbour_structure(features[:3], 0) + 1 >= 0
