"""``partgcd inspect`` and ``partgcd demo``: images that are there, and images to try with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    data: Annotated[Path, typer.Option(help="Folder or manifest, as for train.", show_default=False)],
) -> None:
    """Read every image of --data once and print what is there, what is broken and why.

    Example: partgcd inspect --data ./images
    """
    from partgcd.cli.progress import Progress
    from partgcd.config.tree import DataSettings
    from partgcd.data.ingest import ingest
    from partgcd.data.inspect import inspect as look
    from partgcd.data.scan import scan

    progress = Progress()
    listing = scan(data)
    catalog = ingest(
        listing,
        None,
        DataSettings(max_broken=1.0),
        progress=lambda done, total: progress.update("images", done, total),
    )
    progress.close()
    typer.echo(look(listing, catalog).table())


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder to write: new, empty, or of this very field guide.")
    ] = Path("demo-images"),
    species: Annotated[int, typer.Option(help="Categories.", min=2, max=24)] = 12,
    per_species: Annotated[int, typer.Option(help="Images a category.", min=4, max=2000)] = 40,
    size: Annotated[int, typer.Option(help="Pixels a side.", min=64, max=1024)] = 224,
    seed: Annotated[int, typer.Option(help="Another seed draws another field guide.")] = 0,
) -> None:
    """Draw a small field guide of insects that differ in one or two parts, half of it unlabelled.

    Example: partgcd demo --out demo-images, then partgcd train --data demo-images/images
    """
    from partgcd.cli.progress import Progress
    from partgcd.demo.samples import write_samples
    from partgcd.disk.files import disk_errors
    from partgcd.disk.lock import claimed

    progress = Progress()
    with claimed(out, "draws a field guide"), disk_errors(out):
        made = write_samples(
            out,
            seed,
            species,
            per_species,
            size,
            progress=lambda done, total: progress.update("drawing", done, total),
        )
    progress.close()
    typer.echo(f"{species} species, {len(made.old)} of them half labelled: {out / 'images'}")
    typer.echo(f"truth: {made.truth}")
    typer.echo(f"next: partgcd train --data {out / 'images'} --out {out / 'run'}")
