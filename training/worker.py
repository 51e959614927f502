"""What each Ray Train worker runs: the library's whole job for a run folder, in the library's own World."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from partgcd.config.errors import UserError
from partgcd.discovery.discover import discover
from partgcd.disk.lock import BUSY, claimed
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.torch_world import TorchWorld
from partgcd.run.world import Interrupted
from partgcd.training.board import INTERRUPTED, Line
from partgcd.training.storage import pack

_LEAVE_S = 120.0
"""How long a new rank 0 waits for the one before it to be gone."""

_preempted = threading.Event()


class Preempted(RuntimeError):
    """This worker was told to leave; its state is saved, and the run goes on without it or with another."""


def train_worker(order: dict[str, Any]) -> str:
    """Do whatever of the run is not done yet, together with the other workers.

    Args:
        order: run (the folder), board (the actor), gpu, storage (whether checkpoints are reported to Ray).

    Returns:
        'finished', 'interrupted' or 'refused'; what was found is in the run folder.
    """
    rank = ray.train.get_context().get_world_rank()
    board = order["board"]
    if ray.get(board.begin.remote(rank)) is not None:
        return "refused"
    try:
        return _work(order, rank)
    except Interrupted:
        if not _preempted.is_set() and ray.get(board.tell.remote(rank, ("stopping", 1, 1, ""))):
            ray.get(board.judge.remote("interrupted", INTERRUPTED))
            return "interrupted"
        ray.get(board.failed.remote("a worker was told to leave (SIGTERM); the run's state is saved"))
        raise Preempted from None
    except UserError as error:
        ray.get(board.judge.remote(str(error), error.code))
        raise
    except BaseException as error:
        ray.get(board.failed.remote("".join(traceback.format_exception_only(error)).strip()))
        raise


def _work(order: dict[str, Any], rank: int) -> str:
    run = RunFolder(Path(order["run"]))
    line = Line(order["board"], rank)
    device = ray.train.torch.get_device() if order["gpu"] else pick_device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = TorchWorld(
        run,
        device,
        on_progress=lambda _, phase, done, total, note: line.tell(phase, done, total, note, time.monotonic()),
        on_report=lambda metrics: order["board"].epoch.remote(metrics),
        on_save=(lambda path: _report(run, path)) if order["storage"] else None,
        stop_asked=lambda: _preempted.is_set() or line.should_stop(),
    )
    settings = run.settings()
    with _alone(run) if rank == 0 else _nobody():
        world.barrier()  # until the last attempt's rank 0 is gone, nobody writes
        discover(run, settings, world)
    return "finished"


def _report(run: RunFolder, checkpoint: Path | None) -> None:
    """Give Ray what a run can go on from; it carries that to the storage. All ranks wait for it."""
    with pack(run, checkpoint) as folder:
        kept = ray.train.Checkpoint.from_directory(str(folder)) if folder is not None else None
        epoch = len(run.read_metrics())
        ray.train.report({"epochs": epoch}, checkpoint=kept)


@contextmanager
def _alone(run: RunFolder) -> Iterator[None]:
    """Inside: no other rank 0 of this run is alive, say one that a lost controller left behind.

    Raises:
        UserError: there still is one after two minutes.
    """
    with ExitStack() as held:
        try:
            held.enter_context(claimed(run.cache, "trains", wait=_LEAVE_S))
        except UserError as error:
            if error.code != BUSY:
                raise
            raise UserError(
                f"a worker of an earlier attempt still holds the run in '{run.path}': stop it first", 1
            ) from None
        yield


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def catch_sigterm() -> None:
    """Make SIGTERM a request to save and leave. Only a process's main thread can, so Ray calls this there."""

    def leave(number: int, frame: FrameType | None) -> None:
        _preempted.set()

    signal.signal(signal.SIGTERM, leave)
