from __future__ import annotations

import numpy as np
import pytest

from partgcd.continual.growth import SMALLEST, Unknown, coherence, find_growth, unknown_share


def distances(count: int, share: float, seed: int) -> np.ndarray:
    """Remoteness of ``count`` images of which ``share`` are of unknown classes."""
    draw = np.random.default_rng(seed)
    new = np.arange(count) < round(share * count)
    return np.where(new, draw.normal(0.6, 0.1, count), draw.normal(0.3, 0.1, count))


FAMILIAR = np.quantile(distances(20000, 0.0, 9), np.linspace(0, 1, 101))


def parts_of_it(remote: np.ndarray) -> Unknown:
    return unknown_share(remote, np.zeros(len(remote), int), [FAMILIAR, FAMILIAR + 9])


def test_photos_near_loose_classes_are_compared_with_those_of_such_classes() -> None:
    kind = np.arange(400) % 2
    loose = distances(400, 0.0, 3) + np.where(kind == 1, 0.3, 0.0)
    assert not unknown_share(loose, kind, [FAMILIAR, FAMILIAR + 0.3]).significant
    mixed = np.quantile(np.concatenate([FAMILIAR, FAMILIAR + 0.3]), np.linspace(0, 1, 101))
    new, near_tight = distances(400, 0.3, 3), np.zeros(400, int)
    apart, together = (
        unknown_share(new, near_tight, familiar) for familiar in ([FAMILIAR, FAMILIAR + 0.3], [mixed, mixed])
    )
    assert abs(apart.share - 0.3) < 0.08 and together.share < 0.1


@pytest.mark.parametrize("missed", [0.1, 0.3])
def test_classes_missed_before_hide_new_ones_less_where_clean_images_are_held_out(missed: float) -> None:
    dirty = np.quantile(distances(20000, missed, 8), np.linspace(0, 1, 101))
    held = distances(100, 0.0, 7) - 0.03  # remembered images lie a little nearer than unseen ones
    kind, familiar = np.zeros(400, int), [dirty, dirty]
    new, old = distances(400, 0.6, 3), distances(400, 0.0, 4)
    low, both = unknown_share(new, kind, familiar), unknown_share(new, kind, familiar, held)
    assert abs(both.share - 0.6) < abs(low.share - 0.6) and both.share < 0.65
    assert not unknown_share(old, kind, familiar, held).significant
    assert unknown_share(new, kind, familiar, held[:10]) == low, "too few to go by"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_the_share_of_unknown_images_is_told(share: float) -> None:
    found = [parts_of_it(distances(400, share, seed)) for seed in range(20)]
    shares = np.array([one.share for one in found])
    assert abs(shares.mean() - share) < 0.06, "a lower bound, near where the two kinds lie apart"
    assert np.mean([one.significant for one in found]) > 0.9
    assert 0.5 < np.mean([one.error for one in found]) / max(shares.std(), 0.01) < 4


@pytest.mark.parametrize("count", [10, 90, 400])
def test_familiar_images_alone_are_hardly_ever_taken_for_new_ones(count: int) -> None:
    wrong = [parts_of_it(distances(count, 0.0, seed)).significant for seed in range(200)]
    assert np.mean(wrong) <= 0.05


def test_nearer_than_anything_and_farther_than_anything() -> None:
    assert parts_of_it(np.full(30, -1.0)).share == 0
    far = parts_of_it(np.full(30, 3.0))
    assert far.share == 1 and far.significant
    assert not parts_of_it(np.full(1, 3.0)).significant, "one photo proves nothing"


