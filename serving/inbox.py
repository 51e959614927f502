"""The inbox: incoming images kept for the next rediscovery, each once, within a rate and a size. Off by default.

FOLDER/<sha256>.<suffix> is an image byte for byte, FOLDER/inbox.jsonl has a line for each: when it came and what was
answered. The folder is what `partgcd rediscover --new` and `partgcd train --data` take.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.data.decode import suffix_of
from partgcd.disk.files import disk_errors, is_temporary, write_bytes
from partgcd.export.predictor import Answer
from partgcd.serving.inbox_lines import LINES, Lines
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Collecting

_MOST_WAITING = 32
_RESCAN = 60.0
_STALE = 3600.0
_log = logging.getLogger("partgcd.serving")


class Inbox:
    """Writes in a thread of its own, so that no answer waits for the disk. Several servers may share a folder.

    Raises:
        UserError: nothing can be written to the folder, or it or its list is something else.
    """

    def __init__(self, settings: Collecting, metrics: Metrics) -> None:
        self.settings = settings
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "inbox")
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self._allowance = settings.per_minute
        self._filled = time.monotonic()
        self._scanned, self._bytes_then, self._bytes = -_RESCAN, 0, 0
        folder = settings.folder
        try:
            with disk_errors(folder):
                _must_be(folder, stat.S_ISDIR, "a folder")
                _must_be(folder / LINES, stat.S_ISREG, "a file")
                folder.mkdir(parents=True, exist_ok=True)
                self._lines = Lines(folder / LINES)
                with self._lines.locked():
                    pass
                _remove_stale(folder)
        except UserError as error:
            raise UserError(str(error).replace("--out", "--collect"), error.code) from error

    def offer(self, data: bytes, answer: Answer) -> None:
        """Keep an image if it is of the wanted kind and there is room. Returns at once, never raises."""
        if not self._wanted(answer):
            return
        if not self._waiting.acquire(blocking=False):
            self._count("busy")
            return
        try:
            self._thread.submit(self._keep, data, answer)
        except RuntimeError:  # closed
            self._waiting.release()

    def close(self) -> None:
        """Write what was accepted, then stop."""
        self._thread.shutdown()

    def _wanted(self, answer: Answer) -> bool:
        settings = self.settings
        if settings.what == "all":
            return True
        return answer.novel or (settings.what == "unsure" and answer.best.probability < settings.below)

    def _keep(self, data: bytes, answer: Answer) -> None:
        try:
            self._count(self._kept(data, answer))
        except Exception as error:  # whatever it is, somebody has to hear of it: nobody waits for this thread
            _log.error("an image could not be kept", extra={"fields": {"error": str(error) or repr(error)}})
            self._count("failed")
        finally:
            self._waiting.release()

    def _kept(self, data: bytes, answer: Answer) -> str:
        digest = hashlib.sha256(data).hexdigest()
        file = self.settings.folder / f"{digest}{suffix_of(data)}"
        with self._lines.locked():  # so that neither a line nor the quota is another server's meanwhile
            there, listed = file.exists(), self._lines.has(digest)
            if there and listed:
                return "known"
            refused = None if there else self._no_room(len(data))
            if refused is not None:
                return refused
            if not listed:
                self._lines.append(_line(digest, file.name, len(data), answer))
            if not there:
                try:
                    write_bytes(file, data)
                except BaseException:
                    if not listed:
                        self._lines.take_back()
                    raise
                self._allowance -= 1
                self._bytes += len(data) if listed else 0
        return "kept"

    def _no_room(self, count: int) -> str | None:
        now = time.monotonic()
        rate = self.settings.per_minute
        self._allowance = min(rate, self._allowance + (now - self._filled) * rate / 60)
        self._filled = now
        if self._allowance < 1:
            return "rate"
        if now - self._scanned >= _RESCAN or self._lines.bytes < self._bytes_then:  # the list was moved away
            self._bytes, self._bytes_then, self._scanned = _size(self.settings.folder), self._lines.bytes, now
        # What all servers have kept since the scan stands in the lines.
        kept = self._bytes + self._lines.bytes - self._bytes_then
        return "quota" if kept + count > self.settings.quota_mb * 1e6 else None

    def _count(self, result: str) -> None:
        self._metrics.record("partgcd_collected_total", result=result)


def _line(digest: str, name: str, count: int, answer: Answer) -> dict[str, object]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": digest,
        "file": name,
        "bytes": count,
        "id": answer.best.id,
        "name": answer.best.name,
        "confidence": round(answer.best.probability, 5),
        "novel": answer.novel,
        "novelty": round(answer.novelty, 4),
        "model_version": answer.version,
    }


def _must_be(path: Path, kind: Callable[[int], bool], word: str) -> None:
    """Never through a link, which may lead anywhere; and a pipe would be waited for without end."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return  # made, or told of, later
    if not kind(mode):
        names = {
            stat.S_IFLNK: "a link",
            stat.S_IFIFO: "a pipe",
            stat.S_IFDIR: "a folder",
            stat.S_IFREG: "a file",
        }
        found = names.get(stat.S_IFMT(mode), "a device")
        raise UserError(
            f"can't collect into '{path}': it is {found}, not {word}; choose another --collect", 1
        )


def _remove_stale(folder: Path) -> None:
    """Remove what a killed server left half written; another one may be writing right now."""
    for path in folder.glob(".*.tmp"):
        if is_temporary(path.name) and time.time() - path.lstat().st_mtime > _STALE:
            path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    """Bytes of all files there but for the list, which is small beside them."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another server's, just renamed
                if entry.name != LINES and entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
