"""A bundle's folder while it is written: one process has it, and nothing is left of it that is not whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.disk import lock
from partgcd.export.bundle import building

WRITES = """
import sys, time
from pathlib import Path
from partgcd.cli import main
from partgcd.export.bundle import building
def write():
    with building(Path(sys.argv[1])) as folder:
        (folder / "model.onnx").write_bytes(b"half")
        (folder / "thumbnails").mkdir()
        print("writing", flush=True)
        time.sleep(60)
main._run = write
main.main()
"""


def writing(out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_a_line_and_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    process = writing(tmp_path / "out")
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert told.startswith("partgcd: ") and told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_is_removed_by_the_next_and_a_living_one_is_waited_for(tmp_path: Path) -> None:
    process = writing(tmp_path / "out")
    with (
        pytest.raises(UserError, match="another process writes a bundle") as caught,
        building(tmp_path / "out"),
    ):
        pytest.fail("two at once")
    assert caught.value.code == 75
    assert (tmp_path / ".out.part" / "model.onnx").read_bytes() == b"half"
    process.kill()
    process.communicate()
    with building(tmp_path / "out") as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out/whole").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo").write_text("x")
    (tmp_path / ".out.part").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError), building(tmp_path / "out"):
        pass
    assert (tmp_path / "mine" / "photo").exists()


def test_on_a_disk_without_locks_two_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(handle: int, how: int) -> None:
        raise OSError(lock.errno.ENOLCK, os.strerror(lock.errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", never)
    with building(tmp_path / "out") as one:
        second = building(tmp_path / "out")
        other = second.__enter__()
        assert one != other
        (one / "a").write_text("one")
    with pytest.raises(UserError, match="never overwritten"):
        second.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
