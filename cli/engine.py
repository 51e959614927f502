"""Which engine a run is trained by, as ``partgcd train`` was asked: this process, or workers under Ray."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from partgcd.cli.progress import Progress
    from partgcd.config.tree import Settings
    from partgcd.run.folder import RunFolder
    from partgcd.training.options import Cluster

_OURS = ("--engine", "--address", "--submit", "--verbose")


@dataclass(frozen=True)
class Wide:
    """The flags of ``partgcd train`` that say where and how wide; None was not given."""

    engine: str | None = None
    workers: int | None = None
    gpu: bool | None = None
    address: str | None = None
    storage: str | None = None
    max_failures: int | None = None
    verbose: bool = False

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UserError: no such engine, or one that can't do what else was asked; ray is not installed.
        """
        from partgcd.config.errors import UserError

        if self.engine not in (None, "auto", "inline", "ray"):
            raise UserError(f"no engine '{self.engine}': auto, inline or ray")
        if self.engine == "inline" and ((self.workers or 1) > 1 or self.storage is not None):
            raise UserError(
                "--engine inline is one process on this machine: drop it for --workers or --storage"
            )

    def cluster(self, run: RunFolder) -> Cluster | None:
        """Where Ray trains ``run``, recorded in it; None for this process.

        What was not asked for is as the run was begun: a resumed run goes on as wide.

        Raises:
            UserError: Ray is asked for and not installed.
        """
        begun: dict[str, Any] = {} if self.engine == "inline" else run.info().get("cluster") or {}
        asked = {
            name: getattr(self, name)
            for name in ("workers", "gpu", "storage", "max_failures")
            if getattr(self, name) is not None
        }
        wanted = {**begun, **asked}
        by_ray = self.engine == "ray" or bool(begun) or (
            self.engine != "inline"
            and (self.address is not None or wanted.get("workers", 1) > 1 or "storage" in wanted)
        )  # fmt: skip
        if not by_ray:
            return None
        _need_ray()
        from partgcd.training.options import Cluster

        cluster = Cluster(**wanted, address=self.address, verbose=self.verbose)
        run.update(cluster=cluster.record())
        return cluster


def inline(run: RunFolder, settings: Settings, progress: Progress) -> dict[str, Any]:
    """All of the run that is not done yet, in this process."""
    from partgcd.discovery.discover import train_here

    return train_here(run, settings, progress.update, progress.epoch)


def on_ray(run: RunFolder, settings: Settings, cluster: Cluster, progress: Progress) -> dict[str, Any]:
    """The same by workers under Ray."""
    from partgcd.cli.progress import describe_failure
    from partgcd.config.errors import UserError
    from partgcd.training.options import set_environment

    set_environment(own=cluster.address is None)
    from partgcd.training.engine import train_on_ray

    batch, lr = settings.train.batch_size, settings.train.lr
    progress.line(
        f"{cluster.workers} worker(s) under Ray share each batch of {batch} images; "
        f"batch size and learning rate ({lr:g}) stay what one worker would use"
    )
    progress.phase("starting Ray")
    try:
        return train_on_ray(run, settings, cluster, progress.update, progress.epoch)
    except RuntimeError as error:
        # Where it was raised is in the workers' own words; a trace of this process would say nothing.
        described = describe_failure(error)
        if described is not error:
            raise described from error
        raise UserError(
            f"{error}; --verbose shows more, --resume goes on from the last checkpoint", 1
        ) from error


def submit_this(wide: Wide) -> None:
    """Send this very command to the cluster as a job, and say how to follow it."""
    from partgcd.config.errors import UserError

    if wide.address is None:
        raise UserError("--submit sends the run to a Ray cluster: name it with --address http://HOST:8265")
    _need_ray()
    from partgcd.training.jobs import submit_job

    words = _without_ours(sys.argv[1:])
    job = submit_job(wide.address, ["partgcd", *words, "--engine", "ray", "--address", "auto"])
    typer.echo(f"submitted {job}; follow it with: partgcd runs logs {job} --address {wide.address}")


def _without_ours(words: list[str]) -> list[str]:
    """The command without the options that say where it is sent from."""
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.split("=", 1)[0]
        if skip:
            skip = False
        elif name in _OURS:
            skip = name in ("--engine", "--address") and "=" not in word
        else:
            kept.append(word)
    return kept


def _need_ray() -> None:
    from partgcd.config.errors import UserError

    if importlib.util.find_spec("ray") is None:
        raise UserError("training on many workers needs Ray: pip install 'partgcd[cpu]' (or 'partgcd[gpu]')")
