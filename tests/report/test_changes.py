from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partgcd.report.changes import render_changes


def image(row: int, **more: Any) -> dict[str, Any]:
    return {"path": f"photo <{row}>.jpg", "row": row, "confidence": 0.9, **more}


@pytest.fixture
def changes() -> dict[str, Any]:
    return {
        "parent": 3, "classes": {"known": 2, "taught": 1, "new": 1}, "estimate": {"classes": 2}, "passed": False,
        "seconds": 12.5, "moved": 1,
        "photos": {"new": 9, "seen": 1, "copies": 2, "broken": 3, "unfamiliar": 4, "replayed": 5},
        "checks": [{"name": "agreement", "value": 0.2, "limit": 0.05, "passed": False, "text": "20% moved"}],
        "appeared": [{"id": "c-9", "name": "new-01 near <b>ash</b>", "photos": 4, "coherence": 0.8, "steady": True,
                      "images": [image(0), image(1)], "nearest": [{"name": "ash", "cosine": 0.5}],
                      "came_from": [{"name": "ash", "photos": 3}]}],
        "taught": [{"id": "c-8", "name": "oak & elm", "photos": 3, "examples": 6, "images": [image(4)],
                    "came_from": [{"name": "birch", "photos": 2}]}],
        "grew": [{"id": "c-1", "name": "ash", "photos": 5, "images": [image(2)], "times": 1.0,
                  "unlike": 0.3, "mixed": False}], "dropped": ["c-7"],
        "forgotten": [{"id": "c-1", "name": "ash", "before": 1.0, "now": 0.5, "images": 4}],
        "disagreements": [image(3, before="ash", now="birch", now_confidence=0.7)],
    }  # fmt: skip


def test_the_page_tells_what_changed_and_shows_it(changes: dict[str, Any]) -> None:
    asked: list[int] = []

    def pixels(rows: list[int]) -> np.ndarray:
        asked.extend(rows)
        return np.zeros((len(rows), 3, 32, 32), np.uint8)

    page = render_changes(changes, pixels).decode()
    assert asked == [0, 1, 4, 2, 3] and page.count("data:image/jpeg;base64,") == 5
    for words in (
        "1 new class and 1 that was taught in 9 new photos",
        "from version 3",
        "20% moved",
        "c-9",
        "to the version before, 80% of the images nearest to them are in the class too.",
        "c-7",
        "birch",
        "2 were sought",
        "oak &amp; elm <small>c-8</small>",
        "6 examples, 3 new photos.",
        "Before, those were taken for birch (2).",
        "Nearest: ash. Before, they were taken for ash (3)",
    ):
        assert words in page
    assert "<b>ash</b>" not in page and "&lt;b&gt;ash&lt;/b&gt;" in page, "names are text, never markup"
    assert "photo <0>" not in page
    assert "http://" not in page and "https://" not in page and "<script" not in page


def test_nothing_is_said_of_teaching_where_nobody_taught(changes: dict[str, Any]) -> None:
    assert "were taught" in render_changes(changes, None).decode()
    quiet = {**changes, "taught": [], "classes": {**changes["classes"], "taught": 0}}
    page = render_changes(quiet, None).decode()
    assert "taught" not in page and "1 new class in 9 new photos" in page


def test_a_class_that_is_not_found_again_is_marked(changes: dict[str, Any]) -> None:
    mark = "it may not be a class"
    assert mark not in render_changes(changes, None).decode()
    changes["appeared"][0] |= {"coherence": 0.004, "steady": False}
    page = render_changes(changes, None).decode()
    assert "0% of the images nearest to them are in the class too" in page and mark in page


def test_a_class_that_may_hide_another_is_marked(changes: dict[str, Any]) -> None:
    mark = "Another class may hide here"
    assert mark not in render_changes(changes, None).decode()
    changes["grew"][0] |= {"times": 3.16, "unlike": 4.2, "mixed": True}
    page = render_changes(changes, None).decode()
    assert mark in page and "3.2 times as many" in page


def test_without_pixels_there_are_no_pictures(changes: dict[str, Any]) -> None:
    page = render_changes(changes, None).decode()
    assert "data:image" not in page and "new-01" in page
    empty = {
        **changes,
        "appeared": [],
        "grew": [],
        "forgotten": [],
        "disagreements": [],
        "checks": [],
        "passed": True,
    }
    page = render_changes(empty, None).decode()
    assert page.count("None.") == 2 and "Every check passed" in page
