"""The console script: which commands there are, and what an error looks like.

Exit codes: 0 done, 1 failed, 2 wrong usage, 75 another process is at it, 130 interrupted, 143 ended by SIGTERM.
Heavy imports happen inside commands, so that --help answers at once.
"""

from __future__ import annotations

import errno
import signal
import sys
from contextlib import suppress

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
from partgcd.cli.console import OUTPUT, drop_output, flush_output, steady_streams
from partgcd.run.signals import Ended, ending_on_signals

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
    """Run the command line; errors that a user can mend, and those of files and disks, are one line on stderr."""
    from partgcd.config.errors import UserError

    steady_streams()
    try:
        with ending_on_signals():
            code = _run()
    except UserError as error:
        _say(str(error))
        sys.exit(error.code)
    except Ended as end:
        how = "interrupted" if end.number == signal.SIGINT else "ended by SIGTERM"
        _say(f"{how}; what was half written is removed, what was finished stays")
        sys.exit(128 + end.number)
    except BrokenPipeError:
        drop_output()
        sys.exit(0)
    except OSError as error:
        from partgcd.disk.files import describe_os_error

        if error.filename == OUTPUT:
            drop_output()
            _say(f"can't print the answer ({error.strerror}): give stdout a place that has room")
            sys.exit(1)
        if error.filename is None and error.errno == errno.EBADF:
            _say("standard input is closed: leave it open, or name files instead of -")
            sys.exit(1)
        trouble = describe_os_error(error)
        if trouble is None:
            raise
        _say(str(trouble))
        sys.exit(trouble.code)
    sys.exit(code)


def _run() -> int:
    """Run the command that the words name; its exit code. What typer has to say of the words it says itself."""
    from partgcd.config.errors import UserError

    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "show") or not hasattr(error, "format_message"):
            raise
        trouble = str(error.format_message())
        if trouble.endswith("is not readable."):  # no wrong usage, and no matter for four lines
            raise UserError(f"{trouble[:-1]}: change who may read it, or name another one", 1) from error
        error.show()
        code = getattr(error, "exit_code", 2)
    flush_output()
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    from partgcd.data.cells import shown

    with suppress(OSError):
        typer.echo(f"partgcd: {shown(' '.join(text.split()))}", err=True)
