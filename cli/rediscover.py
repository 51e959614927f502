"""``partgcd rediscover``: what new photos bring, now or on a schedule."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from partgcd.schedule.due import Plan

_INTERRUPTED = 130
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def rediscover(
    registry: Annotated[Path, typer.Option(help="The registry's folder.", show_default=False)],
    new: Annotated[
        Path, typer.Option(help="Folder of new photos, such as a server's inbox.", show_default=False)
    ],
    promote: Annotated[str, typer.Option(help="gate: what passes the margins; always; never.")] = "gate",
    labelled: Annotated[
        Path | None, typer.Option(help="Class folders, named by id or name, to train on as well.")
    ] = None,
    teach: Annotated[
        bool, typer.Option("--teach", help="Folders of --labelled that name no class become classes.")
    ] = False,
    holdout: Annotated[
        Path | None, typer.Option(help="Class folders, named by id or name, to score on.")
    ] = None,
    keep: Annotated[
        str, typer.Option(help="images, or no-images: no picture in report and bundle.")
    ] = "images",
    new_classes: Annotated[
        int | None, typer.Option(help="How many new classes there are; estimated if not given.", min=0)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the images; 6, up to 20 where they are few.", min=1)
    ] = None,
    max_forgetting: Annotated[
        float, typer.Option(help="Accuracy of known classes that may be lost.", min=0, max=1)
    ] = 0.02,
    max_disagreement: Annotated[
        float, typer.Option(help="Share of surely known images that may move.", min=0, max=1)
    ] = 0.05,
    max_calibration: Annotated[
        float, typer.Option(help="Calibration error that may be added.", min=0, max=1)
    ] = 0.05,
    min_coherence: Annotated[
        float,
        typer.Option(
            help="Of the images that the champion finds nearest to a new class's photos, the share that must be in it.",
            min=0,
            max=1,
        ),
    ] = 0.4,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.", min=0)] = 0,
    again: Annotated[bool, typer.Option("--again", help="Also photos that were looked at before.")] = False,
    weights: Annotated[
        Path | None, typer.Option(help="Frozen weights, if the champion had a file of its own.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves it to torch.", min=0)] = 0,
    every: Annotated[str | None, typer.Option(help="Repeat every 90s, 15m, 6h or 1d.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Repeat when five cron fields say, as '0 3 * * *'.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --cron.")] = "UTC",
    min_new: Annotated[
        int, typer.Option(help="Photos that must have come for a run, newly labelled ones too.", min=0)
    ] = 1,
    on_drift: Annotated[
        float | None, typer.Option(help="Share of novel answers that starts a run out of turn.")
    ] = None,
    metrics_url: Annotated[str | None, typer.Option(help="The server's metrics, for --on-drift.")] = None,
    jitter: Annotated[str, typer.Option(help="Most that a start is put off, as 5m.")] = "0s",
    submit: Annotated[
        bool, typer.Option("--submit", help="Send each run to the Ray cluster at --address as a job.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster, http://HOST:8265; sees the same folders.")
    ] = None,
) -> None:
    """Look at new photos; where they bring new classes, train the next version and promote it if it may be.

    Exit codes: 0 done or nothing new, 1 failed, 2 wrong usage, 3 candidate kept and not promoted, 75 another run is
    under way, 130 interrupted (the same command goes on).

    Example: partgcd rediscover --registry models --new inbox --cron '0 3 * * *' --min-new 200
    """
    from partgcd.config.errors import UserError

    if promote not in ("gate", "always", "never"):
        raise UserError(f"--promote {promote}: use gate, always or never")
    if keep not in ("images", "no-images"):
        raise UserError(f"--keep {keep}: use images or no-images")
    if submit != (address is not None):
        raise UserError("--submit and --address go together")
    if every is not None or cron is not None or on_drift is not None:
        from partgcd.schedule.due import Plan

        plan = Plan(
            seconds_of(every, "--every") if every is not None else None, cron, timezone, min_new, on_drift,
            jitter=seconds_of(jitter, "--jitter"),
        )  # fmt: skip

        def come() -> int:
            try:
                return _come(registry, new, labelled, teach)
            except UserError:  # of what is labelled: a run that photos make due says what is wrong with it
                return _come(registry, new, None, False)

        _schedule(registry, come, plan, metrics_url, address)
        return
    if address is not None:
        from partgcd.training.jobs import submit_job

        job = submit_job(address, ["partgcd", *_bare(sys.argv[1:])])
        typer.echo(f"submitted {job}; follow it with: partgcd runs logs {job} --address {address}")
        return
    if min_new > 1 and (came := _come(registry, new, labelled, teach)) < min_new:
        typer.echo(f"{came} of {min_new} new photos: not yet")
        return
    from partgcd.cli.progress import Progress, describe_failure
    from partgcd.continual.gate import Margins
    from partgcd.continual.rediscover import rediscover as look
    from partgcd.continual.request import Request
    from partgcd.data.cells import shown
    from partgcd.run.world import Interrupted

    request = Request(
        registry,
        new,
        promote=promote,  # type: ignore[arg-type]
        labelled=labelled,
        teach=teach,
        holdout=holdout,
        images=keep == "images",
        classes=new_classes,
        epochs=epochs,
        seed=seed,
        weights=weights,
        again=again,
        margins=Margins(max_forgetting, max_disagreement, max_calibration, min_coherence),
        train={"device": device, "threads": threads},
    )
    progress = Progress()
    try:
        outcome = look(request, progress.update)
    except Interrupted:
        progress.close()
        typer.echo("interrupted; the same command goes on", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except (MemoryError, RuntimeError) as error:
        raise describe_failure(error) from error
    finally:
        progress.close()
    typer.echo(shown(outcome.summary))
    if outcome.version is not None:
        typer.echo(f"report: {registry / 'versions' / f'{outcome.version:06d}' / 'changes.html'}")
    if outcome.code:
        raise typer.Exit(outcome.code)


def seconds_of(text: str, option: str) -> float:
    """'90s', '15m', '6h' or '1d' in seconds. Raises UserError."""
    from partgcd.config.errors import UserError

    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if matched is None:
        raise UserError(f"{option} {text}: give a number and s, m, h or d, as 6h")
    return float(matched[1]) * _UNITS[matched[2]]


def _come(registry: Path, new: Path, labelled: Path | None, teach: bool) -> int:
    """Images that have come since the last look, those that a person labelled among them."""
    from partgcd.continual.annotations import read_annotations
    from partgcd.continual.attempts import new_since
    from partgcd.registry.naming import ids_by_word
    from partgcd.registry.versions import Registry

    there = Registry(registry)
    return new_since(there, new, read_annotations(labelled, None, teach, ids_by_word(there)))


def run_as_job(address: str, command: list[str], wait: Callable[[float], bool], poll: float = 5.0) -> int:
    """Send a command to a Ray cluster and wait for its end; its exit code, 1 where Ray does not tell.

    ``wait`` sleeps so many seconds; True where somebody asked for a stop, which the job is then asked for, too.
    """
    from partgcd.training.jobs import show_job, stop_job, submit_job

    job = submit_job(address, ["partgcd", *command])
    while True:
        found = show_job(address, job)
        if found.status == "SUCCEEDED":
            return 0
        if found.status in ("FAILED", "STOPPED"):
            code = re.search(r"exit code (\d+)", found.message)
            return int(code[1]) if code else 1
        if wait(poll):
            stop_job(address, job)
            return _INTERRUPTED


def _schedule(
    registry: Path, come: Callable[[], int], plan: Plan, metrics_url: str | None, address: str | None
) -> None:
    """Run this very command without its schedule whenever it is due, each time in a process of its own."""
    from partgcd.config.errors import UserError
    from partgcd.registry.versions import Registry
    from partgcd.schedule.counters import check_url, read_counters
    from partgcd.schedule.due import check_plan
    from partgcd.schedule.timer import Stopper, follow

    there = Registry(registry)
    check_plan(plan)
    if (plan.drift is None) != (metrics_url is None):
        raise UserError("--on-drift and --metrics-url go together")
    if metrics_url is not None:
        check_url(metrics_url)
    stopper = Stopper()
    stopper.listen()
    command = _bare(sys.argv[1:])

    def run(why: str) -> int:
        return stopper.run(command) if address is None else run_as_job(address, command, stopper.wait)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    follow(
        there.path, plan, run, come,
        lambda: read_counters(metrics_url) if metrics_url is not None else None, say, wait=stopper.wait,
    )  # fmt: skip


def _bare(argv: list[str]) -> list[str]:
    """The command line without the options that make it repeat or go elsewhere."""
    dropped = {
        "--every",
        "--cron",
        "--timezone",
        "--min-new",
        "--on-drift",
        "--metrics-url",
        "--jitter",
        "--address",
    }
    argv = [word for word in argv if word != "--submit"]
    kept: list[str] = []
    words: Any = iter(argv)
    for word in words:
        if word in dropped:
            next(words, None)
        elif word.split("=")[0] not in dropped:
            kept.append(word)
    return kept
