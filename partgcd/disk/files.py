"""Writing files so that a kill at any moment leaves the old one or the new one, never a half."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EROFS, errno.EPERM)
_NO_PATH = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP, errno.EXDEV,
            errno.EINVAL, errno.EILSEQ)  # fmt: skip
# Only Linux has all of them.
_BROKEN = tuple(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "ENXIO", "ENODEV", "EREMOTEIO", "ETIMEDOUT", "EUCLEAN")
    if hasattr(errno, name)
)
_WHY = {
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the largest size of a file is reached",
    errno.EROFS: "it is mounted read-only",
}

# Flags of `os.open` that some system lacks: Windows knows no links that have to be kept out, and text to be asked for.
BYTES = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a disk that is full, read-only, forbidden or broken, or a path that can't be one, into one line.

    Raises:
        UserError: code 1 for the disk, 2 for the path, which is named.
    """
    try:
        yield
    except OSError as error:
        trouble = disk_error(error, path)
        if trouble is None:
            raise
        raise trouble from error


def disk_error(error: OSError, path: Path) -> UserError | None:
    """What went wrong as `disk_errors` tells it, of writing to ``path``; None where it is not the disk's doing."""
    why = _WHY.get(error.errno or 0, "")
    if error.errno in _FULL:
        trouble = f"the disk is full: can't write '{path}'" + (f" ({why})" if why else "")
        return UserError(f"{trouble}; free some space, then the same command (train: --resume) goes on", 1)
    if error.errno in _FORBIDDEN:
        return UserError(
            f"not allowed to write '{path}'{f' ({why})' if why else ''}: choose another place", 1
        )
    if error.errno in _NO_PATH:
        return UserError(f"can't write '{path}' ({error.strerror}): choose another --out")
    if error.errno in _BROKEN:
        return UserError(f"the disk of '{path}' does not answer ({error.strerror}): look after it first", 1)
    return None


def describe_os_error(error: OSError) -> UserError | None:
    """An error of the system that no part of the program expected, as one line; None for what is no trouble of files.

    Used where nobody knows whether the file was to be read or to be written.
    """
    name = error.filename if error.filename is not None else error.filename2
    shown = f"'{os.fsdecode(name)}'" if isinstance(name, str | bytes | os.PathLike) else ""
    why = _WHY.get(error.errno or 0) or error.strerror or ""
    if error.errno in _FULL:
        if error.filename2 is not None:  # of a copy, the second one is written
            shown = f"'{os.fsdecode(error.filename2)}'"
        place = f" of {shown}" if shown else ""
        return UserError(f"the disk{place} is full ({why}): free some space, then --resume the run", 1)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UserError(f"too many open files ({why}): raise the limit, as with ulimit -n 4096", 1)
    if error.errno in (errno.ENOMEM, errno.EAGAIN):
        return UserError(f"the system has no room for this ({why}): end other programs, or ask for less", 1)
    if error.errno in _BROKEN and (shown or error.errno == errno.EIO):
        return UserError(
            f"the disk{f' of {shown}' if shown else ''} does not answer ({why}): look after it first", 1
        )
    if not shown and error.errno in (*_FORBIDDEN, *_NO_PATH, errno.ENOENT):
        # Arrow's errors name the file in their text.
        return UserError(f"a file can't be used: {why}", 1)
    if isinstance(error, FileNotFoundError | PermissionError) and error.errno is None:
        # Safetensors has one error for both.
        return UserError(f"a file is missing or may not be read: {error}", 1)
    if not shown:
        return None
    if error.errno in _FORBIDDEN:
        return UserError(f"not allowed to use {shown} ({why}): change who may, or name another place", 1)
    return UserError(f"can't use {shown} ({why}): mend or name another one", 1)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` atomically."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_at(handle: int, count: int, place: int) -> bytes:
    """Up to ``count`` bytes from ``place`` on, as os.pread, which Windows lacks; moves the handle's own place."""
    os.lseek(handle, place, os.SEEK_SET)
    return os.read(handle, count)


def write_at(handle: int, data: bytes, place: int) -> int:
    """Write at ``place``, as os.pwrite; how many bytes were written."""
    os.lseek(handle, place, os.SEEK_SET)
    return os.write(handle, data)


def append_line(file: Path, line: bytes) -> None:
    """Add ``line`` and a newline to a file of lines; only for who alone writes there.

    What a kill left behind the last newline is overwritten, and a line that does not fit on the disk leaves none.

    Raises:
        UserError: code 1 for the disk.
    """
    line += b"\n"
    with disk_errors(file):
        handle = os.open(file, os.O_RDWR | os.O_CREAT | BYTES, 0o644)
        try:
            size = os.fstat(handle).st_size
            end = read_at(handle, size, 0).rfind(b"\n") + 1
            os.ftruncate(handle, end)
            if write_at(handle, line, end) != len(line):
                os.ftruncate(handle, end)
                raise UserError(f"the disk is full: can't write '{file}'", 1)
            os.fsync(handle)
        finally:
            os.close(handle)


def whole_lines(file: Path) -> list[bytes]:
    """Lines of a file without their newlines; what follows the last newline is one that was cut off."""
    return file.read_bytes().split(b"\n")[:-1]


def is_temporary(name: str) -> bool:
    """Whether `write_bytes` gives a file this name while it writes."""
    return re.fullmatch(r"\..+\.\d+\.tmp", name, re.DOTALL) is not None


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left half written in ``folder``; only for who alone writes there."""
    for path in folder.glob(".*.tmp"):
        if is_temporary(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by UTF-8 ``text`` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by indented JSON atomically. NaN is refused: no reader would agree on it.

    Bytes of a path that are no UTF-8 become JSON escapes, and the same bytes again when it is read.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> Any:
    """The parsed content of a JSON file.

    Raises:
        UserError: code 1 when it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"'{path}' is missing: the run folder is incomplete", 1) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"'{path}' can't be read as JSON: {error}", 1) from error


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replace ``path`` by a CSV file atomically; fields are quoted where they hold commas or newlines."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, buffer.getvalue())
