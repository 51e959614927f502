from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from partgcd.export.manifest import ClassEntry
from partgcd.registry.log import fold
from partgcd.registry.overlay import make_overlay

ENTRIES = [
    ClassEntry(index=index, id=f"c-{index}", name=f"name {index}", kind="old", labelled=4, assigned=8)
    for index in range(4)
]
SIDES = np.array([[1, 0], [0, 1]], dtype=np.float32)


def events(*told: dict[str, object]) -> list[dict[str, object]]:
    return [{"seq": number, **event} for number, event in enumerate(told, start=1)]


def split(parent: str, first: str, second: str, keys: tuple[int, int] = (1, 1)) -> dict[str, object]:
    made = zip((first, second), SIDES.tolist(), keys, strict=True)
    children = [{"id": i, "name": i, "prototype": p, "keys": ["0"] * n} for i, p, n in made]
    return {"op": "split", "id": parent, "children": children, "bundle": "b", "version": 1}


def test_a_name_is_all_that_a_rename_changes() -> None:
    overlay = make_overlay(fold(events({"op": "rename", "id": "c-1", "name": "wren"})), ENTRIES, {})
    assert [entry.name for entry in overlay.classes] == ["name 0", "wren", "name 2", "name 3"]
    fused = np.array([[0.1, 0.2, 0.3, 0.4]], np.float32)
    assert (overlay(fused, None) == fused).all() and not overlay.needs_feature


def test_a_merge_sums_and_the_other_is_gone() -> None:
    merged = events({"op": "merge", "id": "c-2", "into": "c-0"}, {"op": "merge", "id": "c-3", "into": "c-2"})
    overlay = make_overlay(fold(merged), ENTRIES, {})
    assert [entry.id for entry in overlay.classes] == ["c-0", "c-1"]
    assert overlay.classes[0].labelled == 12 and overlay.classes[0].assigned == 24
    assert overlay(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), None) == pytest.approx(
        np.array([[0.8, 0.2]])
    )


def test_a_split_gives_all_to_the_nearer_half() -> None:
    overlay = make_overlay(fold(events(split("c-1", "c-a", "c-b", (3, 1)))), ENTRIES, {"c-1": SIDES})
    assert [entry.id for entry in overlay.classes] == ["c-0", "c-a", "c-b", "c-2", "c-3"]
    assert [(entry.labelled, entry.assigned) for entry in overlay.classes[1:3]] == [(3, 6), (1, 2)]
    fused = np.tile(np.array([[0.1, 0.6, 0.2, 0.1]], np.float32), (2, 1))
    found = overlay(fused, np.array([[5, 1], [-1, 3]], np.float32))
    assert found == pytest.approx(np.array([[0.1, 0.6, 0, 0.2, 0.1], [0.1, 0, 0.6, 0.2, 0.1]]))
    with pytest.raises(ValueError, match="class tokens"):
        overlay(fused, None)


def test_what_was_merged_before_a_split_is_split_with_it_and_children_merge() -> None:
    told = events(
        {"op": "merge", "id": "c-3", "into": "c-1"}, split("c-1", "c-a", "c-b"),
        {"op": "merge", "id": "c-b", "into": "c-0"}, split("c-a", "c-x", "c-y"),
    )  # fmt: skip
    overlay = make_overlay(fold(told), ENTRIES, {"c-1": SIDES, "c-a": SIDES[::-1]})
    assert [entry.id for entry in overlay.classes] == ["c-0", "c-x", "c-y", "c-2"]
    fused = np.array([[0.1, 0.2, 0.3, 0.4]] * 2, np.float32)
    found = overlay(fused, SIDES)
    assert found[0] == pytest.approx([0.1, 0, 0.6, 0.3])  # the first half of c-1, its second half
    assert found[1] == pytest.approx([0.7, 0, 0, 0.3])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 50)), max_size=8), st.integers(0, 99)
)
@options(max_examples=60, deadline=None)
def test_nothing_is_lost_and_every_answer_is_active(told: list[tuple[bool, int, int]], seed: int) -> None:
    log: list[dict[str, object]] = []
    for number, (joining, one, other) in enumerate(told):
        state = fold(log)
        active = [n for n in (*(e.id for e in ENTRIES), *state.parents) if state.active(n)]
        first = active[one % len(active)]
        second = active[other % len(active)]
        if not joining:
            log = events(*log, split(first, f"c-s{number}a", f"c-s{number}b"))
        elif first != second:
            log = events(*log, {"op": "merge", "id": first, "into": second})
    state = fold(log)
    overlay = make_overlay(state, ENTRIES, dict.fromkeys(state.splits, SIDES))
    draw = np.random.default_rng(seed)
    fused = draw.dirichlet(np.ones(4), 5).astype(np.float32)
    found = overlay(fused, draw.normal(size=(5, 2)).astype(np.float32))
    assert found.sum(axis=1) == pytest.approx(np.ones(5), abs=1e-5) and (found >= 0).all()
    assert all(state.active(entry.id) for entry in overlay.classes)
    assert sum(entry.labelled for entry in overlay.classes) == pytest.approx(16, abs=len(overlay.classes))
