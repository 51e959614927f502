"""``partgcd train``: from a folder of photos to categories."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from partgcd.cli.engine import Wide
    from partgcd.cli.progress import Progress
    from partgcd.config.tree import Settings
    from partgcd.discovery.task import Task
    from partgcd.run.folder import RunFolder

_DATA = "Class folders plus an 'unlabelled' one, labelled/ and unlabelled/, a flat folder, or a CSV/Parquet manifest."


def train(
    data: Annotated[Path | None, typer.Option(help=_DATA, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<id> if not given.")] = None,
    method: Annotated[
        str | None, typer.Option(help="partgcd, simgcd, gcd, kmeans, or another of docs/method.md.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="timm name or offline/...; auto: by device and photos.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights file, .safetensors or .pth.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="For tests and timing only.")
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels a side; a multiple of the patch size.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    view_pool: Annotated[
        int | None, typer.Option(help="Cached views an image; 0 = fresh ones every step.")
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Number of categories, old and new, or auto.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="gcd: hide half the labels of class folders and score.")
    ] = None,
    split: Annotated[Path | None, typer.Option(help="JSON with old_classes and labelled files.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    repeats: Annotated[
        int, typer.Option(help="Runs with seeds seed, seed+1, ...; summary has the spread.", min=1)
    ] = 1,
    resume: Annotated[str | None, typer.Option(help="Run id or folder to go on with.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0 leaves it to torch.")] = None,
    max_broken: Annotated[
        float | None, typer.Option(help="Share of unreadable images that is tolerated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, a.b=value; repeatable.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="default, paper, paper-generic or quick.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="inline (this process), ray (many), or auto by the options below.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share every batch.", min=1)] = None,
    gpu: Annotated[bool | None, typer.Option("--gpu", help="Give each worker a GPU.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to train on; RAY_ADDRESS if set.", envvar="RAY_ADDRESS")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Copy checkpoints and results to this URI or folder.")
    ] = None,
    max_failures: Annotated[int | None, typer.Option(help="How often a worker may die (3).", min=0)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Ray's own messages.")] = False,
    submit: Annotated[
        bool, typer.Option("--submit", help="Send the run to --address as a job; see: partgcd runs.")
    ] = False,
) -> None:
    """Find the categories in --data, old and new, and write a run folder with a report.

    Example: partgcd train --data ./images --classes auto
    """
    from partgcd.cli.engine import Wide, submit_this
    from partgcd.config.errors import UserError
    from partgcd.config.load import differing_keys, load_settings

    wide = Wide(engine, workers, gpu, address, storage, max_failures, verbose)
    wide.check()
    if submit:
        submit_this(wide)
        return
    flags: dict[str, object] = {
        "discovery.method": method,
        "backbone.name": backbone,
        "backbone.weights": weights,
        "backbone.random_weights": random_weights or None,
        "data.image_size": image_size,
        "data.max_broken": max_broken,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.view_pool": view_pool,
        "train.precision": precision,
        "train.device": device,
        "train.threads": threads,
        "discovery.classes": int(classes)
        if classes is not None and classes.lstrip("-").isdigit()
        else classes,
        "seed": seed,
    }
    if resume is not None:
        if out is not None or repeats > 1 or preset is not None:
            raise UserError("--resume goes on in the run's own folder: drop --out, --repeats and --preset")
        folder, settings = _open_for_resume(resume)
        given = {key: value for key, value in flags.items() if value is not None}
        if given or config is not None or assign:
            merged = load_settings("default", config or folder / "config.yaml", assign, flags)
            differing = differing_keys(settings, merged)
            if differing:
                raise UserError(
                    f"--resume goes on with the run's own settings; these differ: {'; '.join(differing[:6])}. "
                    "Drop them, or begin a new run"
                )
        if data is not None or protocol is not None or split is not None:
            _check_same_task(folder, data, protocol, split)
        if (folder / "repeats.json").exists():
            _repeat(folder, settings, None, 0, wide)
        else:
            _one(folder, lambda: _run_folder(folder), settings, wide)
        return
    if data is None:
        raise UserError("name the images with --data FOLDER (or a manifest), or a run to go on with --resume")
    from partgcd.discovery.task import Task
    from partgcd.methods.known import method_of

    settings = load_settings(preset or "default", config, assign, flags)
    method_of(settings)
    task = Task(data, protocol, split)
    task.check()
    if repeats > 1:
        if out is None:
            raise UserError("--repeats needs --out FOLDER to hold its seed-N runs")
        _repeat(out, settings, task, repeats, wide)
        return
    from partgcd.run.folder import RunFolder, new_run_id

    run_id = new_run_id()
    path = out if out is not None else Path("runs") / run_id
    _one(path, lambda: RunFolder.create(path, settings, data, task.request(), run_id), settings, wide)


def _run_folder(path: Path) -> RunFolder:
    from partgcd.run.folder import RunFolder

    return RunFolder.open(path)


def _open_for_resume(name: str) -> tuple[Path, Settings]:
    from partgcd.config.load import load_settings
    from partgcd.run.folder import find_run, is_there

    if "://" in name:
        from partgcd.training.storage import fetch

        name = str(fetch(name, Path("runs")))
    if is_there(Path(name) / "repeats.json"):
        return Path(name), load_settings(file=Path(name) / "config.yaml")
    folder = find_run(name)
    return folder, load_settings(file=folder / "config.yaml")


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps '..'


def _check_same_task(folder: Path, data: Path | None, protocol: str | None, split: Path | None) -> None:
    from partgcd.config.errors import UserError
    from partgcd.disk.files import read_json

    record = folder / "repeats.json" if (folder / "repeats.json").exists() else folder / "run.json"
    begun = read_json(record)
    wanted = {
        "--data": (_absolute(data) if data else None, begun["data"]),
        "--protocol": (protocol, begun["request"]["protocol"]),
        "--split": (str(split.resolve()) if split else None, begun["request"]["split"]),
    }
    for flag, (given, kept) in wanted.items():
        if given is not None and Path(given) != Path(kept or ""):
            raise UserError(f"--resume: the run was begun with {flag} {kept}, not {given}; drop {flag}")


def _one(
    path: Path, begin: Callable[[], RunFolder], settings: Settings, wide: Wide, whole: Path | None = None
) -> dict[str, Any]:
    """Begin or go on with one run, of which ``whole`` may hold several; prints what came out.

    Args:
        begin: makes or opens the run in ``path``, once no other process can.
    """
    from partgcd.cli.progress import Progress
    from partgcd.config.errors import UserError
    from partgcd.run.folder import claimed_run
    from partgcd.run.signals import Ended

    progress = Progress()
    with claimed_run(path) as alone:
        run = begin()
        progress.line(f"run {run.info()['id']} in {run.path}")
        if not alone:
            progress.line("its disk knows no file locks: see that no other process trains in this folder")
        try:
            _tell_how_read(run, settings, progress)
            summary = _finished(run) or _work(run, settings, wide, progress)
        except (KeyboardInterrupt, Ended):
            progress.close()
            run.update(status="interrupted")
            name = shlex.quote(str(whole or run.path))
            typer.echo(f"interrupted; go on with: partgcd train --resume {name}", err=True)
            raise typer.Exit(130) from None
        except UserError:
            run.refuse()
            raise
        finally:
            progress.close()
    _print_summary(summary, run)
    return summary


def _tell_how_read(run: RunFolder, settings: Settings, progress: Progress) -> None:
    """How folders or manifest are read, before hours are spent on them; what the report and inspect say, too."""
    from partgcd.data.names import printable
    from partgcd.discovery.task import Task, listing_of

    if not (run.path / "catalog.parquet").exists():
        for note in listing_of(Task.from_record(run.info()), settings.seed)[0].notes:
            progress.line(f"note: {printable(note)}")


def _finished(run: RunFolder) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do."""
    from partgcd.disk.files import read_json

    if run.summary.exists() and run.report.exists() and run.info()["status"] == "finished":
        summary: dict[str, Any] = read_json(run.summary)
        return summary
    return None


