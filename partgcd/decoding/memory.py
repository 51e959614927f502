"""The memory that images take while they are decoded: one budget for all threads of a process, and a limit for each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from partgcd.decoding.begun import BrokenImage

BUDGET = 1_000_000_000
"""Bytes that all images being decoded in one process may take together; one that needs more goes alone."""

ALWAYS = 600_000_000
"""Bytes that any image may take, however small its file."""

EXPANSION = 150
"""Above ALWAYS an image may take this many bytes for each byte of its file: photos take far less, bombs more ..."""

EXPANSION_DENSE = 400
"""... and this many in WebP, AVIF and HEIC, whose photos are smaller and whose decoders take more."""

_changed = threading.Condition()
_waiting: deque[object] = deque()
_held = 0


def check_memory(bytes_needed: int, file_bytes: int, dense: bool = False) -> None:
    """Raises BrokenImage where an image needs more than its file can justify; ``dense``: see EXPANSION_DENSE."""
    if bytes_needed > max(ALWAYS, (EXPANSION_DENSE if dense else EXPANSION) * file_bytes):
        raise BrokenImage(
            f"a decompression bomb: {file_bytes / 1e6:.1f} MB that take {bytes_needed / 1e6:,.0f} MB of memory"
        )


@contextmanager
def held(bytes_needed: int) -> Iterator[None]:
    """Waits until ``bytes_needed`` fit into the budget beside what other threads hold; in the order of asking.

    More than the whole budget is had once nobody else holds any.
    """
    global _held
    mine = object()
    with _changed:
        _waiting.append(mine)
        try:
            _changed.wait_for(lambda: _waiting[0] is mine and (_held == 0 or _held + bytes_needed <= BUDGET))
            _held += bytes_needed
        finally:
            _waiting.remove(mine)
            _changed.notify_all()
    try:
        yield
    finally:
        with _changed:
            _held -= bytes_needed
            _changed.notify_all()
