from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.cluster.class_count import estimate_classes


def blobs(classes: int, each: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit vectors around ``classes`` directions that lie far apart, and the class of each."""
    draw = np.random.default_rng(seed)
    centres, _ = np.linalg.qr(draw.normal(size=(32, 32)))
    points = np.repeat(centres[:classes], each, axis=0) + 0.05 * draw.normal(size=(classes * each, 32))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points.astype(np.float32), np.repeat(np.arange(classes), each)


def some_labels(true: NDArray[np.int64], old: int) -> NDArray[np.int64]:
    return np.where((true < old) & (np.arange(len(true)) % 2 == 0), true, -1)


@pytest.mark.parametrize("classes", [3, 6, 11, 16])
def test_well_separated_groups_are_counted_without_labels(classes: int) -> None:
    points, _ = blobs(classes, 20)
    found = estimate_classes(points, np.full(len(points), -1), 0, 1000, 0)
    assert abs(found.classes - classes) <= 1
    assert "silhouette" in found.by


@pytest.mark.parametrize(("classes", "old"), [(4, 2), (6, 3), (11, 6), (16, 8), (24, 12)])
@pytest.mark.parametrize("seed", [0, 1])
def test_well_separated_groups_are_counted_with_labels(classes: int, old: int, seed: int) -> None:
    points, true = blobs(classes, 20, seed)
    found = estimate_classes(points, some_labels(true, old), old, 1000, 0)
    assert abs(found.classes - classes) <= 1
    assert "labelled accuracy" in found.by


def test_look_alikes_that_share_clusters_are_made_up_for() -> None:
    plain, made_up = [], []
    for seed in range(4):
        draw = np.random.default_rng(seed)
        groups, _ = np.linalg.qr(draw.normal(size=(32, 32)))
        centres = np.repeat(groups[:6], 4, axis=0) + 0.035 * draw.normal(size=(24, 32))
        points = np.repeat(centres, 24, axis=0) + 0.05 * draw.normal(size=(24 * 24, 32))
        points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
        true = np.repeat(draw.permutation(24), 24)
        found = estimate_classes(points, some_labels(true, 12), 12, 1000, seed)
        assert found.missed > 1.05, "few of the hidden classes are found"
        plain.append(np.exp(np.mean([np.log(way[0]) for way in found.ways.values()])) - 24)
        made_up.append(found.classes - 24)
    assert np.abs(made_up).mean() < np.abs(plain).mean() and np.mean(made_up) > np.mean(plain)


def test_one_labelled_class_is_enough_to_count_the_rest() -> None:
    points, true = blobs(5, 20)
    found = estimate_classes(points, some_labels(true, 1), 1, 1000, 0)
    assert abs(found.classes - 5) <= 1


def test_the_estimate_is_a_function_of_its_arguments() -> None:
    points, true = blobs(7, 12)
    labels = some_labels(true, 3)
    first, again = (estimate_classes(points, labels, 3, 1000, 4) for _ in range(2))
    assert first[:3] == again[:3]


def test_scores_are_told_in_order_of_k_with_the_best_among_them() -> None:
    points, true = blobs(6, 12)
    found = estimate_classes(points, some_labels(true, 3), 3, 1000, 0)
    assert list(found.scores) == sorted(found.scores)
    assert found.classes in found.scores and found.seconds > 0
    assert found.scores[found.classes] == max(found.scores.values())


@pytest.mark.parametrize(
    ("images", "old", "largest"), [(8, 0, 1000), (9, 8, 1000), (40, 3, 5), (40, 12, 1000)]
)
def test_no_number_is_tried_that_the_images_could_not_fill(images: int, old: int, largest: int) -> None:
    draw = np.random.default_rng(0)
    points = draw.normal(size=(images, 8)).astype(np.float32)
    labels = np.full(images, -1)
    labels[:old] = np.arange(old)
    found = estimate_classes(points, labels, old, largest, 0)
    assert max(found.scores) <= max(old + 1, min(largest, max(images // 4, 3)))
    assert min(found.scores) >= max(old, 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("old", [0, 2])
def test_images_that_are_all_alike_do_not_break_it(old: int) -> None:
    points = np.tile(np.eye(1, 8, dtype=np.float32), (20, 1))
    labels = np.full(20, -1)
    labels[:old] = np.arange(old)
    assert estimate_classes(points, labels, old, 1000, 0).classes >= 2
