"""Logs as lines of JSON on stderr. What a request carried is never in them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

LOGGER = "partgcd.serving"

OTHERS = ("uvicorn.error", "asyncio", "concurrent.futures", "py.warnings")
"""Loggers of what we run on. The last one is Python's warnings."""

_LONGEST = 2000


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def log_as_json(level: str = "info", stream: TextIO | None = None) -> None:
    """Send this package's logs, uvicorn's and Python's warnings to ``stream`` (stderr), a JSON object a line."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in (LOGGER, *OTHERS):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper() if name == LOGGER else "WARNING")
        logger.propagate = False
    logging.captureWarnings(True)


@contextmanager
def stderr_as_json() -> Iterator[None]:
    """Inside, all that this process writes to stderr comes out as lines of JSON.

    Logs of any library, tracebacks of threads, and what code in C prints, too: file 2 is a pipe that is read here.
    """
    level = logging.getLevelName(logging.getLogger(LOGGER).level)
    try:
        kept = os.dup(2)
    except OSError:  # closed: nobody reads it
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    stream = os.fdopen(kept, "w", encoding="ascii", buffering=1)
    log_as_json(level, stream)
    root, before = logging.getLogger(), logging.getLogger().handlers
    root.handlers = list(logging.getLogger(LOGGER).handlers)
    reader = threading.Thread(target=_relay, args=(reading,), name="stderr", daemon=True)
    reader.start()
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    sys.excepthook = lambda kind, error, trace: _tell("uncaught", (kind, error, trace))
    threading.excepthook = lambda found: _tell(
        "a thread failed", (found.exc_type, found.exc_value, found.exc_traceback)
    )
    sys.unraisablehook = lambda found: _tell(
        "an error nobody could catch", (found.exc_type, found.exc_value, found.exc_traceback)
    )
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        root.handlers = before
        sys.stderr.flush()
        os.dup2(kept, 2)  # closes the pipe: the reader ends after what is in it
        reader.join(1)
        log_as_json(level)


def _tell(event: str, error: tuple[Any, Any, Any]) -> None:
    logging.getLogger(LOGGER).error(event, exc_info=error)


def _relay(pipe: int) -> None:
    """Lines that something wrote to stderr by itself."""
    left = b""
    with os.fdopen(pipe, "rb", buffering=0) as source:
        while piece := source.read(65536):
            *lines, left = (left + piece).split(b"\n")
            if len(left) > _LONGEST:
                lines, left = [*lines, left], b""
            for line in lines:
                _relay_line(line)
    _relay_line(left)


def _relay_line(line: bytes) -> None:
    text = line[:_LONGEST].decode("utf-8", "replace").rstrip()
    if text:
        logging.getLogger(LOGGER).warning("stderr", extra={"fields": {"line": text}})
