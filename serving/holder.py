"""The model that answers. A new one is loaded and checked aside; then one reference moves, and nobody waits."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from partgcd.config.errors import UserError
from partgcd.export.check import check_bundle
from partgcd.export.predictor import Predictor
from partgcd.serving.sources import Source, Wanted

_LONGEST_PAUSE = 60.0
_log = logging.getLogger("partgcd.serving")


@dataclass(frozen=True)
class Refused:
    """A candidate that is not served, and why. ``wanted`` is None where the source itself can't be read."""

    wanted: Wanted | None
    error: str
    since: str
    pause: float
    again: float


class ModelHolder:
    """Holds the predictor that answers, and follows its source.

    Attributes:
        predictors: of one model, as `load` gives them; empty until a first one was loaded. Take the reference once
            a request.
        refused: the candidate that was not taken; None while all is well.
        loaded_at: when ``predictor`` began to answer.
        on_change: called with what happened to a candidate: 'taken', 'refused', or 'gone' after it was refused.

    Args:
        load: gives at least one predictor of a bundle; several differ in how they use the machine.
    """

    def __init__(self, source: Source | None, load: Callable[[Path], tuple[Predictor, ...]]) -> None:
        self.source = source
        self.predictors: tuple[Predictor, ...] = ()
        self.refused: Refused | None = None
        self.loaded_at = ""
        self.on_change: Callable[[str], None] = lambda what: None
        self._load = load
        self._bare: tuple[Predictor, ...] = ()
        self._served: Wanted | None = None
        self._replaced = False
        self._one = threading.Lock()

    @property
    def predictor(self) -> Predictor | None:
        """The first of ``predictors``."""
        return next(iter(self.predictors), None)

    def start(self) -> None:
        """Load the first model. Raises UserError where it can't be served."""
        with self._one:
            assert self.source is not None
            self._take(self.source, self.source.current())

    def refresh(self, wait: float = -1) -> None:
        """Look at the source once and take what is new there; what can't be taken is put into ``refused``.

        Never raises. Blocks while a model is loaded.

        Args:
            wait: seconds to wait for another thread that looks already; -1 is as long as it takes.
        """
        if not self._one.acquire(timeout=wait):
            return
        try:
            self._look()
        finally:
            self._one.release()

    async def follow(self, seconds: float) -> None:
        """`refresh` every so often until cancelled."""
        while True:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(seconds)

    def replace_source(self, source: Source) -> None:
        """Serve from another source from the next look on; the model of now answers until then."""
        with self._one:
            self.source = source

    def _look(self) -> None:
        source, wanted = self.source, None
        if source is None:
            return
        try:
            wanted = source.current()
            if wanted == self._served:
                if self._replaced:  # a look later, when nobody is answered by the old model any more
                    self._replaced = False
                    _give_back_memory()
                if self.refused is not None:
                    self.refused = None
                    self.on_change("gone")
                return
            if self.refused and self.refused.wanted == wanted and time.monotonic() < self.refused.again:
                return
            self._take(source, wanted)
        except Exception as error:  # whatever it is, the old model goes on
            self.refuse(wanted, error)

    def _take(self, source: Source, wanted: Wanted) -> None:
        began = time.monotonic()
        bare = self._bare
        new = self._served is None or wanted.version != self._served.version
        if new:
            if bare:  # the first one was checked when it was made; later ones come unwatched
                check_bundle(wanted.path)
            bare = self._load(wanted.path)
            if any(each.version != wanted.version for each in bare):
                raise UserError(f"'{wanted.path}' changed while it was read", 1)
            for each in bare:
                _warm(each)
        dressed = tuple(source.dress(each) for each in bare)
        self._bare, self._served, self.predictors, self.refused = bare, wanted, dressed, None
        self.loaded_at, self._replaced = _now(), new
        fields = {"model_version": wanted.version, "seconds": round(time.monotonic() - began, 3)}
        _log.info("model taken" if new else "class names taken", extra={"fields": fields})
        self.on_change("taken")

    def refuse(self, wanted: Wanted | None, error: Exception) -> None:
        """Note that ``wanted`` is not served, and why."""
        told = " ".join(str(error).split())[:500] or type(error).__name__
        before = self.refused
        repeated = before is not None and before.wanted == wanted and before.error == told
        pause = min(2 * before.pause, _LONGEST_PAUSE) if before is not None and repeated else 1.0
        since = before.since if before is not None and repeated else _now()
        self.refused = Refused(wanted, told, since, pause, time.monotonic() + pause)
        if not repeated:
            fields = {"model_version": wanted.version if wanted else None, "error": told}
            _log.error("model refused, the old one goes on", extra={"fields": fields})
            self.on_change("refused")


def _warm(predictor: Predictor) -> None:
    """The first run of a graph allocates what later ones need."""
    size = predictor.image_size
    predictor.answer(np.zeros((1, 3, size, size), dtype=np.uint8))


def _give_back_memory() -> None:
    """The C library keeps what a model held when it was freed: after a few changes, several times a model's size."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
