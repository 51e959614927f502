"""How far a run is: a bar with the time left on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any

from partgcd.config.errors import UserError
from partgcd.data.cells import shown
from partgcd.run.signals import end_if_asked

_LINE_EVERY = 10.0


class Progress:
    """Shows phases of a run as they come; the next phase replaces the last."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._began = time.monotonic()
        self._first = 0
        self._last = 0.0
        self._width = 0

    def update(self, phase: str, done: int, total: int, note: str = "") -> None:
        """``done`` of ``total`` units of ``phase`` are finished. Raises `Ended` where a signal asked for an end."""
        end_if_asked()
        if total <= 0 or (total == 1 and done == 1):
            return
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._first, self._last = phase, now, done, 0.0
        finished = done >= total
        if self._terminal:
            if now - self._last < 0.1 and not finished:
                return
        elif phase == "refresh" or (now - self._last < _LINE_EVERY and not (finished and total > 1)):
            return
        self._last = now
        left = ""
        if done > self._first and not finished:
            seconds = (now - self._began) / (done - self._first) * (total - done)
            left = f" {_clock(seconds)} left"
        share = done / max(total, 1)
        if self._terminal:
            filled = int(24 * share)
            bar = "█" * filled + "░" * (24 - filled)
            text = f"{phase:<10} {bar} {100 * share:3.0f}%{left} {note}"
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif total == 1:
            self._write(f"{phase}\n")
        else:
            self._write(f"{phase} {done}/{total} ({100 * share:.0f}%){left} {note}".rstrip() + "\n")

    def phase(self, name: str) -> None:
        """A phase that has no count."""
        if self._terminal:
            self.update(name, 0, 1)
        else:
            self.line(name)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """One line an epoch where there is no bar."""
        if not self._terminal:
            sizes = metrics.get("sizes", {})
            self.line(
                f"epoch {metrics['epoch']} loss {metrics['loss']['total']:.3f} "
                f"empty classes {sizes.get('empty', 0)} "
                f"{metrics['seconds']['epoch']:.1f} s ({metrics['seconds']['refresh']:.1f} s refresh)"
            )

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(text + "\n")

    def close(self) -> None:
        """Leave the terminal clean."""
        self._clear()

    def _clear(self) -> None:
        if self._terminal and self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        sys.stderr.write(shown(text))
        sys.stderr.flush()


def describe_failure(error: MemoryError | RuntimeError) -> BaseException:
    """Out of memory names the settings to lower; anything else stays what it is."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return UserError(
            "out of memory: lower --batch-size, --image-size or --view-pool, then --resume or begin again", 1
        )
    return error


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
