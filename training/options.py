"""Where and how wide a run is trained, and the environment that Ray reads when it is imported. Imports no Ray."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_TRAIN_COLLECTIVE_WARN_INTERVAL_S": "3600",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Cluster:
    """Where and how wide a run is trained.

    Attributes:
        workers: processes that share every batch.
        gpu: whether each has a GPU of its own.
        address: of a Ray cluster; None starts one on this machine for as long as the run lasts.
        storage: URI or path that checkpoints are copied to.
        max_failures: how often workers or their controller may die.
        verbose: show Ray's own messages.
    """

    workers: int = 1
    gpu: bool = False
    address: str | None = None
    storage: str | None = None
    max_failures: int = 3
    verbose: bool = False

    def record(self) -> dict[str, Any]:
        """What run.json keeps, so that a resumed run goes on as wide as it was."""
        kept = asdict(self)
        del kept["address"], kept["verbose"]
        return kept


def set_environment(own: bool) -> None:
    """Decide for Ray what the user has not decided in the environment. Ray reads most of it at its import.

    Left alone, Ray protects a cluster with a token that it writes to the home folder. A cluster of our own gets
    a token that lives in the environment of its processes alone, the same for as long as this process lives.

    Args:
        own: whether a cluster is to be started here, rather than one joined.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules:
        return  # it knows by now who it is
    if own:
        os.environ.pop("RAY_ADDRESS", None)
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would yield to everything else
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a machine that drains itself: no
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    elif "RAY_AUTH_MODE" not in os.environ:
        given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
        kept = (Path.home() / ".ray" / "auth_token").exists()
        os.environ["RAY_AUTH_MODE"] = "token" if given or kept else "disabled"
