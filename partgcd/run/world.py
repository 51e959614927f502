"""What a fit loop may ask of the place it runs in.

`World` is the whole list; the fit loop knows nothing else of processes, devices, signals or folders.
`SoloWorld` answers it for one process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State, load_latest, save_checkpoint
from partgcd.run.folder import RunFolder

Module = TypeVar("Module", bound=nn.Module)


class Interrupted(Exception):
    """The fit stopped because it was asked to; its state is saved."""


class World(Protocol):
    """Rank, device, collectives, and where reports and checkpoints go."""

    rank: int
    size: int
    device: torch.device
    folder: RunFolder

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over ranks."""

    def all_gather(self, value: Tensor) -> Tensor:
        """All ranks' rows, [sum of B, ...] in rank order; gradient flows to this rank's rows."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Each rank's value, in rank order."""

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's value."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def wrap(self, model: Module) -> Module:
        """The model with its gradients averaged over ranks."""

    def report(self, metrics: dict[str, Any]) -> None:
        """Record an epoch's line."""

    def progress(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Tell a person how far ``phase`` is."""

    def save(self, state: State, settings: Settings) -> None:
        """Keep a checkpoint."""

    def latest(self, settings: Settings) -> State | None:
        """The newest checkpoint of this run."""

    def should_stop(self) -> bool:
        """Whether somebody asked the run to stop at the next safe moment."""


class SoloWorld:
    """One process: collectives are identities, Ctrl-C and SIGTERM ask for a stop."""

    rank = 0
    size = 1

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        on_progress: Callable[[str, int, int, str], None] | None = None,
        on_report: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.folder = folder
        self.device = device
        self._on_progress = on_progress
        self._on_report = on_report
        self._stop = threading.Event()

    def all_reduce(self, value: Tensor) -> Tensor:
        return value

    def all_gather(self, value: Tensor) -> Tensor:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Tensor) -> Tensor:
        return value

    def barrier(self) -> None:
        return None

    def wrap(self, model: Module) -> Module:
        return model

    def report(self, metrics: dict[str, Any]) -> None:
        self.folder.append_metrics(metrics)
        if self._on_report is not None:
            self._on_report(metrics)

    def progress(self, phase: str, done: int, total: int, note: str = "") -> None:
        if self._on_progress is not None:
            self._on_progress(phase, done, total, note)

    def save(self, state: State, settings: Settings) -> None:
        save_checkpoint(self.folder.checkpoints, state, settings)

    def latest(self, settings: Settings) -> State | None:
        return load_latest(self.folder.checkpoints, settings)

    def should_stop(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask for a stop."""
        self._stop.set()

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Inside: the first SIGINT or SIGTERM asks for a stop, a second SIGINT ends at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop.is_set() and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._stop.set()

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
