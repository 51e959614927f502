"""Reads hidden classes from a file. Only evaluation may import this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.data.manifest import read_labels
from partgcd.data.names import first_few, printable
from partgcd.data.places import Finder
from partgcd.data.spellings import tidy
from partgcd.data.table import paths_of, read_table


def read_truth(
    path: Path,
    root: Path | None = None,
    paths: Iterable[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Hidden classes {path: class} from a CSV or Parquet table with columns path and truth (else label).

    Given the ``root`` and ``paths`` of a catalog, paths of the table are found among those in whatever way they are
    written (``places.Finder``), and those that are none of them are left as they are; else all are, in posix form.
    Classes are read as labels are; rows with none are left out. tell: is given lines on what was not taken as it
    stands. Raises UserError, also where a path is given two classes.
    """
    table = read_table(path)
    name = printable(path.name)
    column = "truth" if "truth" in table.columns else "label"
    if column not in table.columns:
        raise UserError(
            f"{name} has no column 'truth' (nor 'label'), only {first_few(sorted(table.columns), 8)}"
        )
    finder = Finder(root, [path.parent, Path.cwd()], paths) if root is not None else None
    classes, notes = read_labels(table.columns[column], name)
    truth: dict[str, str] = {}
    strange: list[str] = []
    for written, known in zip(paths_of(table, name), classes, strict=True):
        place = finder.find(written) if finder is not None else None
        if place is None:
            place = tidy(written)
            strange.append(place)
        if known and truth.setdefault(place, known) != known:
            raise UserError(
                f"{name} gives {printable(place)} two classes: {printable(truth[place])}, {printable(known)}"
            )
    if not truth:
        raise UserError(f"{name} names no class: its column '{column}' is empty")
    if finder is not None:
        notes += finder.notes(name)
        if strange:
            notes.append(
                f"{name}: {len(strange)} of {len(table.lines)} paths are no image of the run: {first_few(strange)}"
            )
        for note in table.notes + notes:
            tell(note)
    return truth
