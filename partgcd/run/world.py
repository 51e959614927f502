"""What a fit loop may ask of the place it runs in.

`World` is the whole list; the fit loop knows nothing else of processes, devices, signals or folders.
`SoloWorld` answers it for one process, `partgcd.run.torch_world.TorchWorld` for many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State, load_latest, save_checkpoint
from partgcd.run.folder import RunFolder
from partgcd.run.signals import stopping_on_signals

T = TypeVar("T")


class Interrupted(Exception):
    """The fit stopped because it was asked to; its state is saved."""


class Ranks(Protocol):
    """Processes that share work: rank, size, and the collectives that arithmetic needs.

    Every rank calls the collectives, in one order. What they answer is the same bits on every rank.
    """

    rank: int
    size: int

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over ranks."""

    def all_gather(self, value: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """All ranks' rows, [sum of B, ...] in rank order; gradient flows to this rank's rows.

        ``sizes`` are the ranks' numbers of rows, where they are known: one message less.
        """

    def all_gather_object(self, value: Any) -> list[Any]:
        """Each rank's value, in rank order."""

    def together(self) -> AbstractContextManager[None]:
        """Work that holds no collectives: when one rank leaves it as `Interrupted`, all leave it so."""


class Alone:
    """One process, for arithmetic that has no run folder: collectives are identities."""

    rank = 0
    size = 1

    def all_reduce(self, value: Tensor) -> Tensor:
        return value

    def all_gather(self, value: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()


ALONE = Alone()


class World(Ranks, Protocol):
    """Rank, device, collectives, and where reports and checkpoints go."""

    device: torch.device
    folder: RunFolder

    @property
    def stores(self) -> Path:
        """Where this rank's host keeps what its ranks share: stores of tokens."""

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's value; the shapes agree."""

    def barrier(self) -> None:
        """Wait for every rank."""

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each parameter's gradient by the sum over ranks."""

    def share_out(self, work: list[T]) -> list[T]:
        """This rank's part of what its host has to do; a collective, so that all divide the same list."""

    def leader_first(self) -> AbstractContextManager[None]:
        """What the first rank of a host does before the host's others do it; a collective."""

    def report(self, metrics: dict[str, Any]) -> None:
        """Record an epoch's line."""

    def progress(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Tell a person how far ``phase`` is."""

    def save(self, state: State, settings: Settings) -> None:
        """Keep a checkpoint."""

    def latest(self, settings: Settings) -> State | None:
        """The newest checkpoint of this run."""

    def should_stop(self) -> bool:
        """Whether somebody asked the run to stop at the next safe moment, as far as this rank knows."""

    def all_should_stop(self) -> bool:
        """The same as a collective: every rank gets one answer."""


class SoloWorld(Alone):
    """One process with a run: Ctrl-C and SIGTERM ask for a stop."""

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

    @property
    def stores(self) -> Path:
        return self.folder.cache

    def broadcast(self, value: Tensor) -> Tensor:
        return value

    def barrier(self) -> None:
        return None

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        return None

    def share_out(self, work: list[T]) -> list[T]:
        return work

    def leader_first(self) -> AbstractContextManager[None]:
        return nullcontext()

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

    def all_should_stop(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask for a stop."""
        self._stop.set()

    def stopping_on_signals(self) -> AbstractContextManager[None]:
        """Inside: the first SIGINT or SIGTERM asks for a stop, a second SIGINT ends at once."""
        return stopping_on_signals(self._stop)


def share_of(total: int, world: Ranks, unit: int = 1) -> range:
    """This rank's contiguous share of ``total`` rows; shares begin at multiples of ``unit``, in rank order."""
    if world.size == 1:
        return range(total)
    units = -(-total // unit)
    first, last = (units * rank // world.size * unit for rank in (world.rank, world.rank + 1))
    return range(min(first, total), min(last, total))
