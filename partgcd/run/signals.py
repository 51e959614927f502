"""SIGINT and SIGTERM as a request to stop at the next safe moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ended(BaseException):
    """A signal came: what is under way is left through its clean-up. Like KeyboardInterrupt, no error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Asked:
    """Whether a signal came that nobody has answered yet."""

    number: int | None = None


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Inside: SIGINT and SIGTERM raise `Ended`. Where a block has handlers of its own, those hold.

    Does nothing outside the main thread, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        _Asked.number = number
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _Asked.number = None
        for number, handler in before.items():
            signal.signal(number, handler)


def end_if_asked() -> None:
    """Raise `Ended` once more: compiled code under way swallows what a signal raises in a callback of its own."""
    if _Asked.number is not None:
        raise Ended(_Asked.number)


@contextmanager
def stopping_on_signals(asked: threading.Event) -> Iterator[None]:
    """Inside: the first SIGINT or SIGTERM sets ``asked``, a second SIGINT ends at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
