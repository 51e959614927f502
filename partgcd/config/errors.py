"""The one exception a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend: the message is one line saying what is wrong and what to do.

    ``code`` is the exit code of the command: 1 the work failed, 2 wrong usage.
    """

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
