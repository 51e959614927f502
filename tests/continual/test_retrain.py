from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.continual.champion import Memory
from partgcd.continual.retained import Retained
from partgcd.continual.retrain import EPOCHS, Parted, epochs_for, part_memory, provisional_name
from partgcd.export.manifest import ClassEntry


def parted(held: NDArray[np.bool_], classes: int = 2, each: int = 10) -> Parted:
    """A memory of ``each`` images a class, the last third of which no person labelled."""
    count = classes * each
    members = np.repeat(np.arange(classes), each)
    memory = Memory(
        np.arange(count, dtype=np.uint64), members, np.arange(count) % each < each * 2 // 3,
        np.zeros((count, 1, 1), np.float16), held, np.arange(count, dtype=np.uint64),
    )  # fmt: skip
    entries = [ClassEntry.model_construct(index=index, id=f"c-{index}") for index in range(classes)]
    return part_memory(memory, Retained(entries, members, list(range(classes)), []))


def test_one_in_five_is_held_out_for_ever() -> None:
    first = parted(np.zeros(20, bool))
    assert np.bincount(first.held_classes).tolist() == [2, 2]
    assert first.held.labelled.all()
    assert not set(first.held.keys.tolist()) & set(first.replayed.keys.tolist())
    again = parted(np.isin(np.arange(20), first.held.keys))
    assert again.held.keys.tolist() == first.held.keys.tolist()


@pytest.mark.parametrize("held_before", [[], [3], [3, 14]])
def test_champion_and_candidate_are_compared_on_what_neither_or_both_trained_on(
    held_before: list[int],
) -> None:
    before = np.isin(np.arange(20), held_before)
    found = parted(before)
    for index in range(2):
        scored = set(found.scored.keys[found.scored_classes == index].tolist())
        unknown = {key for key in held_before if key // 10 == index}
        both_know = set(found.replayed.keys[found.replayed_classes == index].tolist())
        assert scored == (unknown or both_know)


@pytest.mark.parametrize(
    ("images", "epochs"), [(5000, EPOCHS), (800, EPOCHS), (400, 13), (250, 20), (40, 20), (3, 20), (0, 20)]
)
def test_few_images_are_gone_through_more_often(images: int, epochs: int) -> None:
    assert epochs_for(images, 32) == epochs


@pytest.mark.parametrize(
    ("nearest", "name"),
    [
        (["ash", "birch"], "new-07 near ash"),
        (["new-02 near ash", "new-05", "birch", "ash"], "new-07 near birch"),
        (["group-01", "new-02 near ash (discovered)"], "new-07"),
        (["new-forest pony"], "new-07 near new-forest pony"),
        ([], "new-07"),
    ],
)
def test_a_provisional_name_tells_of_a_class_that_has_a_name(nearest: list[str], name: str) -> None:
    assert provisional_name(7, nearest) == name
