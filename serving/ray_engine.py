"""``partgcd serve --engine ray``: Ray Serve on this machine, or on the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.serving.ray_config import write_yaml
from partgcd.serving.settings import KEY_VARIABLE, ServeSettings

START_S = 180.0
_RUN = "import sys; from ray.serve.scripts import cli; sys.argv[0] = 'serve'; cli()"


def serve_on_ray(config: dict[str, Any], settings: ServeSettings, ready: Callable[[str], None]) -> None:
    """Start Serve with ``config`` and stay until SIGTERM or SIGINT.

    Args:
        ready: called with the address once requests are answered.

    Raises:
        UserError: Ray is not installed, or does not come up.
    """
    try:
        import ray  # noqa: F401 - to fail here, in one line
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'partgcd[cpu]' (or 'partgcd[gpu]')", 1) from error
    stopping: list[int] = []
    kept = {each: signal.signal(each, lambda number, _: stopping.append(number))
            for each in (signal.SIGTERM, signal.SIGINT)}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="partgcd-serve-") as folder:
        file = Path(folder) / "serve.yaml"
        write_yaml(file, config)
        child = subprocess.Popen(
            [sys.executable, "-c", _RUN, "run", *_where(), str(file)],
            env=environment(settings), stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_ready(child, config["http_options"], stopping, ready)
            while not stopping and child.poll() is None:
                time.sleep(0.2)
            if not stopping:
                raise UserError("Ray Serve ended by itself; its messages above say why", 1)
        finally:
            _stop(child)
            for each, handler in kept.items():
                signal.signal(each, handler)


def environment(settings: ServeSettings) -> dict[str, str]:
    """What Ray's processes see.

    A Ray of our own asks its clients for a token that only they know: whoever reaches its port runs code. The token
    stays in the environment; left to itself, Ray would write one into the user's home.
    """
    found = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    if "RAY_AUTH_MODE" not in found and "RAY_ADDRESS" not in found:
        found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if settings.api_key is not None:
        found[KEY_VARIABLE] = settings.api_key.get_secret_value()
    return found


def _where() -> list[str]:
    """A Ray of our own, not whichever somebody else runs on this machine."""
    return [] if "RAY_ADDRESS" in os.environ else ["--address", "local"]


def _wait_ready(
    child: subprocess.Popen[bytes], http: dict[str, Any], stopping: list[int], ready: Callable[[str], None]
) -> None:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http["host"], http["host"])
    address = f"http://[{host}]:{http['port']}" if ":" in host else f"http://{host}:{http['port']}"
    deadline = time.monotonic() + START_S
    while not stopping:
        if child.poll() is not None:
            raise UserError("Ray Serve did not start; its messages above say why", 1)
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5):
                ready(address)
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise UserError(
                    f"Ray Serve was not ready within {START_S:g} s; see its messages above", 1
                ) from None
            time.sleep(0.2)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Let Serve end as after Ctrl-C; what is left of its session is killed."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(45)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
