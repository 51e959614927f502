"""Decoding for a server: in processes that are ended at a deadline, within one budget of memory for all of them.

A stranger's image may be made to take hours or gigabytes. A thread can't be stopped, a process can; and a crash in a
decoder written in C takes one image with it, not the server.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, NoReturn

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings
from partgcd.data.decode_process import ABOUT, BROKEN, GRANT, HEAD, IMAGE, NEEDS, VIEW, frame, head
from partgcd.decoding.begun import BrokenImage
from partgcd.serving.decode_budget import Budget, Large, NoMemory
from partgcd.serving.decoders_inside import InsideDecoders
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Limits

MOST_IMAGES = 5000
"""Images after which a process is replaced."""

MOST_RESIDENT = 100_000_000
"""Bytes of memory that a process may keep between two images before it is replaced; a fresh one has 50e6."""

_START_S = 30.0
_GRACE_S = 0.5
_LINES, _READS = 5, 16
_PASSED = ("PATH", "LANG", "LC_", "LD_", "DYLD_", "PYTHON", "HOME", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
_log = logging.getLogger("partgcd.serving")


def make_decoders(limits: Limits, metrics: Metrics) -> Decoders | InsideDecoders:
    """Processes where the system has what bounds them: alarms, and pipes that can be waited for."""
    return Decoders(limits, metrics) if hasattr(signal, "setitimer") else InsideDecoders(limits)


class Decoders:
    """Any number of threads may call it; each call has a process to itself. Processes start when they are needed.

    Args:
        limits: max_megapixels and decode_timeout_s of one image, max_decode_mb of all together.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._budget = Budget(int(limits.max_decode_mb * 1e6))
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._one = threading.Lock()

    def start(self, count: int) -> None:
        """Begin to start so many processes."""
        with self._one:
            self._idle += [_Process() for _ in range(count)]

    def wait_ready(self) -> None:
        """Raises UserError where those that were started do not come up."""
        try:
            for each in list(self._idle):
                each.wait_ready()
        except _Ended:
            raise UserError("decoders can't be started as processes of their own; see the log", 1) from None

    def view(
        self,
        data: bytes,
        settings: DataSettings,
        label: str = "",
        most: float = math.inf,
        wait: float = 1.0,
    ) -> NDArray[np.uint8]:
        """What a model sees of an image, [3, S, S] uint8: `evaluation_view`, made elsewhere.

        Args:
            data: the file's bytes.
            settings: of the model.
            label: the request's id, for the log.
            most: bytes of memory that it may need; the decoder says what it does before it begins in earnest.
            wait: seconds to wait for memory that others hold.

        Raises:
            Large: it needs more than ``most``.
            BrokenImage: it can't be read, took too long, or needs more memory than there is.
            NoMemory: others hold the memory it needs.
        """
        process = self._take()
        try:
            content = self._ask(process, data, settings, label, most, wait)
        except _Ended:
            reason = process.why(self._limits.decode_timeout_s)
            self._metrics.record("partgcd_decoders_ended_total", why="slow" if process.slow else "failed")
            fields = {"request_id": label, "reason": reason, "bytes": len(data)}
            _log.warning("a decoder was ended", extra={"fields": fields})
            raise BrokenImage(reason) from None
        finally:
            self._put_back(process)
        side = settings.image_size
        return np.frombuffer(content, np.uint8).reshape(3, side, side)

    def close(self) -> None:
        """End all processes, those at work too: what they have in hand fails."""
        with self._one:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for each in idle:
            each.close()
        for each in busy:
            each.stopped = True
            each.end()

    def _ask(
        self, process: _Process, data: bytes, settings: DataSettings, label: str, most: float, wait: float
    ) -> bytes:
        limits = self._limits
        about = {
            "data": settings.model_dump(mode="json"), "max_megapixels": limits.max_megapixels,
            "seconds": limits.decode_timeout_s,
        }  # fmt: skip
        process.begin(label)
        process.wait_ready()
        left = limits.decode_timeout_s + _GRACE_S
        began = time.monotonic()
        process.send(frame(ABOUT, json.dumps(about).encode("ascii")) + head(IMAGE, len(data)), left)
        process.send(data, left)
        kind, content = process.receive(left)
        left -= time.monotonic() - began
        if kind == NEEDS:
            with self._granted(process, int.from_bytes(content, "big"), most, wait) as grant:
                process.send(grant, max(left, _GRACE_S))
                kind, content = process.receive(max(left, _GRACE_S))
        if kind == BROKEN:
            raise BrokenImage(content.decode("utf-8", "replace"))
        if kind != VIEW:
            process.end()
            raise _Ended
        return content

    @contextlib.contextmanager
    def _granted(self, process: _Process, count: int, most: float, wait: float) -> Iterator[bytes]:
        """The frame that lets the process take ``count`` bytes."""
        try:
            with self._budget.held(count, most, wait):
                yield frame(GRANT, max(count, 1).to_bytes(8, "big"))
        except (BrokenImage, Large, NoMemory):
            if not process.ended:  # it waits for an answer
                process.send(frame(GRANT, bytes(8)), _GRACE_S)
                process.receive(_GRACE_S)
            raise

    def _take(self) -> _Process:
        with self._one:
            while self._idle:
                found = self._idle.pop()
                if found.alive():
                    self._busy.add(found)
                    return found
                found.close()
        found = _Process()
        with self._one:
            self._busy.add(found)
        return found

    def _put_back(self, process: _Process) -> None:
        keep = not process.ended and process.alive() and process.images < MOST_IMAGES
        keep = keep and process.resident() < MOST_RESIDENT
        with self._one:
            self._busy.discard(process)
            if keep:
                self._idle.append(process)
        if not keep:
            process.close()


