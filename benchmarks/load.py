"""Clients and servers for the serving benchmarks: connections that send images, processes and their memory."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

KIND = {".jpg": "jpeg", ".png": "png"}


@dataclass
class Outcome:
    """What clients saw: seconds of each answered request by status, and what went wrong otherwise."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    without_retry: int = 0
    broken: int = 0
    versions: set[str] = field(default_factory=set)
    took: float = 0.0
    cpu: float = 0.0

    def count(self, status: int) -> int:
        """Requests answered so."""
        return len(self.seconds.get(status, ()))

    def rate(self) -> float:
        """Requests a second that were answered 200."""
        return self.count(200) / self.took if self.took else 0.0

    def quantile(self, share: float) -> float:
        """Milliseconds, of those answered 200."""
        found = self.seconds.get(200)
        return 1000 * float(np.quantile(found, share)) if found else float("nan")


def photos(folder: Path, count: int, seed: int = 0) -> list[tuple[str, bytes]]:
    """(content type, bytes) of ``count`` photographs below ``folder``, the same for one seed."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in KIND)
    chosen = random.Random(seed).sample(files, min(count, len(files)))
    return [(f"image/{KIND[file.suffix.lower()]}", file.read_bytes()) for file in chosen]


async def drive(
    port: int,
    images: list[tuple[str, bytes]],
    clients: int,
    seconds: float | None = None,
    requests: int | None = None,
    patience: float = 60.0,
) -> Outcome:
    """``clients`` connections that send one image after the other, for a time or a number of requests."""
    outcome, began = Outcome(), time.perf_counter()
    left = [requests if requests is not None else 1 << 60]

    async def client(number: int) -> None:
        place = number * 7919
        reader, writer = None, None
        while left[0] > 0 and (seconds is None or time.perf_counter() - began < seconds):
            left[0] -= 1
            place += 1
            kind, data = images[place % len(images)]
            started = time.perf_counter()
            try:
                if writer is None or writer.is_closing():
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
                assert reader is not None
                status, headers = await asyncio.wait_for(ask(reader, writer, kind, data), patience)
            except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
                outcome.broken += 1
                if writer is not None:
                    writer.close()
                reader, writer = None, None
                continue
            outcome.seconds.setdefault(status, []).append(time.perf_counter() - started)
            if status in (429, 503) and "retry-after" not in headers:
                outcome.without_retry += 1
            if "x-model-version" in headers:
                outcome.versions.add(headers["x-model-version"])
            if headers.get("connection") == "close":
                writer.close()
        if writer is not None:
            writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    outcome.took = time.perf_counter() - began
    return outcome


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, data: bytes
) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer to an image."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode("ascii") + data)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }
    if "content-length" in headers:
        await reader.readexactly(int(headers["content-length"]))
    else:
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    return int(lines[0].split()[1]), headers


class Server:
    """A server process that says 'serving at URL' once it is ready."""

    def __init__(self, *words: str) -> None:
        began = time.perf_counter()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        threading.Thread(target=self._share_alike, daemon=True).start()
        for line in self.process.stdout:
            if line.startswith("serving at "):
                self.port = int(line.split()[2].rstrip("/").rpartition(":")[2])
                break
        else:
            self._log.seek(0)
            sys.stderr.buffer.write(self._log.read()[-4000:])
            raise SystemExit(f"{' '.join(words)} did not start")
        self.ready_seconds = time.perf_counter() - began
        # Nobody reads the rest, and it is little.

    def _share_alike(self) -> None:
        for _ in range(60):
            _share_alike(self.process.pid)
            time.sleep(1)

    def get(self, path: str) -> bytes:
        """The answer to a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            data: bytes = answer.read()
        return data

    def ready(self) -> dict[str, object]:
        """/readyz."""
        found: dict[str, object] = json.loads(self.get("/readyz"))
        return found

    def cpu_seconds(self) -> float:
        """Processor time that the process and all that it started have taken so far."""
        return sum(map(_cpu_seconds, family(self.process.pid)))

    def memory(self) -> float:
        """Resident megabytes of the process and all that it started."""
        return sum(resident(each) for each in family(self.process.pid)) / 1e6

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self._log.close()


def embedded(bundle: Path, *words: str) -> Server:
    """`partgcd serve` on a free port."""
    return Server("-m", "partgcd", "serve", str(bundle), "--port", "0", "--log-level", "warning", *words)


def on_ray(bundle: Path, *words: str) -> Server:
    """`partgcd serve --engine ray`."""
    return Server(
        "-m", "partgcd", "serve", str(bundle), "--engine", "ray", "--port", str(free_port()), *words
    )


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def family(root: int) -> list[int]:
    """``root`` and all processes below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for each in found:
        found += parents.get(each, [])
    return found


def resident(process: int) -> int:
    """Bytes of memory that are this process's share; 0 where it is gone."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _share_alike(root: int) -> None:
    """On a machine that others use too, a server in a session of its own gets the share that this one has."""
    try:
        own = Path("/proc/self/autogroup").read_text().split()[-1]
        for each in family(root):
            Path(f"/proc/{each}/autogroup").write_text(own)
    except (OSError, IndexError):
        return
