"""Reads tables that name images, CSV and Parquet, as people's programs write them: columns of text."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from partgcd.config.errors import UserError
from partgcd.data.names import first_few, printable
from partgcd.data.words import fold

if TYPE_CHECKING:
    from _csv import Reader

_TEXT = frozenset({".csv", ".tsv"})
_PARQUET = frozenset({".parquet", ".pq"})
MANIFESTS = _TEXT | _PARQUET
"""Lower-case suffixes of the tables that are read."""

_ROLES = ("path", "label", "truth")
_OTHER_NAMES = {
    "path": frozenset(
        {"file", "files", "filename", "filenames", "fname", "filepath", "paths", "pathname", "relpath"}
        | {
            "relativepath",
            "fullpath",
            "image",
            "images",
            "imagepath",
            "imagefile",
            "imagefilename",
            "imagename",
        }
        | {"img", "imgpath", "imgname", "imgfile", "photo", "photopath", "picture", "imagefilepath"}
    ),
    "label": frozenset(
        {"labels", "class", "classes", "classname", "classlabel", "labelname", "category", "categories"}
        | {"categoryname", "species", "speciesname", "scientificname", "taxon", "target", "targets", "y"}
    ),
}
"""What people call these columns otherwise, folded."""

_MARKS = "\ufeff\u200b"
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True)
class Table:
    """Named columns of text, all of one length; an empty cell is ''.

    lines: where each row stands. notes: lines on how the columns were taken.
    """

    columns: dict[str, list[str]]
    lines: list[int]
    notes: list[str] = field(default_factory=list)


def read_table(path: Path) -> Table:
    """A CSV, TSV or Parquet table with a column ``path``, as text. Column names are stripped and lower-cased.

    CSV: UTF-8 (or UTF-16 with a byte order mark); separated by comma, semicolon or tab. Where no column is called
    path, or none label or truth, the only one with a usual other name is it, and a note says so. Raises UserError.
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
        reason = error.strerror or " ".join(str(error).split())[:120]
        raise UserError(
            f"cannot read {name}: {reason}", 1 if isinstance(error, PermissionError) else 2
        ) from error
    if not table.lines:
        raise UserError(f"{name} lists no images: it has a header and nothing below it")
    return table


def paths_of(table: Table, name: str) -> list[str]:
    """The column ``path``; UserError for a row without one."""
    paths = table.columns["path"]
    for line, path in zip(table.lines, paths, strict=True):
        if not path.strip() or "\0" in path:
            raise UserError(f"{name}, line {line}: no path in column 'path'")
    return paths


def _csv(data: bytes, name: str) -> Table:
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name} is not UTF-8 text (line {line}): save it as UTF-8") from error
    text = text.lstrip().lstrip(_MARKS).lstrip()
    if not text:
        raise UserError(f"{name} is empty: give a header 'path,label' and a row an image")
    if "\0" in text:
        raise UserError(f"{name} holds NUL bytes: it is not a text table")
    try:
        return _parse(text, name)
    except csv.Error as error:
        # A blank between a closing quote and the separator is forgiven where that alone was wrong.
        mended = re.sub(r'(?<=")[ \t]+(?=[,;\t\r\n]|\Z)', "", text)
        if mended == text:
            raise UserError(f"{name} is not a valid CSV file: {error}") from error
    try:
        return _parse(mended, name)
    except csv.Error as error:
        raise UserError(f"{name} is not a valid CSV file: {error}") from error


def _parse(text: str, name: str) -> Table:
    separator, header, reader = _header(text, name)
    roles, notes = _roles(header, name)
    columns: dict[str, list[str]] = {column: [] for column in roles}
    lines = []
    for row in reader:
        if not row or (len(row) == 1 and len(header) > 1 and not row[0].strip()):
            continue
        if len(row) > len(header):
            if any(cell.strip() for cell in row[len(header) :]):
                raise UserError(
                    f"{name}, line {reader.line_num}: {len(row)} cells for {len(header)} columns: "
                    f"put double quotes around a cell that holds '{printable(separator)}'"
                )
            del row[len(header) :]
        lines.append(reader.line_num)
        row += [""] * (len(header) - len(row))
        for column, place in roles.items():
            columns[column].append(row[place])
    return Table(columns, lines, notes)


