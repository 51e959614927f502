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


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk, or a path that can't be one, into one line.

    Raises:
        UserError: code 1 for the disk, 2 for the path, which is named.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: can't write '{path}'; free some space and --resume", 1
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise UserError(f"not allowed to write '{path}': choose another --out", 1) from error
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP):
            raise UserError(f"can't write '{path}' ({error.strerror}): choose another --out") from error
        raise


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
    """Replace ``path`` by indented JSON atomically. NaN is refused: no reader would agree on it."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
