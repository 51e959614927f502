"""Many processes as one `World`, over torch.distributed: gloo between CPUs, NCCL between GPUs.

All ranks see one run folder. Ranks of one host share the token stores in it; every further host keeps stores
of its own below ``cache/host-N``, because hosts do not see each other's writes to a mapped file.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State, load_latest, save_checkpoint
from partgcd.run.folder import RunFolder
from partgcd.run.world import Interrupted

T = TypeVar("T")


class TorchWorld:
    """The default process group of torch.distributed, which whoever starts the processes has set up.

    Args:
        on_progress: told by every rank; (rank, phase, done, total, note).
        on_report: told by rank 0.
        on_save: called on every rank at every checkpoint; rank 0 gets the folder it has written.
        stop_asked: polled for a request to stop that comes from outside.

    Raises:
        UserError: the ranks do not see one run folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        device: torch.device,
        on_progress: Callable[[int, str, int, int, str], None] | None = None,
        on_report: Callable[[dict[str, Any]], None] | None = None,
        on_save: Callable[[Path | None], None] | None = None,
        stop_asked: Callable[[], bool] | None = None,
    ) -> None:
        self.folder = folder
        self.device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._on_progress = on_progress
        self._on_report = on_report
        self._on_save = on_save
        self._stop_asked = stop_asked
        self._stop = threading.Event()
        seen = self.all_gather_object((socket.gethostname(), _identity(folder)))
        if len({identity for _, identity in seen}) > 1:
            blind = next(host for host, identity in seen if identity != seen[0][1])
            raise UserError(
                f"the worker on '{blind}' does not see the run folder '{folder.path}' of '{seen[0][0]}': "
                "choose an --out (and --data) on a disk that all machines share, or workers on one machine"
            )
        hosts = [host for host, _ in seen]
        self.host = list(dict.fromkeys(hosts)).index(hosts[self.rank])
        self._host_ranks = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]

    @property
    def stores(self) -> Path:
        return self.folder.cache if self.host == 0 else self.folder.cache / f"host-{self.host}"

    def all_reduce(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def all_gather(self, value: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        if sizes is None:
            own = torch.tensor([len(value)], device=self.device)
            counts = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(counts, own)
            sizes = [int(count) for count in counts]
        gathered: Tensor = _Gather.apply(value, tuple(sizes), self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def all_gather_object(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def broadcast(self, value: Tensor) -> Tensor:
        sent = value.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(sent, 0)
        return sent

    def barrier(self) -> None:
        # Not dist.barrier: on a GPU that one asks for a device it was never told.
        dist.all_reduce(torch.zeros(1, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        grads = [value.grad if value.grad is not None else torch.zeros_like(value) for value in parameters]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        for value, summed in zip(
            parameters, torch.split(flat, [grad.numel() for grad in grads]), strict=True
        ):
            value.grad = summed.view_as(value)

    def share_out(self, work: list[T]) -> list[T]:
        # Nobody begins before everybody has looked at what there is to do.
        self.barrier()
        return work[self._host_ranks.index(self.rank) :: len(self._host_ranks)]

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        leads = self._host_ranks[0] == self.rank
        if not leads:
            self.barrier()
        yield
        if leads:
            self.barrier()

    @contextmanager
    def together(self) -> Iterator[None]:
        interrupted = False
        try:
            yield
        except Interrupted:
            interrupted = True
        # Any other error ends this process, and with it the others' collectives.
        left = self.all_reduce(torch.tensor([float(interrupted)], device=self.device))
        if float(left) > 0:
            raise Interrupted

    def report(self, metrics: dict[str, Any]) -> None:
        memory = self.all_gather_object(metrics["peak_memory_mb"])
        if self.rank != 0:
            return
        metrics = {**metrics, "workers": self.size, "worker_memory_mb": memory}
        self.folder.append_metrics(metrics)
        if self._on_report is not None:
            self._on_report(metrics)

    def progress(self, phase: str, done: int, total: int, note: str = "") -> None:
        if self._on_progress is not None:
            self._on_progress(self.rank, phase, done, total, note)

    def save(self, state: State, settings: Settings) -> None:
        path: Path | None = None
        if self.rank == 0:
            path = save_checkpoint(self.folder.checkpoints, state, settings)
        if self._on_save is not None:
            self._on_save(path)

    def latest(self, settings: Settings) -> State | None:
        return load_latest(self.folder.checkpoints, settings)

    def should_stop(self) -> bool:
        if self._stop_asked is not None and self._stop_asked():
            self._stop.set()
        return self._stop.is_set()

    def all_should_stop(self) -> bool:
        asked = torch.tensor([float(self.should_stop())], device=self.device)
        return float(self.all_reduce(asked)) > 0

    def stop(self) -> None:
        """Ask for a stop; the others learn of it where they next meet."""
        self._stop.set()


class _Gather(torch.autograd.Function):
    """Rows of all ranks; the gradient of this rank's rows is that part of the whole one.

    Every rank computes the same loss from the gathered rows, so the whole gradient is the same everywhere and
    no sum over ranks is due here: it is due on the parameters.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
        ctx.rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        kind = value.dtype
        # Booleans travel as bytes: not every backend knows them.
        sent = value.detach().to(torch.uint8 if kind == torch.bool else kind).contiguous()
        longest = max(sizes)
        if len(sent) < longest:
            sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
        found = [torch.empty_like(sent) for _ in sizes]
        dist.all_gather(found, sent)
        joined = torch.cat([each[:size] for each, size in zip(found, sizes, strict=True)])
        return joined.to(kind)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0][ctx.rows], None, None


def _identity(folder: RunFolder) -> str | None:
    """The run's id as this host reads it; None where it sees no such folder."""
    try:
        return str(folder.info()["id"])
    except (UserError, KeyError):
        return None
