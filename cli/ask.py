"""``partgcd ask``: images to a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ask(
    address: Annotated[str, typer.Argument(help="The server, like http://127.0.0.1:8000.")],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, patterns, or - for a list of files on stdin.")
    ],
    form: Annotated[str, typer.Option("--format", help="csv, jsonl or table.")] = "table",
    top_k: Annotated[int, typer.Option(help="Categories to name an image.", min=1, max=1000)] = 1,
    explain: Annotated[
        Path | None, typer.Option(help="Folder to draw each image's parts into.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="PARTGCD_API_KEY", show_envvar=True, help="If the server asks for one."),
    ] = None,
) -> None:
    """Put images into the categories of a running server, one row each, as classify does with a bundle.

    Example: partgcd ask http://127.0.0.1:8000 photos/ --format csv > answers.csv
    """
    from partgcd.cli.answers import FORMATS, write_answers
    from partgcd.cli.classify import find_images
    from partgcd.config.errors import UserError
    from partgcd.serving.client import ask as ask_server

    if form not in FORMATS:
        raise UserError(f"no format '{form}': use {', '.join(FORMATS)}")
    answers = ask_server(address, api_key, find_images(images), top_k, explain is not None)
    failed = write_answers(answers, form, top_k, explain, lambda done: None)
    if failed:
        typer.echo(f"{failed} of the images could not be read; their rows say why", err=True)
        raise typer.Exit(1)
