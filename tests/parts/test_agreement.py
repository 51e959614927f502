from __future__ import annotations

import numpy as np
import pytest

from partgcd.parts.agreement import kmeans_parts, mutual_information, shuffled, slot_agreement

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(4, size=3000)
CLASSES = RNG.integers(10, size=3000)


def renamed_in_each_class(slots: np.ndarray) -> np.ndarray:
    orders = np.stack([np.random.default_rng(c).permutation(4) for c in range(10)])
    return orders[CLASSES, slots]


def test_perfect_parts_score_one_whatever_their_names() -> None:
    assert mutual_information((TRUTH + 1) % 4, TRUTH) == pytest.approx(1.0)
    score = slot_agreement((TRUTH + 1) % 4, TRUTH, CLASSES)
    assert (score.raw, score.corrected) == (1.0, 1.0) and score.chance < 0.6


def test_parts_unrelated_to_the_truth_score_next_to_nothing() -> None:
    noise = np.random.default_rng(5).integers(4, size=3000)
    assert mutual_information(noise, TRUTH) < 0.01
    assert abs(slot_agreement(noise, TRUTH, CLASSES).corrected) < 0.25


def test_good_parts_in_unaligned_slots_lose_the_agreement_but_not_within_a_class() -> None:
    slots = renamed_in_each_class(TRUTH)
    score = slot_agreement(slots, TRUTH, CLASSES)
    assert abs(score.corrected) < 0.2 and score.raw < 0.7
    one = CLASSES == 3
    assert mutual_information(slots[one], TRUTH[one]) == pytest.approx(1.0)


def test_agreement_counts_patches() -> None:
    # slot 0: part 0 in class 0 (6 patches) and in class 1 (2)
    # slot 1: part 1 in class 0 (1 patch), part 2 in class 1 (3): each disagrees with the other class
    slots = np.repeat([0, 1, 0, 1], [6, 1, 2, 3])
    truth = np.repeat([0, 1, 0, 2], [6, 1, 2, 3])
    classes = np.repeat([0, 0, 1, 1], [6, 1, 2, 3])
    assert slot_agreement(slots, truth, classes).raw == pytest.approx(8 / 12)


def test_unknown_truth_is_left_out() -> None:
    truth = TRUTH.copy()
    truth[::2] = -1
    wrong = TRUTH.copy()
    wrong[::2] = 0
    assert mutual_information(wrong, truth) == pytest.approx(1.0)
    assert slot_agreement(wrong, truth, CLASSES).raw == 1.0
    assert np.isnan(mutual_information(TRUTH, np.full(3000, -1)))
    with pytest.raises(ValueError, match="known part"):
        slot_agreement(TRUTH, np.full(3000, -1), CLASSES)


def test_one_class_says_nothing_about_agreement_across_classes() -> None:
    score = slot_agreement(TRUTH, TRUTH, np.zeros(3000, dtype=int))
    assert (score.raw, score.chance, score.corrected) == (1.0, 1.0, 0.0)


def test_shuffled_maps_keep_their_masses_and_lose_their_places() -> None:
    maps = RNG.random((5, 49, 3))
    mixed = shuffled(maps, 1)
    assert np.array_equal(mixed, shuffled(maps, 1)) and not np.array_equal(mixed, shuffled(maps, 2))
    for before, after in zip(maps, mixed, strict=True):
        assert not np.array_equal(before, after)
        # whole patches move: the rows are the same rows
        assert np.array_equal(before[np.argsort(before[:, 0])], after[np.argsort(after[:, 0])])


def test_kmeans_parts_agree_across_classes_only_when_aligned() -> None:
    patches = np.eye(4, 6)[TRUTH] * 8 + RNG.normal(size=(3000, 6))
    plain, aligned = (kmeans_parts(patches, CLASSES, 4, seed=0, aligned=a) for a in (False, True))
    one = CLASSES == 2
    assert mutual_information(plain[one], TRUTH[one]) > 0.95
    assert slot_agreement(aligned, TRUTH, CLASSES).corrected == pytest.approx(1.0)
    assert slot_agreement(plain, TRUTH, CLASSES).corrected < 0.5


def test_a_class_with_fewer_patches_than_parts_gets_fewer_clusters() -> None:
    slots = kmeans_parts(RNG.normal(size=(23, 2)), np.repeat([0, 1], [20, 3]), 5, seed=0, aligned=True)
    assert len(set(slots[20:].tolist())) == 3 and slots.max() < 5


def test_slots_that_only_follow_the_largest_part_do_not_agree() -> None:
    draw = np.random.default_rng(1)
    truth = draw.choice(3, size=6000, p=[0.8, 0.1, 0.1])
    classes = draw.integers(10, size=6000)
    assert abs(slot_agreement(draw.integers(4, size=6000), truth, classes).corrected) < 0.3
    assert slot_agreement(truth, truth, classes).corrected == pytest.approx(1.0)
