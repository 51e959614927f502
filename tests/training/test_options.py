from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partgcd.training.options import Cluster

CODE = """
import json, os, sys
from partgcd.training.options import set_environment
set_environment(own=%s)
first = dict(os.environ)
set_environment(own=%s)
assert "ray" not in sys.modules
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("RAY_")}))
"""


def environment(own: bool, home: Path, **given: str) -> dict[str, str]:
    """Ray's variables as a new process decides them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    answer = subprocess.run(
        [sys.executable, "-c", CODE % (own, own)], env={**kept, "HOME": str(home), **given},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def test_a_cluster_of_our_own_has_a_token_that_nobody_knows(tmp_path: Path) -> None:
    one, other = (environment(True, tmp_path, RAY_ADDRESS="elsewhere") for _ in range(2))
    assert one["RAY_AUTH_MODE"] == "token" and len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != other["RAY_AUTH_TOKEN"]
    assert "RAY_ADDRESS" not in one and one["RAY_USAGE_STATS_ENABLED"] == "0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "kept", "mode"),
    [
        ({}, False, "disabled"),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "x" * 32}, False, "token"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x" * 32}, True, "disabled"),
    ],
)
def test_a_cluster_of_others_is_joined_as_its_owner_says(
    tmp_path: Path, given: dict[str, str], kept: bool, mode: str
) -> None:
    if kept:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x" * 32)
    assert environment(False, tmp_path, **given)["RAY_AUTH_MODE"] == mode


def test_the_record_of_a_run_names_no_place() -> None:
    cluster = Cluster(4, True, "10.0.0.1:6379", "s3://x", 7, True)
    assert cluster.record() == {"workers": 4, "gpu": True, "storage": "s3://x", "max_failures": 7}
    assert Cluster(**cluster.record()) == Cluster(4, True, None, "s3://x", 7)
