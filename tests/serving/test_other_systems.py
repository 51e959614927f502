"""Classifying and serving on a system without what only Unix has: its modules, flags, signals and errors' names."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from partgcd.config.tree import DataSettings
from partgcd.decoding.begun import BrokenImage
from partgcd.serving.decode_budget import Large, NoMemory
from partgcd.serving.decoders_inside import InsideDecoders
from partgcd.serving.settings import Limits

# As Windows has it, but for paths, sockets and files that can't be replaced while they are open.
BARE = """
import errno, os, shutil, signal, subprocess, sys, types
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in (
    (os, "O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY pread pwrite geteuid getuid sched_getaffinity sysconf"
         " set_blocking killpg"),
    (signal, "setitimer ITIMER_REAL SIGALRM SIGKILL SIGHUP SIGUSR1"),
    (errno, "EREMOTEIO EUCLEAN"),
):
    for name in names.split():
        delattr(module, name)
shutil._use_fd_functions = False
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda handle, mode, count: None)
"""

MAIN = """
from partgcd.cli.main import main
sys.argv = ["partgcd", *sys.argv[1:]]
main()
"""


def words(script: str, *more: object) -> list[str]:
    return [sys.executable, "-c", BARE + script, *map(str, more)]


@pytest.fixture
def photo(tmp_path: Path, photos: dict[str, bytes]) -> Path:
    file = tmp_path / "green.png"
    file.write_bytes(photos["green"])
    return file


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_photo_is_classified(bundle: Path, photo: Path) -> None:
    done = run(words(MAIN, "classify", bundle, photo, "--format", "jsonl"))
    assert done.returncode == 0, done.stderr
    assert "green" in done.stdout


def test_a_photo_is_served_and_collected(bundle: Path, photo: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    log = (tmp_path / "log").open("w")
    command = words(MAIN, "serve", bundle, "--port", "0", "--collect", tmp_path / "inbox")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address, (tmp_path / "log").read_text()
            asked = run(
                [sys.executable, "-m", "partgcd", "ask", address[0], str(photo), str(tmp_path / "broken.png")]
            )
        finally:
            server.terminate()
    assert "green" in asked.stdout, asked
    assert server.returncode == 0
    assert "no deadline ends a slow one" in (tmp_path / "log").read_text()
    assert len((tmp_path / "inbox" / "inbox.jsonl").read_text().splitlines()) == 1


def test_what_is_taken_away_is_gone() -> None:
    assert run(words("import fcntl")).returncode != 0 and run(words("os.pread")).returncode != 0


def test_decoding_inside_has_the_bounds_of_headers(photos: dict[str, bytes]) -> None:
    settings, large = DataSettings.model_validate({"image_size": 32}), io.BytesIO()
    Image.new("RGB", (2000, 2000)).save(large, "png")
    decoders = InsideDecoders(Limits.model_validate({"max_decode_mb": 10}))
    assert decoders.view(photos["green"], settings).shape == (3, 32, 32)
    with pytest.raises(Large):
        decoders.view(photos["green"], settings, most=1)
    with pytest.raises(BrokenImage, match="too much memory"):
        decoders.view(large.getvalue(), settings)
    with pytest.raises(BrokenImage):
        decoders.view(photos["green"][:-40], settings)
    with decoders._budget.held(10_000_000, 1e9, 0.0), pytest.raises(NoMemory):
        decoders.view(photos["green"], settings, wait=0.0)
