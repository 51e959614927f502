from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partgcd.continual.gate import Margins, Measured, calibration_error, judge


def sure(answers: list[int], classes: int = 4, confidence: float = 0.97) -> np.ndarray:
    rows = np.full((len(answers), classes), (1 - confidence) / (classes - 1), np.float32)
    rows[np.arange(len(answers)), answers] = confidence
    return rows


def measured(held: list[int], after: list[int], seen: list[int], now: list[int], **more: object) -> Measured:
    """Two known classes and two new ones; the champion was right about all held-out images."""
    found = Measured(
        (sure(held), sure(after), np.array(held)), (sure(seen), sure(now)), np.zeros(len(seen), bool),
        np.ones(len(seen), bool), [0.9, 0.8], ["ash", "birch", "new-1", "new-2"], 2,
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def failed(found: Measured, margins: Margins | None = None) -> set[str]:
    return {check.name for check in judge(found, margins or Margins()) if not check.passed}


def test_a_candidate_that_keeps_everything_passes() -> None:
    found = measured([0, 1] * 60, [0, 1] * 60, [0, 1] * 30, [0, 1] * 30)
    assert failed(found) == set()
    assert {check.name for check in judge(found, Margins())} == {
        "old classes", "calibration", "agreement", "new class",
    }  # fmt: skip


def test_forgetting_fails_and_one_image_of_few_does_not() -> None:
    assert failed(measured([0, 1] * 60, [0, 1] * 50 + [1, 0] * 10, [0], [0])) >= {"old classes"}
    assert "old classes" not in failed(measured([0, 1] * 5, [0, 1] * 4 + [0, 0], [0], [0]))
    assert "old classes" in failed(measured([0, 1] * 5, [0, 1] * 4 + [1, 0], [0], [0]))


def test_sure_images_that_move_fail_unless_the_champion_found_them_strange() -> None:
    found = measured([0] * 10, [0] * 10, [0] * 40, [0] * 30 + [2] * 10)
    assert failed(found) == {"agreement"}
    assert failed(replace(found, novel=np.arange(40) >= 30)) == set()
    assert failed(replace(found, near=np.arange(40) < 30)) == set(), "they lie far from what is remembered"
    assert failed(found, Margins(disagreement=0.3)) == set()


def test_that_photos_move_to_a_class_that_was_taught_is_what_a_person_wants() -> None:
    found = measured([0] * 10, [0] * 10, [0] * 40, [0] * 30 + [2] * 10)
    taught = replace(found, old=3, taught=1, coherence=[0.8])
    assert failed(found) == {"agreement"} and failed(taught) == set()
    assert [check.name for check in judge(taught, Margins())].count("new class") == 1
    assert failed(replace(taught, seen=(found.seen[0], sure([0] * 30 + [3] * 10)))) == {"agreement"}


def test_remembered_images_do_not_hide_photos_that_moved() -> None:
    moved = measured([0, 1] * 400, [0, 1] * 400, [0] * 40, [0] * 30 + [2] * 10)
    assert failed(moved) == {"agreement"}


def test_a_class_whose_images_go_elsewhere_lost_its_meaning() -> None:
    found = measured([0] * 40, [0] * 40, [1] * 5 + [0] * 200, [0] * 5 + [0] * 200)
    assert failed(found) == {"meaning"}


def test_overconfidence_fails() -> None:
    truth = [0, 1] * 60
    shaky = sure(truth, confidence=0.6)
    found = measured(truth, truth, [0], [0])
    assert failed(replace(found, remembered=(sure(truth), shaky, np.array(truth)))) == {"calibration"}


def test_a_new_class_whose_photos_are_not_alike_fails_by_name() -> None:
    found = measured([0], [0], [0], [0], coherence=[0.9, 0.3])
    told = [check for check in judge(found, Margins()) if not check.passed]
    assert [check.name for check in told] == ["new class"] and "'new-2'" in told[0].text


def test_nothing_held_out_and_nothing_sure_leaves_the_new_classes() -> None:
    none = np.zeros((0, 4), np.float32)
    found = replace(
        measured([0], [0], [0], [0]),
        remembered=(none, none, np.zeros(0, int)),
        seen=(sure([0], confidence=0.5), sure([0])),
    )
    assert [check.name for check in judge(found, Margins())] == ["new class", "new class"]


@pytest.mark.parametrize(
    ("confidence", "right", "error"), [(0.9, 0.9, 0.0), (0.9, 0.5, 0.4), (1.0, 1.0, 0.0)]
)
def test_calibration_error_is_the_gap_between_sure_and_right(
    confidence: float, right: float, error: float
) -> None:
    truth = np.array([0] * int(100 * right) + [1] * (100 - int(100 * right)))
    assert calibration_error(sure([0] * 100, 3, confidence), truth) == pytest.approx(error, abs=1e-5)
