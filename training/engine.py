"""Training a run on Ray: a worker group around `train_worker`, one bar for all, and attempts until it is done."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.discovery.discover import make_report
from partgcd.disk.files import read_json
from partgcd.run.folder import RunFolder
from partgcd.run.signals import stopping_on_signals
from partgcd.run.world import Interrupted
from partgcd.training.board import INTERRUPTED, Board, Told, whole_progress
from partgcd.training.cluster import connected, free_reservations
from partgcd.training.options import Cluster
from partgcd.training.storage import absolute, connect, put_results
from partgcd.training.worker import catch_sigterm, train_worker

Tell = Callable[[str, int, int, str], None]

_ENDING_S = 120.0
"""How long a trainer whose run is refused, or stopped before it began, may take to end."""

_PATIENCE_S = 12 * 3600
"""How long a collective may wait: rank 0 reads a large folder of photos while the others do."""

_Base: Any = TorchConfig().backend_cls


class _Backend(_Base):  # type: ignore[misc]
    """Ray's set-up of torch.distributed; after it, SIGTERM makes a worker save before it leaves."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(catch_sigterm)


@dataclass
class _Config(TorchConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> Any:
        return _Backend


def train_on_ray(
    run: RunFolder,
    settings: Settings,
    cluster: Cluster,
    tell: Tell,
    on_epoch: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Do whatever of ``run`` is not done yet on the workers of ``cluster``.

    Args:
        tell: progress of all workers as one: phase, done, total, note.
        on_epoch: told each finished epoch's metrics.

    Returns:
        the summary.

    Raises:
        Interrupted: a stop was asked for (SIGINT, SIGTERM); the state is saved.
        UserError: the run can't be done as asked, or workers died more often than they may.
        RuntimeError: workers failed for another reason, in their words.
    """
    # What this machine has says nothing of a cluster's: there a worker has one thread unless told otherwise.
    cores = (os.cpu_count() or 1) if cluster.address is None else 1
    threads = settings.train.threads or max(1, cores // cluster.workers)
    if cluster.storage is not None:
        connect(cluster.storage)
    scratch = run.path / "ray"
    asked = threading.Event()
    # Signals are ours only after Ray's start, which takes SIGTERM for itself.
    with connected(cluster, cluster.workers * threads), stopping_on_signals(asked):
        board: Any = ray.remote(num_cpus=0)(Board).remote()  # type: ignore[call-overload]
        try:
            for attempt in range(cluster.max_failures + 1):
                ray.get(board.attempt.remote())
                trainer = _trainer(run, settings, cluster, board, threads)
                error = _follow(trainer, board, asked, tell, on_epoch)
                verdict, failure = ray.get(board.outcome.remote())
                if verdict is not None and verdict.code == INTERRUPTED:
                    raise Interrupted
                if verdict is not None:
                    raise UserError(verdict.message, verdict.code)
                if error is None:
                    break
                again = isinstance(error, (RayError, TrainingFailedError)) and attempt < cluster.max_failures
                if not again:
                    raise RuntimeError(f"training on Ray failed: {failure or error}") from error
                if cluster.address is None:
                    free_reservations()
            summary: dict[str, Any] = read_json(run.summary)
            tell("report", 0, 1, "")
            make_report(run)
            if cluster.storage is not None:
                put_results(run, cluster.storage)
            return summary
        finally:
            ray.kill(board)
            shutil.rmtree(scratch, ignore_errors=True)


def _trainer(run: RunFolder, settings: Settings, cluster: Cluster, board: Any, threads: int) -> TorchTrainer:
    """One attempt: a worker's failure ends it, and so does its controller's.

    Ray could start failed workers again by itself, but would do so after a user's error as well, which is told
    only when all of them are up again.
    """
    order = {
        "run": os.path.abspath(run.path),  # noqa: PTH100 - Path.absolute keeps '..'
        "board": board,
        "gpu": cluster.gpu,
        "storage": cluster.storage is not None,
    }
    resources: dict[str, float] = {"CPU": threads}
    if cluster.gpu:
        resources["GPU"] = 1
    storage = cluster.storage if cluster.storage is not None else str(run.path / "ray")
    worker: Any = train_worker
    failures: Any = FailureConfig  # the type that v2 of Ray Train puts in its place has one field more
    return TorchTrainer(
        worker,
        train_loop_config=order,
        torch_config=_Config(backend="cpu:gloo,cuda:nccl" if cluster.gpu else "gloo", timeout_s=_PATIENCE_S),
        scaling_config=ScalingConfig(
            num_workers=cluster.workers, use_gpu=cluster.gpu, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=str(run.info()["id"]),
            storage_path=absolute(storage),
            failure_config=failures(max_failures=0, controller_failure_limit=0),
            checkpoint_config=CheckpointConfig(num_to_keep=settings.train.keep_checkpoints),
        ),
    )


def _follow(
    trainer: TorchTrainer,
    board: Any,
    asked: threading.Event,
    tell: Tell,
    on_epoch: Callable[[dict[str, Any]], None],
) -> Exception | None:
    """Run the trainer beside this thread, which shows progress and passes a stop on. The error, if it ended so."""
    ended: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            ended.append(error)

    # Not in the main thread: there Ray would take SIGINT for itself and abort workers that have not saved.
    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    passed_on, alive = False, True
    shown: Told | None = None
    while alive:
        thread.join(0.2)
        alive = thread.is_alive()
        if asked.is_set() and not passed_on:
            passed_on = True
            if not ray.get(board.stop.remote()):  # nobody has begun, so there is nothing to save
                thread.join(_ENDING_S)
                raise Interrupted
        with suppress(RayError):
            verdict, _ = ray.get(board.outcome.remote())
            if verdict is not None and verdict.code != INTERRUPTED:
                # The workers end, and the trainer after them. Who closes Ray while the trainer still asks it
                # something has the whole process ended by Ray.
                thread.join(_ENDING_S)
                return None
            told, epochs = ray.get(board.read.remote())
            for metrics in epochs:
                on_epoch(metrics)
            progress = whole_progress(told)
            if progress is not None and progress != shown:
                shown = progress
                tell(*progress)
    return ended[0] if ended else None
