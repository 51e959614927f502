"""``partgcd classify``: what is on these images, by the thousand if need be."""

from __future__ import annotations

import glob
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partgcd.cli.progress import Progress
    from partgcd.data.places import Finder


def classify(
    bundle: Annotated[Path, typer.Argument(help="A bundle's folder, or a registry's: its champion.")],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, patterns, or - for a list of files on stdin.")
    ],
    form: Annotated[str, typer.Option("--format", help="csv, jsonl or table.")] = "table",
    top_k: Annotated[int, typer.Option(help="Categories to name an image.", min=1)] = 1,
    explain: Annotated[
        Path | None, typer.Option(help="Folder to draw each image's parts into.", show_default=False)
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of the graph; 0 takes all there are.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Images a run of the graph.", min=1, max=256)] = 8,
) -> None:
    """Put images into a bundle's categories, one row each. Exit code 1 if any image could not be read.

    Example: partgcd classify model photos/ --format csv --top-k 3 > answers.csv
    """
    from partgcd.cli.answers import FORMATS
    from partgcd.config.errors import UserError

    if form not in FORMATS:
        raise UserError(f"no format '{form}': use {', '.join(FORMATS)}")
    files = find_images(images)
    from partgcd.cli.answers import write_answers
    from partgcd.cli.progress import Progress
    from partgcd.export.stream import classify_stream
    from partgcd.registry.serve import load_predictor

    predictor = load_predictor(bundle, threads)
    if explain is not None and not predictor.has_parts:
        raise UserError(f"'{bundle}' was made by a method without parts: --explain has nothing to draw")
    total = len(files) if isinstance(files, list) else 0
    progress = Progress()
    answers = classify_stream(predictor, files, top_k, explain is not None, batch)
    try:
        failed = write_answers(
            answers, form, min(top_k, len(predictor.classes)), explain,
            lambda done: _report(progress, done, total),
        )  # fmt: skip
    finally:
        progress.close()
    if failed:
        typer.echo(f"{failed} of the images could not be read; their rows say why", err=True)
        raise typer.Exit(1)


def _report(progress: Progress, done: int, total: int) -> None:
    """A bar or lines; of a list that is read as it comes nobody knows how much is left."""
    if total:
        progress.update("classifying", done, total)
    elif done % 500 == 0:
        progress.line(f"{done} images classified")


def find_images(words: list[str]) -> list[Path] | Iterator[Path]:
    """The files that the command line names, in its order; read from stdin as they come for '-'.

    A file that is named is taken whatever its suffix; of folders, the images that every command sees. What was left
    out there, and names that were found in another spelling, are told in one line on stderr.

    Raises:
        UserError: a folder without images, a pattern that fits nothing, or '-' beside other words.
    """
    from partgcd.config.errors import UserError
    from partgcd.data.places import Finder

    finder = Finder(Path.cwd())
    if "-" in words:
        if len(words) > 1:
            raise UserError("- reads the list of images from stdin: give it alone")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # names are bytes, and not always UTF-8
        return _listed(finder)
    found: list[Path] = []
    notes: list[str] = []
    for word in words:
        # Unlike Path's, these answer no for a name that no file can have; its row says so later.
        if not os.path.lexists(word) and glob.has_magic(word):
            fitting = _fitting(word, notes)
            if not fitting:
                raise UserError(f"no file fits '{word}'")
            found += fitting
            continue
        place = _place(word, finder)
        if os.path.isdir(place):  # noqa: PTH112
            inside = _inside(place, notes)
            if not inside:
                more = f" ({'; '.join(notes)})" if notes else ""
                raise UserError(f"no images in '{word}'{more}")
            found += inside
        else:
            found.append(place)
    _tell(notes + finder.notes("the command line"))
    return found


def _listed(finder: Finder) -> Iterator[Path]:
    """Files of the list on stdin, by lines or by NULs."""
    for line in sys.stdin:
        for written in line.split("\0"):
            written = written.rstrip("\r\n")
            if written.strip():
                yield _place(written, finder)
    _tell(finder.notes("stdin"))


def _place(written: str, finder: Finder) -> Path:
    """As it is written where that is there, so that a row says what the list said."""
    return Path(written if os.path.lexists(written) else finder.find(written) or written)


def _fitting(pattern: str, notes: list[str]) -> list[Path]:
    """What a pattern fits, each once; names of systems only where the pattern says them."""
    from partgcd.data.walk import is_system

    said = set(Path(pattern).parts)
    found: dict[Path, None] = {}
    for name in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - any root
        place = Path(name)
        if not any(is_system(part) and part not in said for part in place.parts):
            found.update(dict.fromkeys(_inside(place, notes) if place.is_dir() else [place]))
    return list(found)


def _inside(folder: Path, notes: list[str]) -> list[Path]:
    from partgcd.data.walk import walk

    found = walk(folder)
    notes += [f"{folder}: {note}" for note in found.notes()]
    return [folder / path for path in found.files]


def _tell(notes: list[str]) -> None:
    if notes:
        typer.echo("note: " + "; ".join(dict.fromkeys(notes)), err=True)