def features(kinds: list[int], each: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = np.eye(12)
    rows = np.concatenate([centres[kind] + 0.08 * draw.normal(size=(each, 12)) for kind in kinds])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_clear_classes_are_counted_and_clustered(classes: int) -> None:
    kinds = [0, 1, *range(2, 2 + classes)]
    rows = np.concatenate([features([0, 1], 10, 1), features(kinds, 15)])
    labels = np.concatenate([np.repeat([0, 1], 10), np.full(15 * len(kinds), -1)])
    truth = np.repeat(kinds, 15)
    share = classes / len(kinds)
    found = find_growth(rows, labels, np.full(2, 15), Unknown(share, 0.05), 100, 0)
    assert found.classes == classes
    clusters = found.clusters[20:]
    for kind in kinds:
        own = clusters[truth == kind]
        assert (own == np.bincount(own).argmax()).mean() > 0.9
    assert set(clusters[truth < 2]) == {0, 1}
    assert (found.clusters[:20] == labels[:20]).all()


@pytest.mark.parametrize("others", [0, 1, 2])
def test_photos_of_a_class_that_is_taught_are_of_no_new_one(others: int) -> None:
    """Class 2 is shown by ten examples; the features, and so the unknown share, know nothing of it."""
    kinds = [0, 1, 2, *range(3, 3 + others)]
    rows = np.concatenate([features([0, 1, 2], 10, 1), features(kinds, 15)])
    labels = np.concatenate([np.repeat([0, 1, 2], 10), np.full(15 * len(kinds), -1)])
    share = Unknown((1 + others) / len(kinds), 0.05)
    found = find_growth(rows, labels, np.full(2, 15), share, 100, 0, taught=1)
    assert found.classes == others
    assert (found.clusters[30:][np.repeat(kinds, 15) == 2] == 2).all()
    assert find_growth(rows, labels, np.full(3, 15), share, 100, 0).classes == others + 1


def test_a_look_alike_is_told_by_its_number_where_a_far_class_of_two_looks_would_hide_it() -> None:
    """Class 2 lies close to class 0; the two looks of class 3 lie farther from each other than 2 from 0."""
    draw = np.random.default_rng(0)

    def rows_of(centre: np.ndarray, count: int) -> np.ndarray:
        found = centre / np.linalg.norm(centre) + 0.05 * draw.normal(size=(count, 12))
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    axes = np.eye(12)
    looks = [axes[0] + 0.25 * axes[5], axes[3] + axes[4], axes[3] - axes[4]]
    new = [(axes[0], 8), (axes[1], 8), (looks[0], 24), (looks[1], 12), (looks[2], 12)]
    rows = np.concatenate([rows_of(axes[0], 20), rows_of(axes[1], 20), *(rows_of(*one) for one in new)])
    labels = np.concatenate([np.repeat([0, 1], 20), np.full(64, -1)])
    truth = np.repeat([0, 1, 2, 3], [8, 8, 24, 24])
    found = find_growth(rows.astype(np.float32), labels, np.full(2, 24), Unknown(0.75, 0.05), 100, 0)
    assert found.classes == 2
    groups = [np.bincount(found.clusters[40:][truth == kind], minlength=4) for kind in range(4)]
    assert groups[0][0] >= 7 and groups[1][1] >= 7
    assert {int(groups[2].argmax()), int(groups[3].argmax())} == {2, 3}
    assert min(groups[2].max(), groups[3].max()) >= 22


def test_few_or_doubtful_images_are_no_class() -> None:
    rows = np.concatenate([features([0, 1], 10, 1), features([2], 3), features([0, 1], 20, 2)])
    labels = np.concatenate([np.repeat([0, 1], 10), np.full(43, -1)])
    few, doubtful = Unknown((SMALLEST - 1) / 43, 0.001), Unknown(0.4, 0.2)
    assert find_growth(rows, labels, np.full(2, 3), few, 100, 0).classes == 0
    assert find_growth(rows, labels, np.full(2, 3), doubtful, 100, 0).classes == 0
    found = find_growth(rows, labels, np.full(2, 3), doubtful, 100, 0, requested=1)
    assert found.classes == 1 and set(found.clusters[20:23]) == {2}


def test_a_class_lies_together_if_its_photos_neighbours_are_in_it_too() -> None:
    rows = features([0, 1, 2], 20)
    truth, photos = np.repeat([0, 1, 2], 20), np.ones(60, bool)
    assert coherence(rows, truth, photos, [0, 1, 2]).min() > 0.95
    draw = np.random.default_rng(0).integers(0, 3, 60)
    assert coherence(rows, draw, photos, range(3)).max() < 0.5
    # Of one kind half are in the class and half in another: so are half of its neighbours.
    halved = np.where((truth == 0) & (np.arange(60) % 2 == 0), 3, truth)
    assert 0.2 < coherence(rows, halved, photos, [3])[0] < 0.8


@pytest.mark.parametrize(("count", "found"), [(0, 0.0), (1, 0.0), (2, 1.0), (5, 1.0)])
def test_a_small_class_is_asked_for_no_more_neighbours_than_it_has(count: int, found: float) -> None:
    rows = features([0, 1], 20)
    rows[:count] = features([2], count) if count else rows[:0]
    classes = np.repeat([0, 1], 20)
    classes[:count] = 2
    assert coherence(rows, classes, np.ones(40, bool), [2]).tolist() == [found]


def test_remembered_images_are_neighbours_and_no_photos() -> None:
    rows = features([0], 20)
    photos = np.arange(20) < 4
    assert coherence(rows, np.where(photos, 1, 0), photos, [1])[0] < 0.6
    assert coherence(rows, np.zeros(20, int), photos, [0])[0] == 1.0
