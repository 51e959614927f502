"""``partgcd export`` and ``partgcd bundle``: a finished run becomes a bundle, and a bundle proves what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bundle = typer.Typer(help="Exported bundles.", no_args_is_help=True, rich_markup_mode=None)


@bundle.callback()
def _bundle() -> None:
    """Exported bundles."""


def export(
    run: Annotated[str, typer.Argument(help="Run folder or id.")],
    out: Annotated[Path, typer.Option(help="The bundle to write; must not exist.")],
    int8: Annotated[bool, typer.Option("--int8", help="Quantise weights, for CPUs.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Halve the backbone's precision, for GPUs.")] = False,
    with_images: Annotated[
        bool, typer.Option("--with-images", help="Put thumbnails of a few training images a class in.")
    ] = False,
) -> None:
    """Write a finished run as a bundle: one ONNX graph with everything an answer needs, and a model card.

    Lower precision is refused where it changes the class of more than 1% of the run's images.

    Example: partgcd export runs/20260101-120000-abc123 --out model --int8
    """
    from partgcd.cli.progress import Progress
    from partgcd.config.errors import UserError
    from partgcd.export.bundle import refuse_existing
    from partgcd.export.manifest import Precision

    if int8 and fp16:
        raise UserError("--int8 is for CPUs and --fp16 for GPUs: give one of them")
    refuse_existing(out)
    from partgcd.export.export import export_run
    from partgcd.run.folder import RunFolder, find_run

    precision: Precision = "int8" if int8 else "fp16" if fp16 else "fp32"
    progress = Progress()
    try:
        made = export_run(RunFolder.open(find_run(run)), out, precision, with_images, progress.update)
    finally:
        progress.close()
    manifest = made.manifest
    size = sum(entry.bytes for entry in manifest.files.values()) / 1e6
    typer.echo(
        f"bundle {made.id[:12]} in {out}: {len(manifest.classes)} categories, {precision}, {size:.1f} MB"
    )
    typer.echo(
        f"parity with torch {manifest.parity.largest_difference:.1e} "
        f"(1e-4 allowed); same class as the run {100 * manifest.agreement:.1f}%"
    )
    if manifest.cost is not None:
        share, images = manifest.cost.changed, manifest.cost.images
        typer.echo(f"{precision} changed the class of {100 * share:.1f}% of {images} images")


@bundle.command("check", short_help="Verify every file of a bundle and its graph.")
def check(
    path: Annotated[Path, typer.Argument(help="The bundle's folder.")],
) -> None:
    """Verify every file of a bundle, its graph's inputs and outputs, and repeat its parity test here.

    Example: partgcd bundle check model
    """
    from partgcd.export.check import check_bundle

    found, worst = check_bundle(path)
    graph = found.manifest.graph
    typer.echo(
        f"bundle {found.id} is whole: {len(found.manifest.files)} files, {graph.precision}, opset {graph.opset}; "
        f"answers within {worst:.1e} of those at export ({found.manifest.parity.tolerance:.0e} allowed)"
    )
