"""Reads hidden classes from a file. Only evaluation may import this."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from partgcd.data.errors import UserError
from partgcd.data.manifest import paths_of, read_table
from partgcd.data.names import clean_label, first_few, printable


def read_truth(path: Path) -> dict[str, str]:
    """Hidden classes {path: class} from a CSV or Parquet table with columns path and truth (else label).

    Paths are taken as written, in posix form; rows with an empty class are left out. Raises UserError, also
    where a path is given two classes.
    """
    table = read_table(path)
    name = printable(path.name)
    column = "truth" if "truth" in table.columns else "label"
    if column not in table.columns:
        raise UserError(
            f"{name} has no column 'truth' (nor 'label'), only {first_few(sorted(table.columns), 8)}"
        )
    truth: dict[str, str] = {}
    for written, value in zip(paths_of(table, name), table.columns[column], strict=True):
        known = clean_label(value)
        place = PurePosixPath(written).as_posix()
        if known and truth.setdefault(place, known) != known:
            raise UserError(
                f"{name} gives {printable(place)} two classes: {printable(truth[place])}, {printable(known)}"
            )
    if not truth:
        raise UserError(f"{name} names no class: its column '{column}' is empty")
    return truth
