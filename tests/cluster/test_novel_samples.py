"""Images of unknown classes told by number: which ones, how many, and what clusters they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from partgcd.cluster.novel_samples import (
    Expected,
    closeness,
    cluster_novel_samples,
    nearest_class,
    novel_samples,
)


def around(centre: NDArray[np.floating], count: int, seed: int, width: float = 0.05) -> NDArray[np.float32]:
    """``count`` unit vectors about a direction."""
    rows = centre / np.linalg.norm(centre)
    rows = rows + width * np.random.default_rng(seed).normal(size=(count, len(centre)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


AXES = np.eye(12)


def test_strangers_lie_farther_than_the_class_s_own() -> None:
    remembered = around(AXES[0], 20, 1, 0.3)
    both = np.concatenate([around(AXES[0], 10, 2, 0.15), around(AXES[1], 10, 3, 0.15)])
    near = closeness(remembered, both)
    assert near.shape == (20,) and near[:10].min() > near[10:].max()
    np.testing.assert_array_equal(closeness(remembered[:0], both[:3]), np.zeros(3))
    two = closeness(remembered[:2], remembered[:1])
    assert two[0] == pytest.approx((1 + float(remembered[0] @ remembered[1])) / 2)


def test_a_class_with_too_many_images_gives_its_farthest_and_one_with_its_share_gives_none() -> None:
    alike = AXES[0] + 0.4 * AXES[5]
    rows = np.concatenate([
        around(AXES[0], 20, 1), around(AXES[1], 20, 2),
        around(AXES[0], 10, 3), around(alike, 15, 4), around(AXES[1], 10, 5, 0.2),
    ])  # fmt: skip
    labels = np.concatenate([np.repeat([0, 1], 20), np.full(35, -1)])
    nearest = nearest_class(rows, labels, 2)
    assert (nearest[40:65] == 0).all() and (nearest[65:] == 1).all()
    found = novel_samples(rows, labels, nearest, Expected(np.array([30, 30]), 15))
    assert ((found >= 50) & (found < 65)).sum() >= 14, "though the loose images of class 1 lie farther out"
    smaller = novel_samples(rows, labels, nearest, Expected(np.array([60, 30]), 5))
    assert set(smaller) <= set(range(40, 75)) and len(smaller) == 5
    nearest[50:65] = 2  # of no known class: set aside
    assert not set(novel_samples(rows, labels, nearest, Expected(np.array([30, 30]), 15))) & set(
        range(50, 65)
    )


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.integers(0, 60),
    sizes=st.lists(st.integers(0, 50), min_size=3, max_size=3),
    aside=st.integers(0, 10),
    classes=st.integers(3, 8),
    seed=st.integers(0, 5),
)
def test_as_many_are_told_as_are_expected_and_nothing_labelled_moves(
    wanted: int, sizes: list[int], aside: int, classes: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(52, 6)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.concatenate([np.repeat([0, 1, 2], 4), np.full(40, -1)])
    nearest = nearest_class(rows, labels, 3)
    nearest[12 : 12 + aside] = 3
    expected = Expected(np.array(sizes), wanted)
    found = novel_samples(rows, labels, nearest, expected)
    assert len(found) == min(wanted, 40 - aside) and (np.diff(found) > 0).all()
    assert (labels[found] < 0).all() and (nearest[found] < 3).all()
    clusters = cluster_novel_samples(rows, labels, nearest, expected, 4, 4 + classes, seed)
    assert (clusters[:12] == labels[:12]).all() and (clusters[12 : 12 + aside] == 3).all()
    assert (clusters[found] >= 4).all() and (np.delete(clusters, found) < 4).all()
    assert len(set(clusters[found])) == min(classes, len(found))


def test_copies_make_fewer_clusters_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    rows = np.concatenate([around(AXES[0], 5, 1), np.repeat(around(AXES[2], 1, 2), 8, axis=0)])
    labels = np.concatenate([np.zeros(5, np.int64), np.full(8, -1)])
    found = cluster_novel_samples(rows, labels, np.zeros(13, np.int64), Expected(np.array([5]), 8), 1, 4, 0)
    assert (found[5:] >= 1).all() and not recwarn.list


@pytest.mark.parametrize(
    ("wanted", "old", "classes"), [(30, 2, 5), (30, 3, 5), (0, 2, 2), (0, 3, 3), (500, 2, 3)]
)
def test_shares_are_of_the_unlabelled_images(wanted: int, old: int, classes: int) -> None:
    share = Expected(np.array([10, 30]), wanted).shares(100, old, classes)
    assert share.shape == (classes,) and share.sum() == pytest.approx(1.0) and (share > 0).all()
    assert share[1] == pytest.approx(3 * share[0])
    if wanted == 30 and old == 2:
        np.testing.assert_allclose(share, [0.175, 0.525, 0.1, 0.1, 0.1])
    assert (share[2:old] == np.median(share[:2])).all()
