from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from partgcd.cluster.metrics import cluster_of_class, clustering_accuracy, match, purity, split_accuracy

Ints = NDArray[np.int64]


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def brute_force(truth: Ints, predicted: Ints) -> float:
    """The best accuracy over every one-to-one map from predicted to true classes."""
    true_names, names = sorted(set(truth.tolist())), sorted(set(predicted.tolist()))
    targets = [*true_names, *[-1000 - n for n in range(len(names))]]
    best = 0.0
    for choice in itertools.permutations(targets, len(names)):
        mapped = dict(zip(names, choice, strict=True))
        best = max(
            best,
            float(np.mean([mapped[p] == t for p, t in zip(predicted.tolist(), truth.tolist(), strict=True)])),
        )
    return best


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 1)), min_size=1, max_size=20)


@given(pairs)
@settings(max_examples=40, deadline=None)
def test_the_match_is_as_good_as_any_permutation(found: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array(side, dtype=np.int64) for side in zip(*found, strict=True))
    mapped = match(truth, predicted)
    assert len(set(mapped.values())) == len(mapped)
    right = [mapped.get(p) == t for p, t in zip(predicted.tolist(), truth.tolist(), strict=True)]
    assert np.mean(right) == pytest.approx(brute_force(truth, predicted))
    assert clustering_accuracy(truth, predicted) == pytest.approx(brute_force(truth, predicted))


@given(pairs, st.permutations(range(4)))
@settings(max_examples=40, deadline=None)
def test_accuracy_does_not_depend_on_the_names_of_clusters(
    found: list[tuple[int, int]], names: list[int]
) -> None:
    truth, predicted = (np.array(side, dtype=np.int64) for side in zip(*found, strict=True))
    renamed = np.array([names[p + 2] * 10 for p in predicted.tolist()])
    assert clustering_accuracy(truth, renamed) == pytest.approx(clustering_accuracy(truth, predicted))


@pytest.mark.parametrize(
    ("truth", "predicted", "expected"),
    [
        (ints(0, 0, 1, 1), ints(5, 5, 3, 3), {5: 0, 3: 1}),
        (ints(0, 0, 0, 1), ints(0, 0, 1, 2), {0: 0, 2: 1}),  # more predicted than true
        (ints(0, 1, 1, 1), ints(7, 7, 7, 7), {7: 1}),  # fewer predicted than true
        (ints(), ints(), {}),
    ],
)
def test_match_maps_predicted_to_true_classes(truth: Ints, predicted: Ints, expected: dict[int, int]) -> None:
    assert match(truth, predicted) == expected


def test_one_match_over_all_and_a_match_for_each_group_differ() -> None:
    # True class 0 is old, 1 new. The model calls all of both class 0.
    truth, predicted = ints(0, 0, 0, 1, 1), ints(0, 0, 0, 0, 0)
    found = split_accuracy(truth, predicted, truth == 0)
    assert found["v2"] == {"all": pytest.approx(3 / 5), "old": 1.0, "new": 0.0}
    assert found["v1"] == {"all": 1.0, "old": 1.0, "new": 1.0}
    assert found["plain"] == 1.0
    assert found["nmi"] == 0.0 and found["ari"] == 0.0


def test_groups_are_counted_under_the_common_match() -> None:
    truth = ints(0, 0, 0, 1, 1, 1, 2, 2, 2, 2)
    predicted = ints(1, 1, 0, 0, 0, 0, 2, 2, 1, 2)
    found = split_accuracy(truth, predicted, truth < 2)
    # The match is 1 -> 0, 0 -> 1, 2 -> 2.
    assert found["v2"] == {
        "all": pytest.approx(8 / 10),
        "old": pytest.approx(5 / 6),
        "new": pytest.approx(3 / 4),
    }
    assert found["plain"] == pytest.approx(1 / 6)


def test_a_perfect_answer_scores_one_everywhere() -> None:
    truth = ints(0, 0, 1, 1, 2, 2)
    found = split_accuracy(truth, ints(0, 0, 1, 1, 9, 9), truth < 2)
    assert found["v2"] == found["v1"] == {"all": 1.0, "old": 1.0, "new": 1.0}
    assert found["plain"] == 1.0
    assert found["nmi"] == pytest.approx(1.0) and found["ari"] == pytest.approx(1.0)


@given(pairs)
@settings(max_examples=40, deadline=None)
def test_all_is_the_weighted_mean_of_old_and_new(found: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array(side, dtype=np.int64) for side in zip(*found, strict=True))
    old = truth < 2
    scores = split_accuracy(truth, predicted, old)
    for kind in (scores["v1"], scores["v2"]):
        parts = (kind["old"] or 0.0) * old.sum() + (kind["new"] or 0.0) * (~old).sum()
        assert kind["all"] == pytest.approx(parts / len(truth))
    assert scores["v1"]["all"] is not None and scores["v2"]["all"] is not None
    assert scores["v1"]["all"] >= scores["v2"]["all"] - 1e-12


def test_a_group_without_images_has_no_accuracy() -> None:
    truth = ints(0, 1, 1)
    only_new = split_accuracy(truth, truth, np.zeros(3, dtype=np.bool_))
    assert only_new["v2"] == {"all": 1.0, "old": None, "new": 1.0}
    assert only_new["plain"] is None
    only_old = split_accuracy(truth, truth, np.ones(3, dtype=np.bool_))
    assert only_old["v1"] == {"all": 1.0, "old": 1.0, "new": None}


def test_no_images_have_no_scores() -> None:
    nothing = split_accuracy(ints(), ints(), np.zeros(0, dtype=np.bool_))
    assert nothing["v2"]["all"] is None and nothing["nmi"] is None and nothing["ari"] is None
    with pytest.raises(ValueError, match="no images"):
        clustering_accuracy(ints(), ints())


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        match(ints(0, 1), ints(0))
    with pytest.raises(ValueError, match="must be equal"):
        split_accuracy(ints(0, 1), ints(0, 1), np.zeros(3, dtype=np.bool_))


def test_purity_counts_the_candidates_of_new_classes_only() -> None:
    truth = ints(0, 0, 5, 5, 6, 6, 6)
    rows, classes = ints(0, 1, 2, 3, 4, 4, 5, 6), ints(0, 0, 2, 2, 2, 1, 1, 1)
    new = np.array([False, True, True])
    assert purity(rows, classes, truth, new) == pytest.approx(5 / 6)


def test_purity_gives_each_true_class_to_one_new_class() -> None:
    # Both new classes hold one true class: only one of them can be right.
    truth = ints(5, 5, 5, 5)
    assert purity(ints(0, 1, 2, 3), ints(0, 0, 0, 1), truth, np.array([True, True])) == pytest.approx(3 / 4)


def test_purity_without_new_candidates_is_none() -> None:
    assert purity(ints(0, 1), ints(0, 0), ints(0, 0), np.array([False, True])) is None


def test_labelled_classes_get_the_clusters_their_images_are_in_and_others_what_is_left() -> None:
    labels = np.array([0, 0, 1, 1, -1, -1, -1])
    clusters = np.array([2, 2, 0, 0, 1, 3, 3])
    assert cluster_of_class(labels, clusters, 2, 4).tolist() == [2, 0, 1, 3]
    assert cluster_of_class(np.full(3, -1), np.array([0, 1, 2]), 0, 3).tolist() == [0, 1, 2]
