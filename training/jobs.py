"""Runs as Ray Jobs: sent to a cluster, listed, followed and stopped there."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from partgcd.config.errors import UserError
from partgcd.run.folder import new_run_id
from partgcd.training.options import set_environment

PREFIX = "partgcd-"

_STOP_S = 120
"""How long a run that was asked to stop may take to save before Ray kills it."""

_NEW_CLUSTER_S = 60.0
"""How long a cluster that has just started may take until it accepts jobs."""


class Job(NamedTuple):
    """A run that was sent to a cluster.

    Attributes:
        id: what it is asked for by.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        started, ended: UTC, ISO 8601; empty where not yet.
        command: what runs there.
        message: what Ray says of its end.
    """

    id: str
    status: str
    started: str
    ended: str
    command: str
    message: str


def submit_job(address: str, command: list[str]) -> str:
    """Run ``command`` on the cluster, where its paths have to make sense. The job's id.

    Raises:
        UserError: no cluster there, or it does not take the job.
    """
    client = _client(address)
    name = f"{PREFIX}{new_run_id()}"
    # Words, not a shell's sentence; Ray wants one string and this is the one that gives the words back.
    told = {key: value for key, value in os.environ.items() if key.startswith("PARTGCD_")}
    told["RAY_JOB_STOP_WAIT_TIME_S"] = str(_STOP_S)  # Ray's own 3 seconds may not be enough to save
    until = time.monotonic() + _NEW_CLUSTER_S
    with _asking(address):
        while True:
            try:
                client.submit_job(
                    entrypoint=shlex.join(command), submission_id=name, runtime_env={"env_vars": told}
                )
                return name
            except RuntimeError as error:
                if "No available agent" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(1.0)


def list_jobs(address: str) -> list[Job]:
    """The runs that were sent to this cluster, newest first."""
    with _asking(address):
        found = _client(address).list_jobs()
    jobs = [_job(each) for each in found if str(each.submission_id).startswith(PREFIX)]
    return sorted(jobs, key=lambda job: job.id, reverse=True)


def show_job(address: str, name: str) -> Job:
    """One run that was sent there.

    Raises:
        UserError: there is none of that id.
    """
    for job in list_jobs(address):
        if name in (job.id, job.id.removeprefix(PREFIX)):
            return job
    raise UserError(
        f"no run '{name}' on {address}: partgcd runs list --address {address} shows those there are"
    )


def job_logs(address: str, name: str, follow: bool) -> Iterator[str]:
    """What the run has printed, in pieces; with ``follow`` until it ends."""
    import asyncio

    job, client = show_job(address, name), _client(address)
    if not follow:
        with _asking(address):
            yield client.get_job_logs(job.id)
        return
    pieces = client.tail_job_logs(job.id)
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(pieces))
            except StopAsyncIteration:
                return
    finally:
        loop.close()


def stop_job(address: str, name: str) -> Job:
    """Ask the run to save and stop; Ray kills it where it does not within its grace period."""
    job = show_job(address, name)
    with _asking(address):
        _client(address).stop_job(job.id)
    return job


def _client(address: str) -> Any:
    set_environment(own=False)
    from ray.job_submission import JobSubmissionClient

    with _asking(address):
        return JobSubmissionClient(address)


class _asking:
    """What a cluster that does not answer raises, as one line."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ConnectionError, RuntimeError, OSError, ValueError)):
            text = str(error).strip().splitlines()
            raise UserError(
                f"the Ray cluster at '{self._address}' does not do that: {text[0] if text else error!r}", 1
            ) from error


def _job(details: Any) -> Job:
    def moment(milliseconds: int | None) -> str:
        if not milliseconds:
            return ""
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")

    return Job(
        str(details.submission_id),
        str(getattr(details.status, "value", details.status)),
        moment(details.start_time),
        moment(details.end_time),
        str(details.entrypoint),
        str(details.message or ""),
    )
