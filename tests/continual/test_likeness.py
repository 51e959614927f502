from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.continual.likeness import UNLIKE, surges, unlikeness


def around(centre: int, count: int, seed: int, width: float = 0.3, dim: int = 16) -> NDArray[np.float32]:
    """``count`` unit vectors about one axis."""
    rows = width * np.random.default_rng(seed).normal(size=(count, dim))
    rows[:, centre] += 1.0
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("count", [8, 20, 60])
def test_photos_of_the_same_kind_are_alike_and_of_another_are_not(count: int) -> None:
    remembered = around(0, 20, 1)
    same = [unlikeness(remembered, around(0, count, seed), seed) for seed in range(2, 22)]
    assert abs(np.mean(same)) < 0.6 and np.mean(np.array(same) >= UNLIKE) <= 0.1
    assert unlikeness(remembered, around(1, count, 2), 0) > UNLIKE


def test_a_look_alike_beside_the_class_is_seen_though_its_photos_lie_as_near() -> None:
    remembered = around(0, 20, 1)
    aside = around(0, 30, 2) + 0.35 * around(1, 30, 3, 0.0)
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    own = around(0, 30, 4)

    def nearest(rows: NDArray[np.float32]) -> float:
        return float((rows @ remembered.T).max(axis=1).mean())

    assert nearest(aside) > nearest(own) - 0.05
    assert unlikeness(remembered, aside, 0) > UNLIKE


@pytest.mark.parametrize(("remembered", "new"), [(0, 20), (20, 0), (3, 20), (20, 3)])
def test_too_few_images_say_nothing(remembered: int, new: int) -> None:
    assert unlikeness(around(0, remembered, 1), around(1, new, 2), 0) == 0.0


def test_thousands_of_photos_are_sampled_and_the_answer_is_repeated() -> None:
    remembered, new = around(0, 20, 1), around(1, 5000, 2)
    first = unlikeness(remembered, new, 3)
    assert first > UNLIKE and unlikeness(remembered, new, 3) == first


def test_surges_are_by_size_and_classes_without_photos_do_not_count() -> None:
    found = surges(np.array([10, 20, 60, 0]), np.array([100, 200, 200, 50]))
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 0.0])
    np.testing.assert_array_equal(surges(np.zeros(3, np.int64), np.ones(3, np.int64)), np.zeros(3))
