from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.discovery.class_records import ClassRecord, describe_classes, mint_id
from partgcd.run.folder import new_run_id

NAMES = st.lists(
    st.text(min_size=1, max_size=8) | st.sampled_from(["group-01", "new-01 near a", "group-01 (discovered)"]),
    unique=True, max_size=5,
).map(sorted)  # fmt: skip


def described(
    names: list[str], classes: int, predicted: list[int], labels: list[int] | None = None, run: str = "r"
) -> list[ClassRecord]:
    draw = np.random.default_rng(0)
    prototypes = draw.normal(size=(classes, 6)).astype(np.float32)
    told = np.array(labels if labels is not None else [-1] * len(predicted), dtype=np.int64)
    return describe_classes(run, names, prototypes, told, np.array(predicted, dtype=np.int64))


@given(
    names=NAMES,
    extra=st.integers(0, 6),
    data=st.data(),
    runs=st.lists(st.text(max_size=20), min_size=2, max_size=2, unique=True),
)
def test_ids_and_names_tell_classes_apart(
    names: list[str], extra: int, data: st.DataObject, runs: list[str]
) -> None:
    total = max(len(names) + extra, 2)
    predicted = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20))
    labels = data.draw(
        st.lists(st.integers(-1, len(names) - 1), min_size=len(predicted), max_size=len(predicted))
    )
    first, again, other = (
        described(names, total, predicted, labels, run) for run in (*runs[:1] * 2, runs[1])
    )
    assert first == again
    assert len({record.id for record in first}) == total
    assert len({record.name for record in first}) == total
    assert not {record.id for record in first} & {record.id for record in other}
    assert [record.index for record in first] == list(range(total))
    assert [record.name for record in first[: len(names)]] == names
    assert sum(record.labelled + record.assigned for record in first) == len(predicted)
    json.dumps([record.as_json() for record in first])


def test_ids_are_short_and_the_same_whenever_they_are_asked_for() -> None:
    assert mint_id("20260101-000000-abcdef", 3) == mint_id("20260101-000000-abcdef", 3)
    assert mint_id("r", 0).startswith("c-") and len(mint_id("r", 0)) == 12
    # A slash between run and index keeps run "a1" class 2 apart from run "a" class 12.
    assert mint_id("a1", 2) != mint_id("a", 12)
    assert len({mint_id(run, index) for run in (new_run_id(), new_run_id()) for index in range(500)}) == 1000


def test_discovered_classes_are_numbered_by_size() -> None:
    records = described(["owl"], 4, [2] * 5 + [3] * 2 + [1] * 3 + [0])
    assert [record.kind for record in records] == ["old"] + ["discovered"] * 3
    assert [record.name for record in records] == [
        "owl", "new-02 near owl", "new-01 near owl", "new-03 near owl",
    ]  # fmt: skip
    assert [record.assigned for record in records] == [1, 3, 5, 2]


def test_labelled_images_count_for_their_label_whatever_was_predicted() -> None:
    records = described(["a", "b"], 3, [2, 2, 1, 2], [0, 1, -1, -1])
    assert [(record.labelled, record.assigned) for record in records] == [(1, 0), (1, 1), (0, 1)]


def test_without_labels_classes_have_numbers_and_no_neighbours() -> None:
    records = described([], 3, [0, 2, 2])
    assert [record.name for record in records] == ["group-02", "group-03", "group-01"]
    assert all(record.nearest == () for record in records)


def test_numbers_are_as_wide_as_the_largest_so_that_they_sort() -> None:
    names = [record.name for record in described([], 120, [0])]
    assert "group-001" in names and "group-120" in names


def test_a_label_that_looks_like_a_provisional_name_stays_unique() -> None:
    records = described(["new-01 near new-01"], 2, [1])
    assert records[1].name == "new-01 near new-01 near new-01"
    records = describe_classes(
        "r", ["a", "new-01 near a"], np.array([[1, 0], [0, 1], [1, 0.1]], np.float32),
        np.array([-1]), np.array([2]),
    )  # fmt: skip
    assert records[2].name == "new-01 near a (discovered)"


def test_neighbours_are_the_nearest_old_classes_by_cosine() -> None:
    angles = np.deg2rad([0, 90, 40, 180, 10])  # four old classes and a new one at 10 degrees
    prototypes = (np.stack([np.cos(angles), np.sin(angles)], 1) * [[1], [9], [2], [1], [5]]).astype(
        np.float32
    )
    records = describe_classes("r", list("abcd"), prototypes, np.array([-1]), np.array([4]))
    new = records[4]
    assert [near.name for near in new.nearest] == ["a", "c", "b"]
    assert [near.cosine for near in new.nearest] == pytest.approx(np.cos(np.deg2rad([10, 30, 80])), abs=1e-4)
    assert [near.id for near in new.nearest] == [records[i].id for i in (0, 2, 1)]
    assert new.name == "new-01 near a"
    assert "a" not in [near.name for near in records[0].nearest]


def test_a_prototype_of_length_zero_is_no_trouble() -> None:
    records = describe_classes("r", ["a"], np.zeros((2, 3), np.float32), np.array([-1]), np.array([1]))
    assert records[1].nearest[0].cosine == 0.0
