"""Whole runs of the command line, cheap enough to kill one twenty times.

Importing torch takes longer than a tiny run. One process does it once and forks a child for every command,
before any thread of torch's runs; the child is then a process like any other, with signals and exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from partgcd.backbone.weights import weights_status

_SERVER = '''
import gc, json, os, re, signal, sys, time, traceback

import numpy, pyarrow.parquet, scipy.optimize, sklearn.cluster, sklearn.metrics, timm, torch
import matplotlib.figure, matplotlib.backends.backend_svg
try:
    import faiss
except ImportError:
    pass
import partgcd.cli.main, partgcd.discovery.discover, partgcd.discovery.summary, partgcd.report.build

WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def below(path, folder):
    return isinstance(path, (str, bytes)) and os.path.abspath(os.fsdecode(path)).startswith(folder)


def watch(folder, fatal):
    """Count the changes of files below folder; die right before one of them."""
    pattern, later = fatal or ("", -1)
    seen, found = [0], [None]

    def hook(event, values):
        writing = event in WRITES or (event == "open" and values[2] & (os.O_WRONLY | os.O_RDWR))
        if writing and below(values[0], folder):
            if found[0] is None and re.search(pattern, os.fsdecode(values[0])[len(folder):]):
                found[0] = seen[0]
            if found[0] is not None and seen[0] - found[0] == later:
                os.kill(os.getpid(), signal.SIGKILL)
            seen[0] += 1

    sys.addaudithook(hook)
    return seen


def child(order):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(order["cwd"])
    sys.argv = ["partgcd", *order["argv"]]
    seen = watch(order["watched"], order["fatal"]) if order["watched"] else [0]
    code = 0
    try:
        partgcd.cli.main.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if order["watched"]:
        with open(order["stdout"] + ".writes", "w") as file:
            file.write(str(seen[0]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # tearing torch down would take longer than the run


gc.collect()
gc.freeze()  # a collection in the child would copy every page
for line in sys.stdin:
    order = json.loads(line)
    open(order["stderr"], "w").close()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        child(order)
    waiting, ended = order["signal"] is not None, 0
    while not ended:
        past = time.monotonic() - began
        if waiting and past >= order["delay"]:
            if re.search(order["until"], open(order["stderr"]).read(), re.DOTALL):
                os.kill(pid, order["signal"])
                waiting = False
        if past > order["limit"]:
            os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0 if ended else 0.001)
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps({"code": code, "seconds": time.monotonic() - began}), flush=True)
'''

TINY = [
    *("--backbone", "test_vit", "--random-weights", "--image-size", "160", "--threads", "1", "--epochs", "3"),
    *("--batch-size", "8", "--precision", "fp32", "--set", "loss.projector_hidden=16"),
    *("--set", "loss.projector_out=8", "--set", "parts.count=3", "--set", "parts.projection=8"),
]


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (minus the signal that killed it), seconds, what it printed."""

    code: int
    seconds: float
    out: str
    err: str
    writes: int


class CommandLine:
    """Runs ``partgcd`` commands in children of one process that has the imports behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        script = folder / "server.py"
        script.write_text(_SERVER)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        self._log = (folder / "server.log").open("w+")
        self._server = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment,
        )  # fmt: skip

    def __call__(
        self,
        *argv: str | Path,
        send: signal.Signals | None = None,
        after: float = 0.0,
        until: str = "",
        watched: Path | None = None,
        fatal: tuple[str, int] | None = None,
        cwd: Path | None = None,
        limit: float = 120.0,
    ) -> Ended:
        """Run one command to its end.

        send: a signal sent once ``after`` seconds are over and ``until`` matches what stands on stderr.
        watched: count changes of files below this folder: opened to write, made, renamed, removed.
        fatal: (pattern, n): die right before the n-th change after the first whose path matches.
        limit: seconds after which the command is killed.
        """
        files = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        order = {
            **files,
            "argv": [str(each) for each in argv],
            "cwd": str(cwd or self._folder),
            "signal": send,
            "delay": after,
            "until": until,
            "watched": str(watched) if watched else "",
            "fatal": fatal,
            "limit": limit,
        }
        writes = Path(files["stdout"] + ".writes")
        writes.unlink(missing_ok=True)
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the forking process died: {self._log.read()[-2000:]}")
        told: dict[str, Any] = json.loads(answer)
        out, err = (Path(files[name]).read_text("utf-8", "replace") for name in ("stdout", "stderr"))
        counted = int(writes.read_text()) if writes.exists() else 0
        return Ended(told["code"], told["seconds"], out, err, counted)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._log.close()


@pytest.fixture(scope="session")
def partgcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Runs a command line: ``partgcd("train", "--data", folder, ...)``."""
    command = CommandLine(tmp_path_factory.mktemp("commands"))
    yield command
    command.close()


@pytest.fixture(scope="session")
def photo_sets() -> Path:
    """The folder of data sets of photographs; the offline weights are at hand."""
    folder = os.environ.get("PARTGCD_PHOTOS")
    if not folder:
        pytest.skip("PARTGCD_PHOTOS does not name a folder of photographs")
    if weights_status("offline/vit-small") is None:
        pytest.skip("the weights are not here: partgcd weights fetch offline/vit-small")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Flags of a training run that takes a second or two."""
    return list(TINY)


_KINDS = [
    ("red disc", (205, 35, 40), "disc"),
    ("blue box", (40, 60, 210), "box"),
    ("green bar", (30, 190, 60), "bar"),
    ("ochre disc", (220, 180, 30), "disc"),
]


def draw(kind: int, seed: int) -> Image.Image:
    """A picture of one of four classes that differ in colour and shape."""
    rng = np.random.default_rng([kind, seed])
    _, colour, shape = _KINDS[kind]
    image = Image.new("RGB", (104, 92), tuple(int(value) for value in rng.integers(90, 140, 3)))
    x, y = (int(value) for value in rng.integers(4, 34, 2))
    pen = ImageDraw.Draw(image)
    if shape == "disc":
        pen.ellipse((x, y, x + 50, y + 50), fill=colour)
    else:
        pen.rectangle((x, y, x + 55, y + (45 if shape == "box" else 12)), fill=colour)
    return image


@pytest.fixture(scope="session")
def picture_folder() -> Callable[..., Path]:
    """Writes a folder of pictures and gives it back.

    kinds: how many classes; each: pictures a class; labelled: how many of them lie in a folder named after
    their class, by class (classes beyond it have none); the others lie in ``rest`` (the root if empty).
    """

    def write(folder: Path, kinds: int, each: int, labelled: tuple[int, ...] = (), rest: str = "") -> Path:
        for kind in range(kinds):
            name = _KINDS[kind][0]
            known = labelled[kind] if kind < len(labelled) else 0
            for number in range(each):
                place = folder / (name if number < known else rest)
                place.mkdir(parents=True, exist_ok=True)
                draw(kind, number).save(place / f"{name} {number}.png")
        return folder

    return write


@contextmanager
def _serving(registry: Path, *words: object) -> Iterator[int]:
    """A server of the registry's champion; its port."""
    command = [sys.executable, "-m", "partgcd", "serve", str(registry), "--port", "0", *map(str, words)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        told = server.stdout.readline()
        assert told.startswith("serving at http://127.0.0.1:"), told
        yield int(told.split()[2].rpartition(":")[2])
        assert server.poll() is None, "the server ended by itself"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[int]]:
    """``with serving(registry, *words) as port``: a server beside the block."""
    return _serving
