"""The console script: which commands there are, and what an error looks like.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted and resumable.
Heavy imports happen inside commands, so that --help answers at once.
"""

from __future__ import annotations

import errno
import sys

import typer

from partgcd import __version__
from partgcd.cli import (
    ask,
    benchmark,
    classes,
    classify,
    export,
    images,
    machine,
    rediscover,
    registry,
    results,
    runs,
    serve,
    train,
)

app = typer.Typer(
    name="partgcd",
    help="Finds the categories nobody labelled in a folder of photos, by looking at parts.",
    epilog="Start with: partgcd inspect --data ./images, then partgcd train --data ./images",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"partgcd {__version__}")
        raise typer.Exit


app.command("inspect", short_help="Print what is in --data: images, labels, broken files.")(images.inspect)
app.command("train", short_help="Find the categories in --data, old and new.")(train.train)
app.command("evaluate", short_help="Score a finished run against the truth.")(results.evaluate)
app.command("report", short_help="Write the report of a finished run as one HTML file.")(results.report)
app.command("export", short_help="Write a finished run as a bundle that needs no torch.")(export.export)
app.add_typer(export.bundle, name="bundle")
app.add_typer(runs.runs, name="runs")
app.command("classify")(classify.classify)
app.command("serve")(serve.serve)
app.command("ask", short_help="Put images into the categories of a running server.")(ask.ask)
app.command("rediscover", short_help="Train a next version where new photos bring new classes.")(
    rediscover.rediscover
)
app.add_typer(registry.registry, name="registry", short_help="Versions of a model, and their aliases.")
app.add_typer(classes.classes, name="classes", short_help="Names, merges and splits of a registry's classes.")
app.command("demo", short_help="Draw a small field guide and find its categories.")(images.demo)
app.command("doctor", short_help="Print versions, devices and weights; fail where they fall short.")(
    machine.doctor
)
app.add_typer(machine.weights, name="weights")
app.add_typer(
    benchmark.benchmark, name="benchmark", short_help="Measure quality over data sets, methods and seeds."
)


def main() -> None:
    """Run the command line; errors a user can mend are one line on stderr."""
    from partgcd.config.errors import UserError

    try:
        app()
    except UserError as error:
        typer.echo(f"partgcd: {' '.join(str(error).split())}", err=True)
        sys.exit(error.code)
    except KeyboardInterrupt:
        typer.echo("partgcd: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo("partgcd: the disk is full: free some space, then --resume the run", err=True)
        sys.exit(1)
