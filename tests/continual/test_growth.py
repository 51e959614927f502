from __future__ import annotations

import numpy as np
import pytest

from partgcd.continual.growth import SMALLEST, Mixture, find_growth, stability, unknown_share

QUANTILES = np.linspace(0, 1, 101)


def surprises(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Surprise at ``count`` images of which ``share`` are of unknown classes, and which ones are."""
    draw = np.random.default_rng(seed)
    new = np.arange(count) < round(share * count)
    return np.where(new, draw.exponential(0.8, count), draw.exponential(0.25, count)), new


FAMILIAR, LEFT_OUT = (np.quantile(surprises(20000, share, 9)[0], QUANTILES) for share in (0.0, 1.0))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_share_of_unknown_images_is_told_from_many(share: float) -> None:
    found = [unknown_share(surprises(1500, share, seed)[0], FAMILIAR, LEFT_OUT) for seed in range(5)]
    for one in found:
        # The slack for images that only look new takes from the share.
        assert share - 0.2 < one.share < share + 0.1 and one.significant
        assert 0.01 < one.error < 0.1
    posterior, new = found[0].posterior, surprises(1500, share, 0)[1]
    assert posterior[new].mean() > posterior[~new].mean() + 0.02


def test_familiar_images_alone_are_hardly_ever_taken_for_new_ones() -> None:
    wrong = [
        unknown_share(surprises(90, 0.0, seed)[0], FAMILIAR, LEFT_OUT).significant for seed in range(100)
    ]
    assert sum(wrong) <= 3


def features(kinds: list[int], each: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = np.eye(12)
    rows = np.concatenate([centres[kind] + 0.08 * draw.normal(size=(each, 12)) for kind in kinds])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def mixture(share: float, new: np.ndarray) -> Mixture:
    return Mixture(share, 0.05, np.where(new, 0.9, 0.1))


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_clear_classes_are_counted_and_clustered(classes: int) -> None:
    kinds = [0, 1, *range(2, 2 + classes)]
    rows = np.concatenate([features([0, 1], 10, 1), features(kinds, 15)])
    labels = np.concatenate([np.repeat([0, 1], 10), np.full(15 * len(kinds), -1)])
    truth = np.repeat(kinds, 15)
    share = classes / len(kinds)
    found = find_growth(rows, labels, 2, mixture(share, truth >= 2), 15.0, 100, 0)
    assert found.classes == classes
    clusters = found.clusters[20:]
    for kind in kinds:
        own = clusters[truth == kind]
        assert (own == np.bincount(own).argmax()).mean() > 0.9
    assert set(clusters[truth < 2]) == {0, 1}
    assert (found.clusters[:20] == labels[:20]).all()


def test_a_count_far_from_the_usual_size_is_found_by_its_peak() -> None:
    rows = np.concatenate([features([0, 1], 10, 1), features([2, 3, 4], 10)])
    labels = np.concatenate([np.repeat([0, 1], 10), np.full(30, -1)])
    found = find_growth(rows, labels, 2, mixture(1.0, np.ones(30, bool)), 15.0, 100, 0)
    assert round(found.by_size) == 2 and found.by_structure == 3 and found.classes == 3


def test_few_or_doubtful_images_are_no_class() -> None:
    rows = np.concatenate([features([0, 1], 10, 1), features([2], 3), features([0, 1], 20, 2)])
    labels = np.concatenate([np.repeat([0, 1], 10), np.full(43, -1)])
    new = np.arange(43) < SMALLEST - 1
    assert find_growth(rows, labels, 2, Mixture(3 / 43, 0.01, new * 1.0), 3.0, 100, 0).classes == 0
    assert find_growth(rows, labels, 2, Mixture(0.4, 0.2, new * 1.0), 3.0, 100, 0).classes == 0
    found = find_growth(rows, labels, 2, Mixture(0.4, 0.2, new * 1.0), 3.0, 100, 0, asked=1)
    assert found.classes == 1 and set(found.clusters[20:23]) == {2}


def test_groups_that_are_there_are_found_again_and_others_are_not() -> None:
    rows = features([0, 1, 2], 20)
    truth = np.repeat([0, 1, 2], 20)
    assert min(stability(rows, [truth == k for k in range(3)], 0)) > 0.95
    draw = np.random.default_rng(0).integers(0, 3, 60)
    assert max(stability(rows, [draw == k for k in range(3)], 0)) < 0.5
    assert stability(rows, [], 0) == [] and stability(rows, [truth == 0], 0) == [1.0]
