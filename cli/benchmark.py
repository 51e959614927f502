"""``partgcd benchmark``: measured quality over data sets, methods and seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partgcd.bench.plan import Job, Plan
    from partgcd.cli.progress import Progress

RESULTS = Path("benchmarks/results")
OUT_HELP = "Folder of results; there one file a bench, one line a run."

benchmark = typer.Typer(
    help="Measure quality over data sets, methods and seeds; results are lines of a file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@benchmark.command("quality", short_help="Run what has no result yet and print the table.")
def quality(
    photos: Annotated[
        Path | None, typer.Option(help="Folder of data sets; the variable PARTGCD_PHOTOS if not given.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="YAML file of sets, methods and blocks; the packaged one if not given."),
    ] = None,
    block: Annotated[
        list[str] | None, typer.Option(help="Blocks of the plan to run; all but 'quick' if not given.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods.")] = None,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = RESULTS,
    work: Annotated[
        Path, typer.Option(help="Scratch folder; about 1.5 GB a set of 3000 images at 154 px.")
    ] = Path("runs/benchmark"),
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0 leaves it to torch.")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Ten minutes: exit 1 if the default does not beat its baselines. What has a result does not run "
            "again: give an empty --out once the program has changed.",
        ),
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="Only say what would run.")] = False,
) -> None:
    """Run what has no result yet and print the table; broken off, the same command goes on.

    Start it twice to use more cores with --threads 1: processes share the work.

    Example: partgcd benchmark quality --block headline
    """
    from partgcd.bench.plan import PACKAGED, read_plan
    from partgcd.bench.quality import Session, pending, run_plan

    read = read_plan(plan or PACKAGED)
    jobs = read.chosen(["quick"] if quick else block, method)
    if list_only:
        for job in pending(read, jobs, out):
            typer.echo(f"{job.set} {job.backbone} {job.method} seed {job.seed}")
        return
    folder = _photos(photos)
    machine: dict[str, object] = {"train.device": device or "auto", "train.threads": threads or 0}
    with _showing() as progress:
        held = run_plan(read, jobs, Session(folder, out, work, machine, progress.line, progress.update))
    if held:
        typer.echo(f"{len(held)} runs are held by other processes", err=True)
    _print(read, jobs, out)
    if quick:
        _judge(read, jobs, out)


@benchmark.command("table")
def table(
    plan: Annotated[Path | None, typer.Option(help="The plan whose blocks are shown.")] = None,
    block: Annotated[
        list[str] | None, typer.Option(help="Blocks of the plan to show; all if not given.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods.")] = None,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = RESULTS,
) -> None:
    """Print the table of the results there are, as Markdown.

    Example: partgcd benchmark table --block headline
    """
    from partgcd.bench.plan import PACKAGED, read_plan

    read = read_plan(plan or PACKAGED)
    _print(read, read.chosen(block, method), out)


@benchmark.command("continual", short_help="Simulate lives: a first stage, then arrivals.")
def continual(
    photos: Annotated[
        Path | None, typer.Option(help="Folder of data sets; the variable PARTGCD_PHOTOS if not given.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="YAML file of sets and blocks; the packaged one if not given.")
    ] = None,
    block: Annotated[list[str] | None, typer.Option(help="Blocks of the plan; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = RESULTS,
    work: Annotated[Path, typer.Option(help="Scratch folder.")] = Path("runs/benchmark-continual"),
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0 leaves it to torch.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only say what would run.")] = False,
) -> None:
    """Simulate lives: a first stage, then arrivals with known and new classes; broken off, the same command goes on.

    Rediscovery is compared with training anew on everything, plain fine-tuning, and no training.

    Example: partgcd benchmark continual --block small
    """
    from partgcd.bench.life_plan import PACKAGED, read_life_plan
    from partgcd.bench.life_table import COLUMNS, rows
    from partgcd.bench.lives import pending, results_of, run_lives
    from partgcd.bench.quality import Session
    from partgcd.bench.quality_table import markdown

    read = read_life_plan(plan or PACKAGED)
    jobs = read.jobs(block)
    if list_only:
        for job, method, stage in pending(read, jobs, out):
            typer.echo(f"{job.set} seed {job.seed} stage {stage} {method}")
        return
    machine: dict[str, object] = {"train.device": device or "auto", "train.threads": threads or 0}
    folder = _photos(photos)
    with _showing() as progress:
        held = run_lives(read, jobs, Session(folder, out, work, machine, progress.line, progress.update))
    if held:
        typer.echo(f"{len(held)} lives are held by other processes", err=True)
    typer.echo(markdown(rows(results_of(read, jobs, out), list(read.methods)), COLUMNS), nl=False)


@contextmanager
def _showing() -> Iterator[Progress]:
    """Inside: progress is shown, and a stop that was asked for ends the command with code 130."""
    from partgcd.cli.progress import Progress
    from partgcd.run.world import Interrupted

    progress = Progress()
    try:
        yield progress
    except Interrupted:
        progress.close()
        typer.echo("interrupted; the same command goes on", err=True)
        raise typer.Exit(130) from None
    finally:
        progress.close()


def _photos(given: Path | None) -> Path:
    """The folder of data sets. Raises UserError where none is named."""
    from partgcd.config.errors import UserError

    named = os.environ.get("PARTGCD_PHOTOS")
    folder = given or (Path(named) if named else None)
    if folder is None or not folder.is_dir():
        raise UserError(
            "name the folder of data sets with --photos FOLDER, or in the variable PARTGCD_PHOTOS"
        )
    return folder


def _print(plan: Plan, jobs: list[Job], out: Path) -> None:
    from partgcd.bench.quality import results_of
    from partgcd.bench.quality_table import COLUMNS, markdown, rows

    found = results_of(plan, jobs, out)
    typer.echo(markdown(rows(found, list(plan.sets), list(plan.methods)), COLUMNS), nl=False)
    notes = {name: spec.note for name, spec in plan.sets.items() if spec.note}
    for name in dict.fromkeys(result["set"] for result in found):
        if name in notes:
            typer.echo(f"{name}: {notes[name]}")


def _judge(read: Plan, jobs: list[Job], out: Path) -> None:
    """Exit 1 where the default is not ahead of a trained baseline, or not clearly ahead of clustering."""
    from partgcd.bench.quality import results_of
    from partgcd.bench.verdict import verdicts

    given = sorted(verdicts(results_of(read, jobs, out), "partgcd"), key=lambda each: each.ours - each.theirs)
    for each in given:
        lead = 100 * (each.ours - each.theirs)
        typer.echo(
            f"default {100 * each.ours:.1f}, {each.rival} {100 * each.theirs:.1f}: {lead:+.1f}; "
            f"on so many images less than {100 * each.doubt:.1f} can be chance"
        )
    if not given or any(each.lost for each in given):
        raise typer.Exit(1)
