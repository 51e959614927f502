"""Weights from the model hub, through timm; a hub that cannot be reached is one clear line, quickly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from partgcd.config.errors import UserError

_PATIENCE_S = 5.0


def three_ways_out(name: str, reason: str) -> UserError:
    """The error for weights that the hub did not give: one line, three remedies."""
    return UserError(
        f"the weights of {name} could not be loaded from the model hub ({reason}). Three ways out: "
        "give a file with --weights FILE; or run `partgcd weights fetch offline/vit-small` and use the "
        "backbone offline/vit-small; or, for tests and timing only, --random-weights",
        code=1,
    )


def limit_waiting() -> None:
    """Ask the hub's client not to wait long for an answer. It reads this once, when timm first imports it."""
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(int(_PATIENCE_S)))


def load_from_hub(name: str, **options: Any) -> Any:
    """A timm model with its pretrained weights (from the hub or its local cache), without a classifier.

    ``options`` go to ``timm.create_model``. Raises UserError with the three ways out when no weights come.
    """
    import timm

    reason = _unreachable()
    try:
        with _cache_only(reason is not None):
            return timm.create_model(name, pretrained=True, num_classes=0, **options)
    # The name and options were checked before, so whatever fails here is about the weights; the hub's client
    # changes its exception types between versions.
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise three_ways_out(name, reason or (lines[0][:160] if lines else type(error).__name__)) from error


def _unreachable() -> str | None:
    """Why the hub cannot be asked, None if it can: its client alone would retry for about a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and they are not in its cache"
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE_S)
    except Exception:  # any failure, of whichever HTTP client it uses, means: not reachable
        return "it cannot be reached from this machine"
    return None


@contextmanager
def _cache_only(active: bool) -> Iterator[None]:
    """Let the hub's client answer from its cache at once instead of retrying the network."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or active
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
