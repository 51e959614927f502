"""One process at a time: a lock on a file that the system drops when its holder ends, in whatever way.

The lock is flock's. It needs no clean-up after a kill: a file that a dead process left is a free lock, and what the
file says of its last holder is only for people. On NFS flock works between machines where the server grants locks
(Linux since 2.6.12) and its recovery then waits for the server's lease; a disk that knows no locks is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.run.files import disk_errors

BUSY = 75
"""Exit code where another process holds the lock (EX_TEMPFAIL of sysexits.h: try again later)."""

_POLL = 0.05


@contextmanager
def locked(
    file: Path,
    what: str,
    wait: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Inside: no other process is in a block for ``file``.

    Args:
        what: what the holder does, for whoever finds the lock taken.
        wait: seconds to wait for another holder; 0 refuses at once.

    Raises:
        UserError: code 75 while another process holds it; code 1 on a disk without locks.
    """
    with disk_errors(file):
        # Never through a link, never removed: a file that is deleted and made anew would be two locks.
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        until = clock() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock() >= until:
                    raise UserError(f"{_holder(handle)}: wait for it, or stop it first", BUSY) from None
                sleep(_POLL)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                raise UserError(
                    f"the disk of '{file.parent}' knows no file locks: put the registry on a local disk", 1
                ) from error
        _sign(handle, what)
        yield
    finally:
        os.close(handle)


def _sign(handle: int, what: str) -> None:
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "what": what,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError):  # a full disk takes no note and still knows locks
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(about).encode(), 0)


def _holder(handle: int) -> str:
    try:
        about = json.loads(os.pread(handle, 1000, 0))
        return (
            f"process {about['pid']} on {about['host']} is busy with {about['what']} since {about['since']}"
        )
    except (OSError, ValueError, KeyError, TypeError):  # taken this very moment, not signed yet
        return "another process works on this registry"
