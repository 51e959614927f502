"""Whose image is next: workers are shared out fairly among clients, and among the requests of each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field

_HALF_LIFE = 10.0
"""Seconds after which half of what a client has had is forgotten."""

_KEPT = 1000
"""Clients whose use is remembered at most."""


@dataclass(eq=False)
class Asking:
    """One request.

    Attributes:
        peer: the client's address.
        request_id: for the log.
        images: how many it has.
        begun: how many of them have had their turn.
        done: how many of them are answered.
        given_up: whether it was ended because it would not have been answered in time.
    """

    peer: str = ""
    request_id: str = ""
    images: int = 1
    begun: int = 0
    done: int = 0
    given_up: bool = False
    since: float = field(default_factory=time.monotonic)

    def patience(self, first: float, whole: float) -> float:
        """Seconds left of the ``first`` within which an image has to be begun, of the ``whole`` once one is done."""
        return max(0.0, self.since + (whole if self.done else first) - time.monotonic())


@dataclass(eq=False)
class Turn:
    """One image's time with a worker."""

    asking: Asking
    since: float = field(default_factory=time.monotonic)


Entry = tuple[Asking, "asyncio.Future[Turn]"]


class Turns:
    """Hands out ``workers`` places, to tasks of an event loop; given back by any thread.

    A free place goes to the client that has had the least of the workers' time lately, among its requests to the one
    that has had the fewest turns, and else to whoever came first: one image is not behind a form of 32, and nobody is
    behind a client that sends what takes long.
    """

    def __init__(self, workers: int) -> None:
        self._free = workers
        self._waiting: list[Entry] = []
        self._running: set[Turn] = set()
        self._used: dict[str, tuple[float, float]] = {}
        self._one = threading.Lock()

    async def take(self, asking: Asking) -> Turn:
        """Wait for a place. Whoever takes one gives it back."""
        with self._one:
            if self._free:
                return self._begin(asking)
            entry: Entry = (asking, asyncio.get_running_loop().create_future())
            self._waiting.append(entry)
        try:
            return await entry[1]
        except asyncio.CancelledError:
            with self._one:
                if entry in self._waiting:
                    self._waiting.remove(entry)
            if not entry[1].cancelled():  # it was given and cancelled in the same moment
                self.give_back(entry[1].result())
            raise

    def give_back(self, turn: Turn) -> float:
        """Free the place; the seconds it was held."""
        now = time.monotonic()
        seconds = now - turn.since
        with self._one:
            self._running.discard(turn)
            self._free += 1
            self._note(turn.asking.peer, seconds, now)
            given = []
            while self._free and self._waiting:
                entry = min(self._waiting, key=lambda each: (self._use_of(each[0].peer, now), each[0].begun))
                self._waiting.remove(entry)
                given.append((entry, self._begin(entry[0])))
        for entry, begun in given:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and nobody waits there
                entry[1].get_loop().call_soon_threadsafe(self._hand, entry, begun)
        return seconds

    def longest(self) -> float:
        """Seconds since the oldest turn under way began; 0 without one."""
        with self._one:
            return max((time.monotonic() - each.since for each in self._running), default=0.0)

    def _hand(self, entry: Entry, turn: Turn) -> None:
        if entry[1].done():
            self.give_back(turn)
        else:
            entry[1].set_result(turn)

    def _begin(self, asking: Asking) -> Turn:
        self._free -= 1
        asking.begun += 1
        turn = Turn(asking)
        self._running.add(turn)
        return turn

    def _note(self, peer: str, seconds: float, now: float) -> None:
        self._used[peer] = (self._use_of(peer, now) + seconds, now)
        if len(self._used) > _KEPT:
            del self._used[min(self._used, key=lambda each: self._use_of(each, now))]

    def _use_of(self, peer: str, now: float) -> float:
        seconds, when = self._used.get(peer, (0.0, now))
        return float(seconds * 0.5 ** ((now - when) / _HALF_LIFE))
