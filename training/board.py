"""What workers tell the person who waits, and what that person tells them: one small actor between them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

Told = tuple[str, int, int, str]

INTERRUPTED = 130
"""The exit code of a run that was asked to stop and has saved."""


class Verdict(NamedTuple):
    """How a run ended for a reason that no new attempt changes: a message, and an exit code."""

    message: str
    code: int


class Board:
    """Progress of all workers, finished epochs, the verdict, and whether somebody asked for a stop."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}
        self._epochs: list[dict[str, Any]] = []
        self._verdict: Verdict | None = None
        self._failure = ""
        self._stop = False

    def begin(self, rank: int) -> Verdict | None:
        """A worker starts, perhaps again; what it is told is why it should not."""
        self._told[rank] = ("starting", 0, 1, "")
        return self._verdict

    def attempt(self) -> None:
        """All workers of an earlier attempt are gone."""
        self._told.clear()
        self._failure = ""

    def tell(self, rank: int, told: Told) -> bool:
        """A worker's progress; the answer is whether it should stop."""
        self._told[rank] = told
        return self._stop

    def epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch is done."""
        self._epochs.append(metrics)

    def judge(self, message: str, code: int) -> None:
        """The first verdict counts."""
        self._verdict = self._verdict or Verdict(message, code)

    def failed(self, message: str) -> None:
        """A worker failed by itself. The first failure is the cause; the others lost their peer."""
        self._failure = self._failure or message

    def stop(self) -> bool:
        """Ask all workers to stop at the next safe moment. Whether any has begun in this attempt; else none will."""
        self._stop = True
        begun = bool(self._told)
        if not begun:
            self.judge("interrupted", INTERRUPTED)
        return begun

    def outcome(self) -> tuple[Verdict | None, str]:
        """The verdict, and the first failure of the last attempt."""
        return self._verdict, self._failure

    def read(self) -> tuple[dict[int, Told], list[dict[str, Any]]]:
        """All workers' progress, and the epochs that were done since the last time."""
        epochs, self._epochs = self._epochs, []
        return dict(self._told), epochs


def whole_progress(told: dict[int, Told]) -> Told | None:
    """One line of progress for all workers: shares of one phase are added up, steps are taken together.

    The phase is rank 0's, or the lowest rank's that has told anything.
    """
    if not told:
        return None
    phase, done, total, note = told[min(told)]
    if phase == "training":
        return phase, done, total, note
    same = [each for each in told.values() if each[0] == phase]
    return phase, sum(each[1] for each in same), sum(each[2] for each in same), note


class Line:
    """A worker's line to the board: never waits, and a board that is gone is nothing to fail for."""

    def __init__(self, board: Any, rank: int, every: float = 0.2) -> None:
        self._board = board
        self._rank = rank
        self._every = every
        self._last = 0.0
        self._answer: Any = None
        self._stop = False

    def tell(self, phase: str, done: int, total: int, note: str, now: float) -> None:
        """Pass progress on, a few times a second at most; the ends of phases always."""
        if now - self._last < self._every and done < total:
            return
        self._last = now
        self._listen()
        with suppress(RayError):
            self._answer = self._board.tell.remote(self._rank, (phase, done, total, note))

    def should_stop(self) -> bool:
        """Whether the board's last answer was to stop."""
        self._listen()
        return self._stop

    def _listen(self) -> None:
        if self._answer is None:
            return
        with suppress(RayError):
            ready, _ = ray.wait([self._answer], timeout=0)
            if ready:
                answer, self._answer = self._answer, None
                self._stop = self._stop or bool(ray.get(answer))
