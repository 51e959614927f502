"""One process at a time: a lock on a file that the system drops when its holder ends, in whatever way.

The lock is flock's. It needs no clean-up after a kill: a file that a dead process left is a free lock, and what the
file says of its last holder is only for people. On NFS flock works between machines where the server grants locks
(Linux since 2.6.12) and its recovery then waits for the server's lease; a disk that knows no locks is refused.
Windows has locks on files (msvcrt's), not on folders: a folder there is as on a disk without locks.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.disk.files import BYTES, NO_LINK, disk_errors, read_at, write_at

BUSY = 75
"""Exit code where another process holds the lock (EX_TEMPFAIL of sysexits.h: try again later)."""

_POLL = 0.05
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_FAR = 1 << 30
"""The byte that is locked on Windows, where others can't read what a lock covers: behind all that is written."""


def _system(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _system("fcntl"), _system("msvcrt")


def try_lock(handle: int) -> bool:
    """Lock what is open as ``handle`` until that is closed; False while another process has it locked.

    Raises:
        OSError: the disk, or the system, knows no locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    except (BlockingIOError, PermissionError):  # the second one is msvcrt's
        return False
    return True


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
        handle = os.open(file, os.O_RDWR | os.O_CREAT | NO_LINK | BYTES, 0o644)
    try:
        until = clock() + wait
        try:
            while not try_lock(handle):
                if clock() >= until:
                    raise UserError(f"{_holder(handle, file)}: wait for it, or stop it first", BUSY)
                sleep(_POLL)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UserError(
                f"the disk of '{file.parent}' knows no file locks: put that folder on a local disk", 1
            ) from error
        _sign(handle, what)
        yield
    finally:
        os.close(handle)


@contextmanager
def claimed(folder: Path, what: str, through_link: bool = True, wait: float = 0.0) -> Iterator[bool]:
    """Inside: no other process is in a block for ``folder``, which is made if it is not there.

    The lock is on the folder itself and leaves no trace in it.

    Args:
        what: what the holder does, for whoever finds the folder taken.
        through_link: whether ``folder`` may be a link to one.
        wait: seconds to wait for another holder; 0 refuses at once.

    Yields:
        False on a disk without locks and on Windows, where nothing keeps another process out.

    Raises:
        UserError: code 75 while another process holds it; the folder can't be made or opened.
    """
    if fcntl is None:  # no handles of folders
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield False
        return
    link = 0 if through_link else NO_LINK
    until = time.monotonic() + wait
    while True:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | BYTES | link)
        try:
            try:
                while not try_lock(handle):
                    if time.monotonic() >= until:
                        raise UserError(
                            f"another process {what} in '{folder}': wait for it, or stop it first", BUSY
                        )
                    time.sleep(_POLL)
                known = True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                known = False
            if not _is_still(handle, folder):
                continue  # renamed or removed before it was locked: another one is there now
            yield known
            return
        finally:
            os.close(handle)


def _is_still(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


def _sign(handle: int, what: str) -> None:
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "what": what,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError):  # a full disk takes no note and still knows locks
        os.ftruncate(handle, 0)
        write_at(handle, json.dumps(about).encode(), 0)


def _holder(handle: int, file: Path) -> str:
    try:
        about = json.loads(read_at(handle, 1000, 0))
        return (
            f"process {about['pid']} on {about['host']} is busy with {about['what']} since {about['since']}"
        )
    except (OSError, ValueError, KeyError, TypeError):  # taken this very moment, not signed yet
        return f"another process works in '{file.parent}'"
