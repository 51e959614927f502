"""What was tried with which photos, so that nothing is done twice and a schedule knows what has come since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.continual.annotations import Annotations
from partgcd.continual.intake import Arrivals, look_through
from partgcd.disk.files import read_json, write_json
from partgcd.export.bundle import EXEMPLARS, open_bundle, read_tensors
from partgcd.registry.versions import Registry, Version

ATTEMPTS = "attempts.json"

_KEPT = 200


def attempt_digest(requested: list[object], champion: Version, arrivals: Arrivals, registry: Registry) -> str:
    """Equal for two calls that would do the same: champion, photos, classes' log, and what was asked for."""
    asked_for = [champion.record["bundle"], arrivals.digest(), registry.log_digest(), requested]
    return hashlib.sha256(json.dumps(asked_for, sort_keys=True, default=str).encode()).hexdigest()


def read_attempts(registry: Registry) -> dict[str, dict[str, Any]]:
    """Outcomes by digest, oldest first."""
    file = registry.path / ATTEMPTS
    found: dict[str, dict[str, Any]] = read_json(file) if file.exists() else {}
    return found


def remember(registry: Registry, attempt: str, outcome: Mapping[str, Any]) -> None:
    """Keep what came of an attempt.

    Args:
        outcome: ``code``, ``summary`` and ``version``; ``champion``, the id of the bundle that looked at ``photos`` new
            photos; ``said``, the digest of what a person said beside them, of ``labelled`` images.
    """
    kept = read_attempts(registry)
    kept.pop(attempt, None)
    kept[attempt] = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **outcome}
    write_json(registry.path / ATTEMPTS, dict(list(kept.items())[-_KEPT:]))


def new_since(registry: Registry, folder: Path, annotations: Annotations | None = None) -> int:
    """How many images have come that were not looked at, which is what a schedule counts.

    Photos of ``folder`` that neither the champion nor the last look has seen, and labelled ones beyond those of the
    last look, if it did not hear the same.
    """
    bundle = open_bundle(registry.resolve("champion"))
    found = read_tensors(bundle, EXEMPLARS)
    arrivals = look_through(folder, found.get("seen", found["keys"]))
    attempts = list(read_attempts(registry).values())
    looked = [one for one in attempts if one["champion"] == bundle.id]
    photos = max(len(arrivals.keys) - (int(looked[-1]["photos"]) if looked else 0), 0)
    if annotations is None or not annotations.images:
        return photos
    words = annotations.digest()
    if any(one.get("annotations") == words for one in attempts):
        return photos
    given_before = int(attempts[-1].get("labelled", 0)) if attempts else 0
    return photos + max(annotations.images - given_before, 1)
