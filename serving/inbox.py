"""The inbox: incoming images kept for the next rediscovery, each once, within a rate and a size. Off by default.

FOLDER/<sha256>.<suffix> is an image byte for byte, FOLDER/inbox.jsonl has a line for each: when it came and what was
answered. The folder is what `partgcd rediscover --new` and `partgcd train --data` take.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image

from partgcd.config.errors import UserError
from partgcd.data.decode import FORMATS
from partgcd.export.predictor import Answer
from partgcd.run.files import disk_errors, is_temporary, write_bytes
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Collecting

LINES = "inbox.jsonl"

_SUFFIX = {"JPEG": ".jpg", "TIFF": ".tif"}
_MOST_WAITING = 32
_RESCAN = 60.0
_STALE = 3600.0
_log = logging.getLogger("partgcd.serving")


class Inbox:
    """Writes in a thread of its own, so that no answer waits for the disk. Several servers may share a folder.

    Raises:
        UserError: nothing can be written to the folder.
    """

    def __init__(self, settings: Collecting, metrics: Metrics) -> None:
        self.settings = settings
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "inbox")
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self._allowance = settings.per_minute
        self._filled = time.monotonic()
        self._bytes, self._scanned = 0, -_RESCAN
        try:
            with disk_errors(settings.folder):
                settings.folder.mkdir(parents=True, exist_ok=True)
                with (settings.folder / LINES).open("ab"):
                    pass
                _remove_stale(settings.folder)
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
        except (UserError, OSError) as error:
            _log.error("an image could not be kept", extra={"fields": {"error": str(error)}})
            self._count("failed")
        finally:
            self._waiting.release()

    def _kept(self, data: bytes, answer: Answer) -> str:
        digest = hashlib.sha256(data).hexdigest()
        file = self.settings.folder / f"{digest}{suffix_of(data)}"
        if file.exists():
            return "known"
        now = time.monotonic()
        rate = self.settings.per_minute
        self._allowance = min(rate, self._allowance + (now - self._filled) * rate / 60)
        self._filled = now
        if self._allowance < 1:
            return "rate"
        if now - self._scanned >= _RESCAN:
            self._bytes, self._scanned = _size(self.settings.folder), now
        if self._bytes + len(data) > self.settings.quota_mb * 1e6:
            return "quota"
        write_bytes(file, data)
        self._append(digest, file.name, answer)
        self._allowance -= 1
        self._bytes += len(data)
        return "kept"

    def _append(self, digest: str, name: str, answer: Answer) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "sha256": digest,
            "file": name,
            "id": answer.best.id,
            "name": answer.best.name,
            "confidence": round(answer.best.probability, 5),
            "novel": answer.novel,
            "novelty": round(answer.novelty, 4),
            "model_version": answer.version,
        }
        text = (json.dumps(line, ensure_ascii=True) + "\n").encode("ascii")
        # One write to a file opened for appending: lines of several servers do not mix.
        handle = os.open(self.settings.folder / LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, text)
        finally:
            os.close(handle)

    def _count(self, result: str) -> None:
        self._metrics.record("partgcd_collected_total", result=result)


def suffix_of(data: bytes) -> str:
    """The suffix of an image that was decoded, by its first bytes."""
    for name in FORMATS:
        accept = Image.OPEN[name][1]
        if accept is not None and accept(data[:16]) is True:
            return _SUFFIX.get(name, f".{name.lower()}")
    return ".jpg"


def _remove_stale(folder: Path) -> None:
    """Remove what a killed server left half written; another one may be writing right now."""
    for path in folder.glob(".*.tmp"):
        if is_temporary(path.name) and time.time() - path.lstat().st_mtime > _STALE:
            path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
    return total
