"""``partgcd evaluate`` and ``partgcd report``: what a run is worth, and what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    run: Annotated[str, typer.Argument(help="Run folder or id.")],
    truth: Annotated[
        Path | None, typer.Option(help="CSV or Parquet with path,truth; the run's own if it has one.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Part masks of sample images, to score part maps.")
    ] = None,
) -> None:
    """Score a finished run on its unlabelled images against the truth.

    Example: partgcd evaluate runs/20260101-120000-abc123 --truth truth.csv
    """
    from partgcd.config.errors import UserError
    from partgcd.data.catalog import Catalog
    from partgcd.data.truth import read_truth
    from partgcd.discovery.evaluate import evaluate_run
    from partgcd.disk.files import read_json, write_json
    from partgcd.report.build import build_report
    from partgcd.run.folder import RunFolder, find_run

    folder = RunFolder.open(find_run(run))
    if truth is None and not folder.truth.exists():
        raise UserError("this run knows no truth: give --truth FILE with columns path,truth")
    if truth is not None and folder.predictions.exists():
        catalog = Catalog.load(folder.path)
        notes: list[str] = []
        truth_table = read_truth(truth, catalog.root, catalog.paths, notes.append)
        for note in notes:
            typer.echo(f"note: {note}", err=True)
    else:
        truth_table = read_truth(truth if truth is not None else folder.truth)
    result = evaluate_run(folder, truth_table)
    if masks is not None:
        from partgcd.discovery.part_score import score_parts

        result["parts"] = score_parts(folder, masks)
        write_json(folder.evaluation, result)
    if folder.summary.exists():
        write_json(folder.summary, {**read_json(folder.summary), "accuracy": result})
    build_report(folder.path)
    print_accuracy(result)


def report(
    run: Annotated[str, typer.Argument(help="Run folder or id.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; RUN/report.html if not given.")
    ] = None,
) -> None:
    """Write the report of a finished run as one self-contained HTML file.

    Example: partgcd report runs/20260101-120000-abc123
    """
    from partgcd.report.build import build_report
    from partgcd.run.folder import RunFolder, find_run

    typer.echo(str(build_report(RunFolder.open(find_run(run)).path, out)))


def print_accuracy(accuracy: dict[str, Any]) -> None:
    """The figures of an evaluation, each naming its set."""
    typer.echo(f"on {accuracy['set']}:")
    for name, values in [("v2", accuracy["v2"]), ("v1", accuracy["v1"])]:
        typer.echo(f"  {name:<12} {_three(values)}")
    for head, values in accuracy["heads"].items():
        typer.echo(f"  {head + ' head':<12} {_three(values)}")
    single = [("plain (old, by name)", "plain"), ("NMI", "nmi"), ("ARI", "ari")]
    typer.echo("  " + "   ".join(f"{label} {_percent(accuracy[key])}" for label, key in single))
    purity = [(point["epoch"], point["purity"]) for point in accuracy["curve"] if point["purity"] is not None]
    if purity:
        shown = purity if len(purity) <= 6 else [purity[round(i * (len(purity) - 1) / 5)] for i in range(6)]
        line = ", ".join(f"epoch {epoch} {_percent(value)}" for epoch, value in shown)
        typer.echo(f"  candidate purity (new classes): {line}")
    if "parts" in accuracy:
        for name, values in accuracy["parts"]["scores"].items():
            typer.echo(
                f"  part maps, {name:<18} mutual information {values['mutual_information']:.3f}"
                f"   slot agreement {values['slot_agreement']:.3f}"
            )


def _three(values: dict[str, float | None]) -> str:
    return "   ".join(f"{name.capitalize()} {_percent(values[name])}" for name in ("all", "old", "new"))


def _percent(value: float | None) -> str:
    return "  - " if value is None else f"{100 * value:.1f}%"
