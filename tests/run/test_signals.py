"""Signals as an end that cleans up."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import pytest

from partgcd.run.signals import Ended, end_if_asked, ending_on_signals, stopping_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_through_the_clean_up(number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    cleaned = []
    with pytest.raises(Ended) as caught, ending_on_signals():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)
    assert caught.value.number == number and cleaned
    assert before == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    end_if_asked()


def test_an_end_that_was_swallowed_comes_again() -> None:
    with pytest.raises(Ended), ending_on_signals():
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        end_if_asked()


def test_a_block_that_stops_at_a_safe_moment_keeps_its_handlers() -> None:
    asked = threading.Event()
    with ending_on_signals(), stopping_on_signals(asked):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(5.0)
        end_if_asked()


def test_other_threads_get_no_signals() -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            with ending_on_signals():
                pass
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not found
