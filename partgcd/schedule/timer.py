"""Runs rediscoveries when they are due, one at a time, each in a process of its own, and says so in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.disk.files import read_json, write_json
from partgcd.schedule.due import History, Plan, decide, ended

STATUS = "schedule.json"

LONGEST_SLEEP = 60.0
"""Seconds within which it is noticed that the machine slept or the clock was set."""


def follow(
    registry: Path,
    plan: Plan,
    run: Callable[[str], int],
    count_new: Callable[[], int],
    counters: Callable[[], tuple[float, float] | None],
    say: Callable[[str], None],
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    wait: Callable[[float], bool] = lambda seconds: False,
    longest: float = LONGEST_SLEEP,
) -> None:
    """Look, run, wait, until ``wait`` says to stop. What happened survives in the registry's schedule.json.

    Args:
        run: runs one rediscovery because of the reason given, to its end; its exit code.
        wait: sleeps so many seconds; True to stop.
    """
    status, last = registry / STATUS, dict[str, Any]()
    history = read_history(status, now())

    def tell(state: str, why: str, again: datetime | None) -> None:
        status_now = {"state": state, "pid": os.getpid(), "why": why, "history": history.as_json()}
        status_now["next"] = again.isoformat() if again is not None else None
        if status_now != last:
            write_json(status, status_now)
            last.clear()
            last.update(status_now)

    stopped = False
    while not stopped:
        decision = decide(plan, history, now(), str(registry.resolve()), count_new, counters)
        history = decision.history
        if decision.run:
            tell("running", decision.why, None)
            say(f"running: {decision.why}")
            code = run(decision.why)
            history = ended(history, now(), code)
            say(
                f"ended with {code}" + (f", {history.failures} failures in a row" if history.failures else "")
            )
            stopped = wait(0.0)
        else:
            tell("waiting", decision.why, decision.again)
            stopped = wait(min(max((decision.again - now()).total_seconds(), 0.05), longest))
    tell("stopped", "", None)


def read_history(status: Path, now: datetime) -> History:
    """The history that a scheduler before left, or one that begins now."""
    if status.exists():
        with suppress(UserError, KeyError, TypeError, ValueError):
            return History.from_json(read_json(status)["history"])
    return History(began=now)


class Stopper:
    """Turns SIGTERM and SIGINT into an end of the waiting, and passes them on to the run under way."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def listen(self) -> None:
        """Take the signals over; only in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def wait(self, seconds: float) -> bool:
        """Sleep; True where somebody asked for a stop."""
        return self._stop.wait(seconds)

    def run(self, command: Sequence[str]) -> int:
        """Run a command to its end; its exit code."""
        # In a session of its own: a Ctrl-C at the terminal reaches it once, through us.
        self._child = subprocess.Popen([sys.executable, "-m", "partgcd", *command], start_new_session=True)
        try:
            return self._child.wait()
        finally:
            self._child = None

    def _ask(self, number: int, frame: object) -> None:
        self._stop.set()
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):
                child.send_signal(number)
