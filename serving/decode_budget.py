"""The memory that all images being decoded may take together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from partgcd.decoding.begun import BrokenImage


class Large(Exception):
    """The image takes more memory, and so more time, than was to be spent on it here and now."""


class NoMemory(Exception):
    """The memory for an image did not become free in time."""


class Budget:
    """Bytes, shared by any number of threads."""

    def __init__(self, most: int) -> None:
        self.most, self._held = most, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def held(self, count: int, most: float, wait: float) -> Iterator[None]:
        """Inside, ``count`` bytes are the caller's.

        Raises:
            BrokenImage: they never fit.
            Large: they are more than ``most``.
            NoMemory: others hold them, after ``wait`` seconds too.
        """
        if count > self.most:
            raise BrokenImage(
                f"needs too much memory: {count / 1e6:,.0f} MB (limit {self.most / 1e6:,.0f} MB, max_decode_mb)"
            )
        if count > most:
            raise Large
        with self._changed:
            if not self._changed.wait_for(lambda: self._held + count <= self.most, wait):
                raise NoMemory
            self._held += count
        try:
            yield
        finally:
            with self._changed:
                self._held -= count
                self._changed.notify_all()
