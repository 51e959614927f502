from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.continual.lock import BUSY, locked

HOLD = """
import sys, time
from pathlib import Path
from partgcd.continual.lock import locked
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
