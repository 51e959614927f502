from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partgcd.config.errors import UserError
from partgcd.export.bundle import EXEMPLARS, Bundle, read_tensors
from partgcd.registry.edits import history, merge, note, rename, settle_names, split, undo
from partgcd.registry.log import append
from partgcd.registry.naming import InvalidName, NameTaken, find_class, ids_by_word
from partgcd.registry.roster import first_sizes, list_classes
from partgcd.registry.serve import load_predictor
from partgcd.registry.versions import Registry

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
    for each in (a, b):  # as an older program let it be
        append(registry.log, "rename", id=each, name="twin", before="")
    words: list[Callable[[], object]] = [
        lambda: find_class(registry, "twin"), lambda: find_class(registry, "Twin"),
        lambda: note(registry, "twin", "x"),
        lambda: rename(registry, "twin", "x"), lambda: merge(registry, "twin", a), lambda: split(registry, "twin"),
        lambda: history(registry, "twin"), lambda: ids_by_word(registry)["twin"],
        lambda: "twin" in ids_by_word(registry),
    ]  # fmt: skip
    for each in words:
        with pytest.raises(UserError, match=rf"2 classes are named .*'[tT]win'.*{a}, {b}") as caught:
            each()
        assert caught.value.code == 2
    with pytest.raises(UserError, match="no class 'nobody'"):
        find_class(registry, "nobody")
    with pytest.raises(UserError, match="the same class"):
        merge(registry, a, a)
    rename(registry, a, "one of them")
    assert find_class(registry, "twin").id == b == ids_by_word(registry)["TWIN"]


@pytest.mark.parametrize(
    "name",
    ["birch", "Birch", " BIRCH ", "bir ch", "b-i_rc\u2010h", "\uff42irch", "birch\ufe0f",
     "new-01 near ash", "New 01_near-ASH"],
)  # fmt: skip
def test_no_class_gets_a_name_that_another_has(registry: Registry, name: str) -> None:
    first = ids(registry)[0]
    append(registry.log, "rename", id=ids(registry)[2], name="new-01 near ash", before="")
    before = registry.log.read_bytes()
    with pytest.raises(NameTaken, match="choose another name"):
        rename(registry, first, name)
    assert registry.log.read_bytes() == before


def test_no_class_gets_a_name_that_is_an_id_or_nothing(registry: Registry) -> None:
    a, b, _ = ids(registry)
    for name in (
        b,
        b.upper(),
        b.replace("-", "_"),
        "c-0123456789",
        "C 0123456789",
        "",
        "\u3164",
        "_ _",
        "a\x1b[31m",
        "x" * 201,
    ):
        with pytest.raises((InvalidName, NameTaken)):
            rename(registry, a, name)
    rename(registry, a, "ASH")
    assert rename(registry, a, "ash tree")["before"] == "ASH", "its own name in another spelling is free"


def test_a_dormant_class_keeps_its_name_and_a_retired_one_leaves_it(
    registry: Registry, variant: Variant
) -> None:
    a, b, c = ids(registry)
    registry.add(variant("without", {2: "c-0000000002"}))
    registry.promote("2")
    with pytest.raises(NameTaken, match=c):
        rename(registry, a, next(row.name for row in list_classes(registry) if row.id == c))
    merge(registry, a, b)
    assert find_class(registry, "birch").status == "merged" and ids_by_word(registry)["birch"] == a
    rename(registry, "c-0000000002", "Birch")
    assert find_class(registry, "birch").id == "c-0000000002" == ids_by_word(registry)["birch"]


def test_children_of_a_split_get_names_that_nobody_has(registry: Registry) -> None:
    a, b, _ = ids(registry)
    rename(registry, b, "Ash a")
    done = split(registry, a)
    assert [child["name"] for child in done["children"]] == ["ash A 2", "ash B"]
    with pytest.raises(UserError, match="was split into"):
        ids_by_word(registry)["ash"]


def test_names_that_come_with_a_bundle_are_made_to_differ(registry: Registry, variant: Variant) -> None:
    _, b, c = ids(registry)
    third = find_class(registry, c).name
    version = registry.add(variant("other", {1: "c-0000000001", 2: "c-0000000002"}))
    told = settle_names(registry, version)
    assert len(told) == 2 and b in told[0] and "c-0000000001 is called 'birch 2'" in told[0]
    assert find_class(registry, "birch").id == b and find_class(registry, third).id == c
    assert find_class(registry, "birch 2").id == "c-0000000001"
    assert settle_names(registry, version) == [], "once is enough"
    with pytest.raises(UserError, match="nothing to undo"):
        undo(registry)
    rename(registry, b, "silver birch")
    assert undo(registry)["op"] == "rename"


def test_a_rename_waits_no_longer_than_it_is_told(registry: Registry) -> None:
    with registry.changing("holding on"), pytest.raises(UserError, match="holding on") as caught:
        rename(registry, ids(registry)[0], "x", wait=0.0)
    assert caught.value.code == 75
