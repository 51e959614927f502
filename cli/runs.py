"""``partgcd runs``: the runs of this folder, or those sent to a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

runs = typer.Typer(help="Runs here, or with --address those sent to a Ray cluster.", no_args_is_help=True)

_Address = Annotated[
    str | None,
    typer.Option(help="http://HOST:8265 of a Ray cluster; RAY_ADDRESS if set.", envvar="RAY_ADDRESS"),
]
_Name = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]


@runs.command("list")
def list_(
    address: _Address = None,
    folder: Annotated[Path, typer.Option(help="Where runs lie, without --address.")] = Path("runs"),
) -> None:
    """One line a run: id, status, when it began, and what it is."""
    if address is not None:
        from partgcd.training.jobs import list_jobs

        for job in list_jobs(address):
            typer.echo(f"{job.id}  {job.status.lower():<9}  {job.started:<25}  {job.command}")
        return
    from partgcd.config.errors import UserError
    from partgcd.disk.files import read_json
    from partgcd.run.folder import is_there

    # Not a pattern: what may not be read would fit none, in silence.
    records = [each / "run.json" for each in (folder.iterdir() if is_there(folder) else ())]
    unreadable = 0
    for record in sorted(records, reverse=True):
        try:
            if not record.parent.is_dir() or not record.exists():
                continue
            info = read_json(record)
            line = f"{info['id']}  {info['status']:<11}  {info['created']:<25}  {info['data']}"
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            unreadable += 1
            typer.echo(f"{record.parent}: no record that can be read ({error})", err=True)
            continue
        typer.echo(line)
    if unreadable:
        raise typer.Exit(1)


@runs.command("show")
def show(name: _Name, address: _Address = None) -> None:
    """What is known of one run."""
    if address is not None:
        from partgcd.training.jobs import show_job

        job = show_job(address, name)
        for field, value in job._asdict().items():
            if value:
                typer.echo(f"{field}: {value}")
        return
    from partgcd.run.folder import RunFolder, find_run

    run = RunFolder.open(find_run(name))
    info = run.info()
    for field in ("id", "status", "created", "data", "device", "precision", "workers", "cluster"):
        if info.get(field) is not None:
            typer.echo(f"{field}: {info[field]}")
    lines = run.read_metrics()
    typer.echo(f"epochs: {len(lines)} of {run.settings().train.epochs}")
    if lines:
        typer.echo(f"loss: {lines[-1]['loss']['total']:.4f}")


@runs.command("logs")
def logs(
    name: _Name,
    address: _Address = None,
    follow: Annotated[bool, typer.Option("--follow", help="Until the run ends.")] = False,
) -> None:
    """What a run that was sent to a cluster has printed."""
    from partgcd.training.jobs import job_logs

    for piece in job_logs(_needed(address), name, follow):
        typer.echo(piece, nl=False)


@runs.command("stop")
def stop(name: _Name, address: _Address = None) -> None:
    """Ask a run that was sent to a cluster to save its state and stop."""
    from partgcd.training.jobs import stop_job

    job = stop_job(_needed(address), name)
    typer.echo(f"asked {job.id} to stop; go on with: partgcd train --resume RUN --engine ray --submit")


def _needed(address: str | None) -> str:
    from partgcd.config.errors import UserError

    if address is None:
        raise UserError("name the cluster that the run was sent to: --address http://HOST:8265")
    return address