def _work(run: RunFolder, settings: Settings, wide: Wide, progress: Progress) -> dict[str, Any]:
    """All of a run that is not done yet.

    Raises:
        KeyboardInterrupt: a stop was asked for; what is done is kept.
    """
    from partgcd.cli.engine import inline, on_ray
    from partgcd.cli.progress import describe_failure
    from partgcd.run.world import Interrupted

    cluster = wide.cluster(run)
    try:
        if cluster is None:
            return inline(run, settings, progress)
        return on_ray(run, settings, cluster, progress)
    except Interrupted:
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:
        progress.close()
        raise describe_failure(error) from error


def _repeat(out: Path, settings: Settings, task: Task | None, repeats: int, wide: Wide) -> None:
    """Runs with consecutive seeds in ``out``/seed-N, and the summary of them all; resumable."""
    from partgcd.config.errors import UserError
    from partgcd.run.folder import claimed_run

    if task is not None and settings.seed + repeats > 2**31:
        raise UserError(f"--seed {settings.seed} is too large for {repeats} repeats: give one below "
                        f"{2**31 - repeats + 1}")  # fmt: skip
    with claimed_run(out):
        _repeats(out, settings, task, repeats, wide)


def _repeats(out: Path, settings: Settings, task: Task | None, repeats: int, wide: Wide) -> None:
    from partgcd.config.errors import UserError
    from partgcd.config.load import to_yaml
    from partgcd.discovery.summary import summarise_repeats
    from partgcd.discovery.task import Task
    from partgcd.disk.files import read_json, write_json, write_text
    from partgcd.run.folder import RunFolder, is_there, make_folder

    record = out / "repeats.json"
    if task is not None:
        if is_there(record) or is_there(out / "run.json"):
            raise UserError(
                f"'{out}' already holds a run: --resume '{out}' continues it, another --out begins a new one"
            )
        make_folder(out)
        write_text(out / "config.yaml", to_yaml(settings))
        write_json(record, {"seeds": [settings.seed + i for i in range(repeats)],
                            "data": _absolute(task.data), "request": task.request()})  # fmt: skip
    begun = read_json(record)
    task = Task.from_record(begun)
    summaries = []
    for seed in begun["seeds"]:
        path, own = out / f"seed-{seed}", settings.model_copy(update={"seed": seed})
        begin = partial(RunFolder.create, path, own, task.data, task.request())
        if is_there(path / "run.json"):
            begin = partial(RunFolder.open, path)
        summaries.append(_one(path, begin, own, wide, out))
    summary = summarise_repeats(summaries)
    write_json(out / "summary.json", summary)
    accuracy = summary["accuracy"]
    if accuracy is not None:
        parts = [
            f"{name} {100 * value:.1f} (spread {100 * summary['spread']['v2'][name]:.1f})"
            for name, value in accuracy["v2"].items()
            if value is not None
        ]
        typer.echo(f"mean over seeds {begun['seeds']}: {', '.join(parts)}")


def _print_summary(summary: dict[str, Any], run: RunFolder) -> None:
    classes, images = summary["classes"], summary["images"]
    how = "estimated" if classes["estimated"] else "given"
    typer.echo(
        f"{classes['total']} categories ({how}): {classes['old']} labelled, {classes['discovered']} discovered"
        f"; {images['total']} images, {images['broken']} unreadable, {images['duplicates']} duplicates"
    )
    estimate = classes.get("estimate")
    if estimate and "low" in estimate:
        moved = estimate["moved"]
        typer.echo(
            f"the number is an estimate ({estimate['by']}): {estimate['low']} to {estimate['high']} fit as well; "
            f"a tenth fewer or more would move {100 * moved['fewer']:.0f} or {100 * moved['more']:.0f}% of the "
            "images to another group; --classes N sets it"
        )
    if summary["accuracy"] is not None:
        from partgcd.cli.results import print_accuracy

        print_accuracy(summary["accuracy"])
    typer.echo(f"report: {run.report}")
