"""The three standard streams, made safe: whatever is printed arrives, does no harm, or is missed with a line.

Names of files and classes may hold orders to a terminal, or letters that the output has no code for; a stream may be
closed, or its disk full.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

OUTPUT = "standard output"
"""What an error of the system names where it could not be printed to."""


class _Stream(io.TextIOWrapper):
    """Text to a file descriptor; a subclass, as csv, print and typer ask for a text stream of this kind."""

    ascii = False

    def write(self, text: str) -> int:
        """Print ``text`` without orders to a terminal."""
        if not (text.isascii() and text.replace("\n", "").isprintable()):
            from partgcd.data.cells import shown

            text = shown(text)
            if self.ascii:
                text = text.encode("ascii", "backslashreplace").decode("ascii")
        try:
            return super().write(text)
        except OSError as error:
            error.filename = OUTPUT
            raise

    def flush(self) -> None:
        """Hand on what was printed."""
        try:
            super().flush()
        except OSError as error:
            error.filename = OUTPUT
            raise


def steady_streams() -> None:
    """Replace the interpreter's own streams; those that somebody put in their place (a test) stay."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Closed: the next file opened would get the number, and be printed into. Reading from, or writing to, this
            # one fails as it does with a closed one; there is nobody to miss what goes to stderr.
            held = os.open(os.devnull, (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)[number])
            if held != number:
                os.dup2(held, number)
                os.close(held)
    if sys.stdin is sys.__stdin__ and sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _over(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _over(2, sys.stderr)


def flush_output() -> None:
    """See that what was printed arrived. Raises OSError with `OUTPUT` for its file name where it did not."""
    sys.stdout.flush()


def drop_output() -> None:
    """Print no more: what is left would be said to have failed once again when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _over(number: int, before: TextIO | None) -> _Stream:
    encoding = (before.encoding if before is not None else None) or "utf-8"
    plain = encoding.lower().replace("-", "").replace("_", "") in ("ascii", "usascii", "646", "ansix3.41968")
    if isinstance(before, io.TextIOWrapper):
        with suppress(OSError):
            before.flush()
    # Typer would set a stream that calls itself ASCII aside and write UTF-8 behind it.
    made = _Stream(
        open(number, "wb", closefd=False),  # noqa: SIM115
        encoding="latin-1" if plain else encoding, errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
        write_through=isinstance(before, io.TextIOWrapper) and before.write_through,
    )  # fmt: skip
    made.ascii = plain
    return made
