from __future__ import annotations

import pytest

pytest.importorskip("ray")

from partgcd.training.board import INTERRUPTED, Board, Verdict, whole_progress


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({}, None),
        ({0: ("trunk", 3, 10, ""), 1: ("trunk", 5, 11, "")}, ("trunk", 8, 21, "")),
        ({0: ("training", 4, 20, "loss 1"), 1: ("training", 5, 20, "loss 2")}, ("training", 4, 20, "loss 1")),
        ({0: ("parts", 0, 1, ""), 1: ("features", 9, 9, "")}, ("parts", 0, 1, "")),
        ({2: ("trunk", 1, 4, "")}, ("trunk", 1, 4, "")),
    ],
)
def test_all_workers_make_one_bar(told: dict[int, tuple[str, int, int, str]], shown: object) -> None:
    assert whole_progress(told) == shown


def test_a_board_passes_on_what_it_is_told_once() -> None:
    board = Board()
    assert board.begin(0) is None and not board.tell(0, ("trunk", 1, 2, ""))
    board.epoch({"epoch": 1})
    assert board.read() == ({0: ("trunk", 1, 2, "")}, [{"epoch": 1}])
    assert board.read()[1] == []


def test_a_stop_reaches_workers_with_their_next_word() -> None:
    board = Board()
    board.begin(1)
    assert board.stop() and board.tell(1, ("trunk", 0, 1, ""))
    assert board.begin(0) is None, "who comes late saves with the others"


def test_a_stop_before_any_worker_began_keeps_them_from_it() -> None:
    board = Board()
    board.begin(1)
    board.attempt()
    assert not board.stop()
    assert board.begin(0) == Verdict("interrupted", INTERRUPTED) == board.outcome()[0]


def test_the_first_verdict_and_the_first_failure_count() -> None:
    board = Board()
    board.failed("cause")
    board.failed("its peer is gone")
    board.judge("too few images", 2)
    board.judge("interrupted", 130)
    assert board.outcome() == (Verdict("too few images", 2), "cause")
    assert board.begin(0) == Verdict("too few images", 2)
