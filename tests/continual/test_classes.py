from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partgcd.config.errors import UserError
from partgcd.continual.champion import load_predictor
from partgcd.continual.classes import (
    find_class,
    first_sizes,
    history,
    list_classes,
    merge,
    note,
    rename,
    split,
    undo,
)
from partgcd.continual.registry import Registry
from partgcd.export.bundle import EXEMPLARS, Bundle, read_tensors

Variant = Callable[..., Path]


def answers(registry: Registry) -> dict[str, np.ndarray]:
    """Probabilities of a few noisy pictures, by class id, as the champion gives them."""
    draw = np.random.default_rng(0)
    pictures = [draw.integers(0, 256, (80, 80, 3), np.uint8) for _ in range(4)]
    found = load_predictor(registry.path, 1).classify(pictures, top_k=99)
    rows = [{choice.id: choice.probability for choice in answer.top} for answer in found]  # type: ignore[union-attr]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def ids(registry: Registry) -> list[str]:
    return [row.id for row in list_classes(registry) if row.status == "active"]


def test_a_name_is_what_the_predictor_says_at_once_and_undo_takes_it_back(registry: Registry) -> None:
    first = ids(registry)[0]
    rename(registry, first, "Wren")
    assert {entry.name for entry in load_predictor(registry.path, 1).classes} >= {"Wren"}
    assert find_class(registry, "Wren").id == first
    note(registry, "Wren", "only seen in spring")
    assert find_class(registry, first).note == "only seen in spring"
    assert undo(registry)["op"] == "note" and undo(registry)["op"] == "rename"
    assert find_class(registry, first).name == "ash" and find_class(registry, first).note == ""
    with pytest.raises(UserError, match="nothing to undo"):
        undo(registry)


def test_a_class_that_another_was_merged_into_had_the_images_of_both(registry: Registry) -> None:
    a, b, c = ids(registry)
    before = first_sizes(registry)
    assert set(before) == {a, b, c} and all(size > 0 for size in before.values())
    merge(registry, c, b)
    assert first_sizes(registry) == {a: before[a], b: before[b] + before[c]}
    undo(registry)
    assert first_sizes(registry) == before


def test_the_older_id_survives_a_merge_and_probabilities_are_summed(registry: Registry) -> None:
    before, (a, b, c) = answers(registry), ids(registry)
    done = merge(registry, c, b)
    assert (done["into"], done["id"]) == (b, c)
    after = answers(registry)
    assert set(after) == {a, b}
    assert after[b] == pytest.approx(before[b] + before[c], abs=1e-6)
    row = find_class(registry, c)
    assert row.status == "merged" and row.merged_into == b
    with pytest.raises(UserError, match="was merged into"):
        rename(registry, c, "x")
    undo(registry)
    assert {name: pytest.approx(value) for name, value in before.items()} == answers(registry)


def test_a_split_class_retires_and_its_children_share_its_images(registry: Registry, bundle: Bundle) -> None:
    before, parent = answers(registry), ids(registry)[0]
    done = split(registry, parent)
    first, second = (child["id"] for child in done["children"])
    after = answers(registry)
    assert after[first] + after[second] == pytest.approx(before[parent], abs=1e-6)
    assert (np.minimum(after[first], after[second]) == 0).all(), "an image goes to one of them"
    assert find_class(registry, parent).status == "split"
    assert find_class(registry, first).parent == parent
    keys = [key for child in done["children"] for key in child["keys"]]
    own = read_tensors(bundle, EXEMPLARS)
    assert sorted(int(key, 16) for key in keys) == sorted(own["keys"][own["classes"] == 0].tolist())
    with pytest.raises(UserError, match="was split into"):
        merge(registry, parent, ids(registry)[0])
    merge(registry, first, second)
    assert answers(registry)[first] == pytest.approx(before[parent], abs=1e-6)
    undo(registry)
    undo(registry)
    assert set(answers(registry)) == set(before)
    again = {child["id"] for child in split(registry, parent)["children"]}
    assert not again & {first, second}, "ids of an undone split are never given again"


def test_halves_of_a_split_are_found_in_another_bundle_by_their_images(
    registry: Registry, variant: Variant
) -> None:
    done = split(registry, ids(registry)[0])
    before = answers(registry)
    registry.add(variant("same-model-other-id"))
    registry.promote("2")
    after = answers(registry)
    for child in done["children"]:
        assert after[child["id"]] == pytest.approx(before[child["id"]], abs=1e-6)


def test_what_a_version_was_trained_with_is_not_undone(registry: Registry, variant: Variant) -> None:
    _, b, c = ids(registry)
    merge(registry, b, c)
    registry.add(variant("trained", {2: "c-0000000001"}))
    registry.promote("2")
    with pytest.raises(UserError, match="trained with this merge"):
        undo(registry)
    registry.rollback()
    assert undo(registry)["op"] == "merge"


def test_a_class_that_the_champion_does_not_know_sleeps(registry: Registry, variant: Variant) -> None:
    gone = ids(registry)[2]
    registry.add(variant("without", {2: "c-0000000002"}))
    registry.promote("2")
    row = find_class(registry, gone)
    assert row.status == "dormant" and row.since == 1
    rename(registry, gone, "a sleeper")
    with pytest.raises(UserError, match="does not know"):
        merge(registry, gone, ids(registry)[0])
    registry.rollback()
    assert find_class(registry, gone).status == "active" and find_class(registry, gone).name == "a sleeper"


def test_history_tells_who_was_what_and_what_was_undone(registry: Registry) -> None:
    a, b, c = ids(registry)
    rename(registry, a, "one")
    merge(registry, b, c)
    undo(registry)
    assert [(event["op"], event["undone"]) for event in history(registry)] == [
        ("rename", False), ("merge", True), ("undo", False),
    ]  # fmt: skip
    assert [event["op"] for event in history(registry, c)] == ["merge", "undo"]
    assert [event["op"] for event in history(registry, "one")] == ["rename"]


def test_names_that_several_have_need_an_id(registry: Registry) -> None:
    a, b, _ = ids(registry)
    rename(registry, a, "twin")
    rename(registry, b, "twin")
    with pytest.raises(UserError, match="2 classes are named 'twin'"):
        find_class(registry, "twin")
    with pytest.raises(UserError, match="no class 'nobody'"):
        find_class(registry, "nobody")
    with pytest.raises(UserError, match="the same class"):
        merge(registry, a, a)
