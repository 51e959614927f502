from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.disk import lock
from partgcd.disk.lock import BUSY, claimed, locked

HOLD = """
import sys, time
from pathlib import Path
from partgcd.disk.lock import locked
with locked(Path(sys.argv[1]), "holding"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "counting"):
        refused = pytest.raises(UserError, match=f"process {os.getpid()} on .* is busy with counting")
        with refused as caught, locked(tmp_path / "lock", "waiting"):
            pass
        assert caught.value.code == BUSY == 75
    with locked(tmp_path / "lock", "again"):
        pass


def test_a_killed_holder_leaves_a_free_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} "), locked(tmp_path / "lock", "taking"):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path / "lock", "taking"):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()


def test_waiting_ends_when_the_lock_is_free_or_the_time_is_over(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    late = locked(tmp_path / "lock", "second", 3.0, lambda: now[0], sleep)
    with locked(tmp_path / "lock", "first"), pytest.raises(UserError), late:
        pass
    assert 3.0 <= now[0] < 3.2


def test_a_folder_is_one_process_at_a_time_and_shows_nothing_of_it(tmp_path: Path) -> None:
    with claimed(tmp_path / "a/b", "writes") as known:
        assert known
        again = claimed(tmp_path / "a/b", "writes")
        with pytest.raises(UserError, match=r"another process writes in '.*a/b'") as caught, again:
            pass
        assert caught.value.code == BUSY
    with claimed(tmp_path / "a/b", "writes"):
        assert list((tmp_path / "a/b").iterdir()) == []


def test_a_folder_that_was_renamed_while_it_was_waited_for_is_not_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def late(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / "a").rename(tmp_path / "b")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with claimed(tmp_path / "a", "writes"), claimed(tmp_path / "b", "writes"):
        assert (tmp_path / "a").is_dir()


def test_a_disk_without_locks_is_told_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", never)
    with claimed(tmp_path / "a", "writes") as known:
        assert not known
    refused = pytest.raises(UserError, match="knows no file locks: put that folder on a local disk")
    with refused as caught, locked(tmp_path / "lock", "x"):
        pass
    assert caught.value.code == 1


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "loop"])
def test_what_can_be_no_folder_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError), claimed(tmp_path / name, "writes"):
        pass
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UserError), claimed(tmp_path / "link", "writes", through_link=False):
        pass


def test_an_unsigned_lock_and_a_link_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("{not json")
    with locked(tmp_path / "lock", "x"):
        (tmp_path / "lock").write_text("")
        with pytest.raises(UserError, match="another process works"), locked(tmp_path / "lock", "y"):
            pass
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError), locked(tmp_path / "link", "z"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_is_waited_for(tmp_path: Path) -> None:
    first = claimed(tmp_path / "a", "writes")
    first.__enter__()
    freed = threading.Timer(0.2, first.__exit__, (None, None, None))
    freed.start()
    with claimed(tmp_path / "a", "reads", wait=20.0) as known:
        assert known
    freed.join()


class Msvcrt:
    """Windows' locks on bytes, as far as the lock takes them: mandatory, one holder, gone with the handle."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert mode == self.LK_NBLCK and count == 1
        place = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if place in self.held and self.held[place] != handle:
            raise PermissionError(errno.EACCES, "Permission denied")
        self.held[place] = handle


def test_windows_locks_a_byte_that_nobody_reads_and_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Msvcrt()
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", windows)
    with locked(tmp_path / "lock", "counting"):
        with pytest.raises(UserError, match="busy with counting"), locked(tmp_path / "lock", "waiting"):
            pass
        (place,) = windows.held
        assert place[1] > 1_000_000 > (tmp_path / "lock").stat().st_size
    with claimed(tmp_path / "a", "writes") as known, claimed(tmp_path / "a", "writes") as again:
        assert not known and not again and (tmp_path / "a").is_dir()