def _header(text: str, name: str) -> tuple[str, list[str], Reader]:
    """(separator, column names, reader of what follows): the separator is the one that sets the paths apart."""
    # A first line of spreadsheets that says what separates the cells.
    text = re.sub(r'\A"?sep=(.)"?[ \t]*(\r\n|\r|\n)', "", text)
    problem: csv.Error | None = None
    for called in (_is_path, _may_be_path):
        for separator in _SEPARATORS:
            reader = csv.reader(
                io.StringIO(text, newline=""),
                delimiter=separator,
                strict=True,
                skipinitialspace=_quotes_after_blanks(text, separator),
            )
            try:
                cells = next((row for row in reader if any(cell.strip() for cell in row)), [])
            except csv.Error as error:  # quotes that close before another separator
                problem = problem or error
                continue
            header = [cell.strip().strip(_MARKS).strip().lower() for cell in cells]
            if any(called(column) for column in header):
                return separator, header, reader
    if problem:
        raise problem
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]
    raise UserError(
        f"{name} has no column 'path', it begins '{printable(first.strip()[:80])}': start with 'path,label'"
    )


def _is_path(column: str) -> bool:
    return column == "path"


def _may_be_path(column: str) -> bool:
    return fold(column) in _OTHER_NAMES["path"]


def _quotes_after_blanks(text: str, separator: str) -> bool:
    """Whether a cell's quotes come after a blank, as in 'a, "b, c"': Python's reader takes them for text then."""
    apart = re.escape(separator)
    if not re.search(rf'[{apart}\r\n] +"', text):
        return False
    # Without the cells whose quotes stand where they should: in those such blanks mean nothing.
    bare = re.sub(rf'(\A|[{apart}\r\n])"(?:[^"]|"")*"', r"\1", text)
    return re.search(rf'[{apart}\r\n] +"', bare) is not None


def _roles(header: Sequence[str], name: str) -> tuple[dict[str, int], list[str]]:
    """Where each column stands, by the name that it has here, and lines on names that were taken for others'."""
    counts = Counter(header)
    for role in _ROLES:
        if counts[role] > 1:
            raise UserError(f"{name} has two columns named '{role}': keep one")
    columns: dict[str, int] = {}
    for place, column in enumerate(header):
        columns.setdefault(column, place)
    notes = []
    for role, names in _OTHER_NAMES.items():
        # What a table calls truth is hidden from training: no other column of it may be taken for labels.
        if role in columns or (role == "label" and "truth" in columns):
            continue
        fitting = [column for column in columns if fold(column) in names]
        if len(fitting) == 1 and counts[fitting[0]] == 1:
            columns[role] = columns.pop(fitting[0])
            notes.append(f"{name}: column '{printable(fitting[0])}' is read as '{role}'")
        elif role == "path":
            few = first_few(sorted(columns), 8)
            raise UserError(
                f"{name} has no column 'path', only {few}: name it in the header"
                if not fitting
                else f"{name} has no column 'path' and several that may be it: {first_few(fitting)}; call one 'path'"
            )
        elif fitting:
            notes.append(f"{name}: no column 'label'; {first_few(fitting)} may be it: call one 'label'")
    return columns, notes


def _parquet(path: Path, name: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as stored:
            written: list[str] = stored.schema_arrow.names
            roles, notes = _roles([column.strip().lower() for column in written], name)
            known = {role: written[roles[role]] for role in _ROLES if role in roles}
            table = stored.read(columns=list(known.values()))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's trouble, not the content's
            raise
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{name} is not a Parquet file that can be read: {reason}") from error
    columns = {role: _text(table[column], role, name) for role, column in known.items()}
    # Other columns are named for the note, and never read.
    columns.update({each: [""] * table.num_rows for each in roles if each not in known})
    return Table(columns, list(range(1, table.num_rows + 1)), notes)


def _text(column: object, called: str, name: str) -> list[str]:
    """A Parquet column as text: strings, plain or as a dictionary; for classes also whole numbers and booleans.

    Programs that have no gaps in whole numbers write them as floats: those are whole, and NaN is a gap.
    """
    import pyarrow as pa

    kind = column.type  # type: ignore[attr-defined]
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    other = called != "path" and (
        pa.types.is_integer(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind)
    )
    if called != "path" and pa.types.is_floating(kind):
        values = [None if value is None or value != value else float(value) for value in column.to_pylist()]  # type: ignore[attr-defined]
        if all(value is None or value.is_integer() for value in values):
            return ["" if value is None else str(int(value)) for value in values]
        raise UserError(
            f"{name}: column '{called}' holds {kind}, and not whole numbers alone: it must hold text"
        )
    if not (text or other):
        raise UserError(f"{name}: column '{called}' holds {kind}, it must hold text")
    try:
        return ["" if value is None else str(value) for value in column.to_pylist()]  # type: ignore[attr-defined]
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: column '{called}' is not UTF-8 text") from error
