"""One small Ray cluster for all tests here, in processes of its own, and commands that train on it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

TINY = (
    "--backbone", "test_vit", "--random-weights", "--image-size", "160", "--threads", "1", "--batch-size", "9",
    "--precision", "fp32", "--classes", "4", "--view-pool", "2", "--set", "loss.projector_hidden=16",
    "--set", "loss.projector_out=8", "--set", "parts.count=3", "--set", "parts.projection=8",
    "--set", "train.pool_refresh=0.5",
)  # fmt: skip


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def processes() -> dict[int, tuple[int, str]]:
    """Parent and title of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found[int(entry.name)] = (parent, title)
    return found


def below(root: int, title: str) -> list[int]:
    """Processes below ``root`` whose title begins so."""
    found = processes()
    family = {root}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return sorted(pid for pid in family if pid in found and found[pid][1].startswith(title))


@dataclass
class Ray:
    """A cluster: where it is, and what a command needs in its environment to join."""

    process: subprocess.Popen[str]
    address: str
    jobs: str
    environment: dict[str, str]
    home: Path
    tiny: tuple[str, ...] = TINY
    opened: list[subprocess.Popen[str]] = field(default_factory=list)

    def begin(self, *words: object, cwd: Path) -> subprocess.Popen[str]:
        """Start a command line."""
        process = subprocess.Popen(
            [sys.executable, "-m", "partgcd", *map(str, words)], cwd=cwd, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.opened.append(process)
        return process

    def end(self, process: subprocess.Popen[str], limit: float = 600.0) -> Answer:
        """Wait for it."""
        out, err = process.communicate(timeout=limit)
        return Answer(process.returncode, out, err)

    def train(self, *words: object, cwd: Path) -> Answer:
        """A whole ``partgcd train`` on the cluster, with two workers."""
        return self.end(self.begin_training(*words, cwd=cwd))

    def begin_training(self, *words: object, cwd: Path) -> subprocess.Popen[str]:
        """Start one."""
        return self.begin("train", "--address", self.address, *words, cwd=cwd)

    def alive(self, title: str) -> list[int]:
        """Ids of Ray's living processes of a title: RayTrainWorker, TrainController."""
        return below(self.process.pid, f"ray::{title}")

    @staticmethod
    def until(what: Callable[[], bool], limit: float = 300.0) -> None:
        """Wait until something is so."""
        end = time.monotonic() + limit
        while not what():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.05)

    @staticmethod
    def epochs(run: Path) -> int:
        """Epochs that a run has finished."""
        lines = run / "metrics.jsonl"
        return len(lines.read_text().splitlines()) if lines.exists() else 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    pytest.importorskip("ray")
    home = tmp_path_factory.mktemp("home")
    scratch = tempfile.mkdtemp(prefix="pgcd-t-")  # short: sockets lie in it
    port, jobs = _free_port(), _free_port()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib")),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    log = (Path(scratch) / "ray.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
         "--node-ip-address=127.0.0.1", f"--dashboard-port={jobs}", "--include-dashboard=true",
         f"--dashboard-agent-listen-port={_free_port()}", f"--ray-client-server-port={_free_port()}",
         "--num-cpus=3", f"--temp-dir={scratch}", f"--object-store-memory={80 * 2**20}", "--disable-usage-stats"],
        env=environment, stdout=log, stderr=log, text=True, start_new_session=True,
    )  # fmt: skip
    cluster = Ray(process, f"127.0.0.1:{port}", f"http://127.0.0.1:{jobs}", environment, home)
    try:
        cluster.until(
            lambda: (
                "Ray runtime started" in (Path(scratch) / "ray.log").read_text() or process.poll() is not None
            )
        )
        assert process.poll() is None, (Path(scratch) / "ray.log").read_text()
        yield cluster
    finally:
        for each in cluster.opened:
            each.kill()
        family = below(process.pid, "")
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two labelled classes of 6, and 24 unlabelled images of four colours."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    colours = np.array([[200, 60, 50], [50, 80, 200], [60, 180, 70], [210, 180, 60]])
    for number in range(36):
        kind = number % 2 if number < 12 else number % 4
        noise = draw.normal(0, 25, (48, 48, 3)) + 30 * np.sin(np.arange(48) * (kind + 1) / 3)[:, None, None]
        name = ("ash", "birch")[kind] if number < 12 else "unlabelled"
        (folder / name).mkdir(exist_ok=True)
        Image.fromarray((colours[kind] + noise).clip(0, 255).astype(np.uint8)).save(
            folder / name / f"{number}.png"
        )
    return folder


@pytest.fixture(scope="session")
def inline(ray: Ray, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that two workers are compared with, by one process without Ray. Not to be changed."""
    folder = tmp_path_factory.mktemp("inline")
    words = ("train", "--engine", "inline", *TINY, "--data", pictures, "--epochs", "12", "--out", "run")
    answer = ray.end(ray.begin(*words, cwd=folder))
    assert answer.code == 0, answer.err
    return folder / "run"