class _Ended(Exception):
    """The process is gone, or was ended by us."""


class _Process:
    """One decoder. Calls are made by one thread at a time, but for `end`."""

    def __init__(self) -> None:
        # -P: nothing is imported from the working directory. No key or token is in the environment.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "partgcd.data.decode_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env={name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
            # glibc reserves 64 MB of addresses a thread, and numpy starts threads as it loads.
            | {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        with contextlib.suppress(
            ImportError, AttributeError, OSError
        ):  # fewer turns between the two; Linux has it
            fcntl = importlib.import_module("fcntl")
            fcntl.fcntl(self._in.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
        for each in (self._in, self._out, self._err):
            os.set_blocking(each.fileno(), False)
        self.images = 0
        self.slow = self.ended = self.stopped = self._ready = self._silent = False
        self._label, self._lines = "", 0

    def begin(self, label: str) -> None:
        """An image is next."""
        self._label, self._lines = label, 0
        self.images += 1

    def wait_ready(self) -> None:
        """Let it load what it needs: that is not the image's time."""
        if not self._ready:
            self.receive(_START_S)
            self._ready = True

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def resident(self) -> int:
        """Bytes of memory it holds; 0 where the system does not say."""
        try:
            with open(f"/proc/{self._process.pid}/statm", "rb") as file:  # noqa: PTH123 - once an image
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def send(self, data: bytes, seconds: float) -> None:
        """Raises _Ended where it does not take them in time, or is gone."""
        view, until = memoryview(data), time.monotonic() + seconds
        with self._watched(self._in, selectors.EVENT_WRITE) as watch:
            while view:
                self._wait(watch, until)
                try:
                    view = view[os.write(self._in.fileno(), view) :]
                except BlockingIOError:
                    continue
                except (OSError, ValueError):
                    self._gone()

    def receive(self, seconds: float) -> tuple[bytes, bytes]:
        """Kind and content of a frame. Raises _Ended where none comes in time, or it is gone."""
        data, most, until = bytearray(), HEAD, time.monotonic() + seconds
        with self._watched(self._out, selectors.EVENT_READ) as watch:
            while len(data) < most:
                self._wait(watch, until)
                try:
                    piece = os.read(self._out.fileno(), most - len(data))
                except BlockingIOError:
                    continue
                except (OSError, ValueError):
                    piece = b""
                if not piece:
                    self._gone()
                data += piece
                if len(data) == HEAD:
                    most = HEAD + int.from_bytes(data[1:HEAD], "big")
        self._listen()
        return bytes(data[:1]), bytes(data[HEAD:])

    def end(self) -> None:
        """Kill it. From any thread, and more than once."""
        self.ended = True
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """`end`, by the last who uses it."""
        self.end()
        for each in (self._in, self._out, self._err):
            each.close()

    def why(self, seconds: float) -> str:
        """Why an image has no answer, in words for people."""
        if self.slow or self._process.returncode == -signal.SIGALRM:
            self.slow = True
            return f"took longer than {seconds:g} s to decode"
        return "the server stopped" if self.stopped else "damaged: its decoder failed"

    def _gone(self) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        if not self.ended:  # by nobody here
            self.end()
        self._listen()
        raise _Ended

    def _wait(self, watch: selectors.BaseSelector, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            ready = {key.fileobj for key, _ in watch.select(left)}
            if self._err in ready:
                self._listen()
                if self._silent:
                    watch.unregister(self._err)
            if ready - {self._err}:
                return
        self.slow = True
        self.end()
        raise _Ended

    @contextlib.contextmanager
    def _watched(self, stream: IO[bytes], event: int) -> Iterator[selectors.BaseSelector]:
        with selectors.DefaultSelector() as watch:
            try:
                watch.register(stream, event)
                if not self._silent:
                    watch.register(self._err, selectors.EVENT_READ)
            except (OSError, ValueError):
                self._gone()
            yield watch

    def _listen(self) -> None:
        """What a decoder prints goes into the log, a few lines an image: an image can make it print without end."""
        for _ in range(_READS):  # and no longer, however fast it prints: there is a deadline
            if self._silent:
                return
            try:
                piece = os.read(self._err.fileno(), 65536)
            except BlockingIOError:
                return
            except (OSError, ValueError):
                piece = b""
            self._silent = not piece
            for line in piece.decode("utf-8", "replace").splitlines():
                self._lines += 1
                if self._lines <= _LINES and line.strip():
                    fields = {"request_id": self._label, "line": line.strip()[:300]}
                    _log.warning("a decoder says", extra={"fields": fields})
