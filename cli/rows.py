"""Rows for people and programs: an aligned table, CSV, or JSON lines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any

FORMATS = ("table", "csv", "jsonl")

_WIDEST = 40


def check_format(form: str) -> None:
    """Raises UserError for a format that there is not."""
    from partgcd.config.errors import UserError

    if form not in FORMATS:
        raise UserError(f"no format '{form}': use {', '.join(FORMATS)}")


def print_rows(rows: Sequence[dict[str, Any]], form: str, columns: Sequence[str]) -> None:
    """Print ``rows``; a table and CSV have ``columns``, JSON lines all there is."""
    from partgcd.data.cells import json_line, text_cell

    if form == "jsonl":
        for row in rows:
            sys.stdout.write(json_line(row) + "\n")
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([text_cell(_plain(row.get(name))) for name in columns] for row in rows)
    else:
        from partgcd.data.names import printable

        cells = [[_cut(printable(_plain(row.get(name)))) for name in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in ([name.replace("_", " ") for name in columns], *cells):
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
