"""The inbox's list: a JSON line an image, whole or not there at all, shared by the servers that share the folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.disk.files import BYTES, NO_LINK, NO_WAIT, disk_errors, read_at
from partgcd.disk.lock import try_lock

LINES = "inbox.jsonl"

_WAIT = 10.0
_POLL = 0.02
_PIECE = 1 << 20


class Lines:
    """What is in the list, kept in step with the file. Everything but `locked` is for inside of it.

    Attributes:
        bytes: of all images listed, by what their lines say.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self._listed: set[bytes] = set()
        self._read, self._inode, self._handle = 0, 0, -1
        self._last: tuple[str, int] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside: no other server writes, and what others wrote is known.

        Raises:
            UserError: another one holds the list for long, or the disk can't be written.
        """
        with disk_errors(self.path):
            self._handle = self._open()
        try:
            self._catch_up()
            yield
        finally:
            os.close(self._handle)

    def has(self, digest: str) -> bool:
        """Whether the image of this sha256 has a line."""
        return bytes.fromhex(digest) in self._listed

    def append(self, line: Mapping[str, object]) -> None:
        """Add a line that says 'sha256' and 'bytes'. Raises UserError or OSError, and then nothing was added."""
        data = (json.dumps(line, ensure_ascii=True) + "\n").encode("ascii")
        with disk_errors(self.path):
            try:
                written = 0
                while written < len(data):  # a nearly full disk takes a part
                    written += os.write(self._handle, data[written:])
                os.fsync(self._handle)
            except BaseException:
                os.ftruncate(self._handle, self._read)
                raise
        self._last = (str(line["sha256"]), self._read)
        self._note(line)
        self._read += len(data)

    def take_back(self) -> None:
        """Remove the line that was just added."""
        assert self._last is not None
        digest, size = self._last
        os.ftruncate(self._handle, size)
        self._read, self._inode = 0, 0  # read anew the next time
        self._listed.discard(bytes.fromhex(digest))

    def _open(self) -> int:
        """The file, locked; made anew where it was moved away while we waited."""
        until = time.monotonic() + _WAIT
        while True:
            # Never through a link, and never waiting for the other end of a pipe.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_LINK | NO_WAIT | BYTES
            handle = os.open(self.path, flags, 0o644)
            try:
                while not try_lock(handle):
                    if time.monotonic() > until:
                        raise UserError(f"another process holds '{self.path}'", 1)
                    time.sleep(_POLL)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), self.path.lstat()):
                        return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _catch_up(self) -> None:
        """Read what others added. Half a line is what a killed server or a full disk left: it goes."""
        about = os.fstat(self._handle)
        if about.st_ino != self._inode or about.st_size < self._read:
            self._read, self._inode, self.bytes, self._listed = 0, about.st_ino, 0, set()
        left = b""
        while self._read < about.st_size:
            piece = read_at(self._handle, _PIECE, self._read)
            if not piece:
                break
            self._read += len(piece)
            *lines, left = (left + piece).split(b"\n")
            for line in lines:
                self._note(_parsed(line))
        if found := _parsed(left):  # whole, but for the end of its line: an editor's
            self._read += os.write(self._handle, b"\n")
            self._note(found)
        elif left:
            self._read -= len(left)
            os.ftruncate(self._handle, self._read)

    def _note(self, line: Mapping[str, object]) -> None:
        digest, count = line.get("sha256"), line.get("bytes")
        if isinstance(digest, str) and len(digest) == 64:
            try:
                self._listed.add(bytes.fromhex(digest))
            except ValueError:
                return
            self.bytes += count if isinstance(count, int) and count > 0 else 0


def _parsed(line: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(line)
    except ValueError:  # somebody else's
        return {}
    return found if isinstance(found, dict) else {}
