"""Reads tables that name images: CSV and Parquet manifests."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from partgcd.data.errors import UserError
from partgcd.data.listing import Entry, Listing, label_notes
from partgcd.data.names import clean_label, first_few, printable

if TYPE_CHECKING:
    from _csv import Reader

_TEXT = frozenset({".csv", ".tsv"})
_PARQUET = frozenset({".parquet", ".pq"})
MANIFESTS = _TEXT | _PARQUET
"""Lower-case suffixes of the tables that are read."""


@dataclass(frozen=True)
class Table:
    """Named columns of text, all of one length; an empty cell is ''. ``lines``: where each row stands."""

    columns: dict[str, list[str]]
    lines: list[int]


def read_manifest(path: Path) -> Listing:
    """A listing from a table with a column ``path`` and, if there, ``label`` and the hidden ``truth``.

    Paths are absolute or relative to the manifest's folder, and may lead out of it; whether they exist shows
    when they are read. White space around labels is dropped, an empty label is unlabelled. A path listed
    twice counts once, with the first label given. Raises UserError.
    """
    table = read_table(path)
    name = printable(path.name)
    root = path.parent.absolute()
    notes = []
    extra = sorted(set(table.columns) - {"path", "label", "truth"})
    if extra:
        notes.append(f"{name}: columns not used: {first_few(extra)}")
    rows = len(table.lines)
    labels = table.columns.get("label", [""] * rows)
    truths = table.columns.get("truth", [""] * rows)
    found: dict[str, Entry] = {}
    twice: list[str] = []
    differ: list[str] = []
    for written, label, truth in zip(paths_of(table, name), labels, truths, strict=True):
        entry = Entry(_relative(written, root), clean_label(label) or None, clean_label(truth) or None)
        before = found.get(entry.path)
        if before is None:
            found[entry.path] = entry
            continue
        twice.append(entry.path)
        if before.label and entry.label and before.label != entry.label:
            differ.append(f"{entry.path} ({before.label} / {entry.label})")
        found[entry.path] = Entry(entry.path, before.label or entry.label, before.truth or entry.truth)
    if twice:
        notes.append(f"{name}: {len(twice)} rows repeat a path and were joined: {first_few(twice)}")
    if differ:
        notes.append(f"{name}: paths with two labels keep the first: {first_few(differ)}")
    entries = sorted(found.values(), key=lambda entry: entry.path)
    return Listing(root, entries, notes + label_notes(entries), "manifest")


def read_table(path: Path) -> Table:
    """A CSV, TSV or Parquet table with a column ``path``, as text. Column names are stripped and lower-cased.

    CSV: UTF-8 (or UTF-16 with a byte order mark); separated by comma, semicolon or tab. Raises UserError.
    """
    name = printable(path.name)
    suffix = path.suffix.lower()
    if suffix not in MANIFESTS:
        raise UserError(
            f"{name} is not a table that is read here: give one of {', '.join(sorted(MANIFESTS))}"
        )
    try:
        table = _parquet(path, name) if suffix in _PARQUET else _csv(path.read_bytes(), name)
    except FileNotFoundError:
        raise UserError(f"no such file: {printable(str(path))}") from None
    except OSError as error:
        raise UserError(
            f"cannot read {name}: {error.strerror or ' '.join(str(error).split())[:120]}"
        ) from error
    if "path" not in table.columns:
        raise UserError(
            f"{name} has no column 'path', only {first_few(sorted(table.columns), 8)}: name it in the header"
        )
    if not table.lines:
        raise UserError(f"{name} lists no images: it has a header and nothing below it")
    return table


def _csv(data: bytes, name: str) -> Table:
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name} is not UTF-8 text (line {line}): save it as UTF-8") from error
    text = text.lstrip()
    if not text:
        raise UserError(f"{name} is empty: give a header 'path,label' and a row an image")
    if "\0" in text:
        raise UserError(f"{name} holds NUL bytes: it is not a text table")
    try:
        return _parse(text, name)
    except csv.Error as error:
        raise UserError(f"{name} is not a valid CSV file: {error}") from error


def _parse(text: str, name: str) -> Table:
    separator, header, reader = _header(text, name)
    _no_repeats(header, name)
    columns: dict[str, list[str]] = {column: [] for column in header}
    lines = []
    for row in reader:
        if not row or (len(row) == 1 and len(header) > 1 and not row[0].strip()):
            continue
        if len(row) > len(header):
            raise UserError(
                f"{name}, line {reader.line_num}: {len(row)} cells for {len(header)} columns: "
                f"put double quotes around a cell that holds '{printable(separator)}'"
            )
        lines.append(reader.line_num)
        for column, cell in zip(header, row + [""] * (len(header) - len(row)), strict=True):
            columns[column].append(cell)
    return Table(columns, lines)


def _parquet(path: Path, name: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as stored:
            written: list[str] = stored.schema_arrow.names
            wanted = {column: column.strip().lower() for column in written}
            known = [column for column in written if wanted[column] in ("path", "label", "truth")]
            _no_repeats([wanted[column] for column in known], name)
            table = stored.read(columns=known)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's trouble, not the content's
            raise
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{name} is not a Parquet file that can be read: {reason}") from error
    columns = {wanted[column]: _text(table[column], wanted[column], name) for column in known}
    # Other columns are named for the note, and never read.
    columns.update({each: [""] * table.num_rows for column, each in wanted.items() if column not in known})
    return Table(columns, list(range(1, table.num_rows + 1)))


def _text(column: object, called: str, name: str) -> list[str]:
    """A Parquet column as text: strings, plain or as a dictionary, or whole numbers."""
    import pyarrow as pa

    kind = column.type  # type: ignore[attr-defined]
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    number = called != "path" and (pa.types.is_integer(kind) or pa.types.is_null(kind))
    if not (text or number):
        raise UserError(f"{name}: column '{called}' holds {kind}, it must hold text")
    try:
        return ["" if value is None else str(value) for value in column.to_pylist()]  # type: ignore[attr-defined]
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: column '{called}' is not UTF-8 text") from error


def _header(text: str, name: str) -> tuple[str, list[str], Reader]:
    """(separator, column names, reader of what follows): the separator is the one that sets 'path' apart."""
    problem: csv.Error | None = None
    for separator in (",", ";", "\t"):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        try:
            cells = next((row for row in reader if any(cell.strip() for cell in row)), [])
        except csv.Error as error:  # quotes that close before another separator
            problem = problem or error
            continue
        header = [cell.strip().lower() for cell in cells]
        if "path" in header:
            return separator, header, reader
    if problem:
        raise problem
    first = text.split("\n", 1)[0]
    raise UserError(
        f"{name} has no column 'path', it begins '{printable(first.strip()[:80])}': start with 'path,label'"
    )


def _no_repeats(header: list[str], name: str) -> None:
    repeated = [column for column, count in Counter(header).items() if count > 1]
    if repeated:
        raise UserError(f"{name} has two columns named '{printable(repeated[0])}': keep one")


def paths_of(table: Table, name: str) -> list[str]:
    """The column ``path``; UserError for a row without one."""
    paths = table.columns["path"]
    for line, path in zip(table.lines, paths, strict=True):
        if not path.strip() or "\0" in path:
            raise UserError(f"{name}, line {line}: no path in column 'path'")
    return paths


def _relative(written: str, root: Path) -> str:
    """Posix path below ``root`` where it lies there, else as written."""
    path = PurePosixPath(Path(written).as_posix())
    top = PurePosixPath(root.as_posix())
    # '..' stays: resolving it by name alone is wrong below a link.
    if path.is_absolute() and path.is_relative_to(top) and os.pardir not in path.parts:
        path = path.relative_to(top)
    return path.as_posix()
