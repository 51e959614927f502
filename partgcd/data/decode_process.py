"""Decoding in a process of its own, which may be killed: `python -m partgcd.data.decode_process`.

It reads jobs from stdin and writes answers to stdout, in frames: a byte for the kind, eight for the length, the rest.
The first frame is READY. A job is ABOUT (JSON: max_megapixels, seconds, data as DataSettings) and then IMAGE (the
file's bytes). The answer is BROKEN (the reason) or NEEDS (bytes of memory, as eight). On NEEDS the other side sends
GRANT (bytes as eight, 0 for no), and gets VIEW (the evaluation view's bytes, [3, S, S]) or BROKEN. It ends when stdin
does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, BinaryIO

from PIL import AvifImagePlugin

from partgcd.config.tree import DataSettings
from partgcd.data.decode import begin
from partgcd.data.pixels import evaluation_view
from partgcd.decoding.begun import BrokenImage

ABOUT, IMAGE, GRANT = b"A", b"I", b"G"
READY, NEEDS, VIEW, BROKEN = b"R", b"N", b"V", b"B"

HEAD = 9
"""Bytes before a frame's content: its kind and its length."""

SLACK = 100_000_000
"""Bytes that an image may take beyond what it said it needs: its view, the interpreter, the allocator's gaps."""


def head(kind: bytes, length: int) -> bytes:
    """What comes before a frame's content."""
    return kind + length.to_bytes(8, "big")


def frame(kind: bytes, content: bytes = b"") -> bytes:
    """A whole frame."""
    return head(kind, len(content)) + content


def main() -> None:
    """Answer jobs until stdin ends."""
    # A signal to the whole group stops the server, which still needs us for what it has in hand.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    # One CPU an image: the server shares them out. Every thread would also take address space for its stack.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with os.fdopen(os.dup(1), "wb") as sink, os.fdopen(os.dup(0), "rb") as source:
        os.dup2(2, 1)  # whatever a library prints belongs into the log, not between two frames
        sink.write(frame(READY))
        sink.flush()
        while (about := _read(source, ABOUT)) is not None:
            data = _read(source, IMAGE)
            if data is None:
                return
            sink.write(_answered(json.loads(about), data, source, sink))
            sink.flush()


def _answered(about: dict[str, Any], data: bytes, source: BinaryIO, sink: BinaryIO) -> bytes:
    """VIEW or BROKEN."""
    settings = DataSettings.model_validate(about["data"])
    try:
        # The alarm's default action ends the process, in the middle of C code too.
        signal.setitimer(signal.ITIMER_REAL, about["seconds"])
        _limit_memory(2 * SLACK)
        begun = begin(data, about["max_megapixels"])
        left = _pause()
        sink.write(frame(NEEDS, begun.bytes_needed.to_bytes(8, "big")))
        sink.flush()
        granted = int.from_bytes(_read(source, GRANT) or b"", "big")
        if not granted:
            return frame(BROKEN, b"refused")
        signal.setitimer(signal.ITIMER_REAL, left)
        _limit_memory(granted + SLACK)
        return frame(VIEW, evaluation_view(begun.finish(), settings).tobytes())
    except BrokenImage as broken:
        return frame(BROKEN, broken.reason.encode("utf-8", "replace"))
    except MemoryError:
        return frame(BROKEN, b"does not fit in memory")
    finally:
        _pause()
        _limit_memory(None)


def _pause() -> float:
    """Stop the clock; the seconds it had left."""
    return max(signal.setitimer(signal.ITIMER_REAL, 0)[0], 0.001)


def _limit_memory(more: int | None) -> None:
    """Let the address space grow by ``more`` bytes at most, where the system tells its size; None lifts the limit."""
    import resource  # Windows has none, and reads only this module's constants

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = hard
    if more is not None:
        try:
            with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once an image
                soft = int(file.read().split()[0]) * resource.getpagesize() + more
        except OSError:
            return
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _read(source: BinaryIO, kind: bytes) -> bytes | None:
    """The content of the next frame, which is of this kind; None where the stream ends."""
    start = source.read(HEAD)
    if len(start) < HEAD:
        return None
    if start[:1] != kind:
        sys.exit(f"a frame of kind {start[:1]!r} where {kind!r} belongs")
    length = int.from_bytes(start[1:], "big")
    content = source.read(length)
    return content if len(content) == length else None


if __name__ == "__main__":
    main()
