"""What was tried with which photos, so that nothing is done twice and a schedule knows what has come since."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.continual.intake import Arrivals, look_through
from partgcd.continual.registry import Registry, Version
from partgcd.export.bundle import EXEMPLARS, open_bundle, read_tensors
from partgcd.run.files import read_json, write_json

ATTEMPTS = "attempts.json"

_KEPT = 200


def attempt_digest(asked: list[object], champion: Version, arrivals: Arrivals, registry: Registry) -> str:
    """Equal for two calls that would do the same: champion, photos, classes' log, and what was asked for."""
    told = [champion.record["bundle"], arrivals.digest(), registry.log_digest(), asked]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def read_attempts(registry: Registry) -> dict[str, dict[str, Any]]:
    """Outcomes by digest, oldest first."""
    file = registry.path / ATTEMPTS
    found: dict[str, dict[str, Any]] = read_json(file) if file.exists() else {}
    return found


def remember(
    registry: Registry,
    attempt: str,
    code: int,
    told: str,
    version: int | None,
    champion: str,
    photos: int,
    said: str = "",
) -> None:
    """Keep what came of an attempt.

    Args:
        champion: id of the bundle that looked at the ``photos`` new photos.
        said: digest of what a person said beside them.
    """
    kept = read_attempts(registry)
    kept.pop(attempt, None)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    kept[attempt] = {
        "time": time, "code": code, "told": told, "version": version, "champion": champion, "photos": photos,
        "said": said,
    }  # fmt: skip
    write_json(registry.path / ATTEMPTS, dict(list(kept.items())[-_KEPT:]))


def new_since(registry: Registry, folder: Path) -> int:
    """How many photos of ``folder`` neither the champion nor the last look has seen; what a schedule counts."""
    bundle = open_bundle(registry.resolve("champion"))
    found = read_tensors(bundle, EXEMPLARS)
    arrivals = look_through(folder, found.get("seen", found["keys"]))
    looked = [one for one in read_attempts(registry).values() if one["champion"] == bundle.id]
    return max(len(arrivals.keys) - (int(looked[-1]["photos"]) if looked else 0), 0)
