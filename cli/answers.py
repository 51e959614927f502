"""Answers as rows: CSV, JSON lines, or a table for people; and the drawings that explain them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from partgcd.export.predictor import Answer, Failure

FORMATS = ("csv", "jsonl", "table")

_PATH, _NAME = 44, 32


class _Row(Protocol):
    def __call__(self, path: str, result: Answer | Failure, drawing: str | None) -> None: ...


def write_answers(
    answers: Iterable[tuple[Path, Answer | Failure]],
    form: str,
    top_k: int,
    explain: Path | None,
    tick: Callable[[int], None],
) -> int:
    """Print every answer as it comes; how many images failed is returned.

    Args:
        top_k: categories a row names.
        explain: folder for overlays, NUMBER-NAME.png each.
        tick: called with the number of rows printed.
    """
    from partgcd.export.predictor import Failure

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack a category's letters
    row = {"csv": _csv, "jsonl": _jsonl, "table": _table}[form](top_k, explain is not None)
    failed = 0
    for number, (path, result) in enumerate(answers, start=1):
        drawing = None
        if isinstance(result, Failure):
            failed += 1
        elif explain is not None and result.overlay is not None:
            drawing = str(_draw(explain, number, path, result.overlay))
        row(str(path), result, drawing)
        tick(number)
    sys.stdout.flush()
    return failed


def _draw(folder: Path, number: int, path: Path, overlay: Any) -> Path:
    from partgcd.data.names import storable
    from partgcd.disk.files import disk_errors

    # The number keeps images of one name in different folders apart; a name may hold anything but a slash.
    file = folder / f"{number:06d}-{storable(path.stem)[:80]}.png"
    with disk_errors(file):
        folder.mkdir(parents=True, exist_ok=True)
        overlay.save(file)
    return file


def _csv(top_k: int, explain: bool) -> _Row:
    from partgcd.data.cells import path_cell, text_cell
    from partgcd.data.names import storable
    from partgcd.export.predictor import Failure

    writer = csv.writer(sys.stdout, lineterminator="\n")
    header = ["path", "class_id", "class_name", "kind", "confidence"]
    for place in range(2, top_k + 1):
        header += [f"class_id_{place}", f"class_name_{place}", f"confidence_{place}"]
    header += ["novel", "novelty", *(["explanation"] if explain else []), "model_version", "error"]
    writer.writerow(header)

    def row(path: str, result: Answer | Failure, drawing: str | None) -> None:
        if isinstance(result, Failure):
            empty = [""] * (len(header) - 3)
            writer.writerow([path_cell(storable(path)), *empty, result.version, text_cell(result.reason)])
            return
        best = result.best
        cells: list[object] = [path_cell(storable(path))]
        cells += [text_cell(best.id), text_cell(best.name), best.kind, f"{best.probability:.5f}"]
        for choice in result.top[1:]:
            cells += [text_cell(choice.id), text_cell(choice.name), f"{choice.probability:.5f}"]
        cells += [str(result.novel).lower(), f"{result.novelty:.4f}"]
        cells += [path_cell(storable(drawing or ""))] if explain else []
        writer.writerow([*cells, result.version, ""])

    return row


def _jsonl(top_k: int, explain: bool) -> _Row:
    from partgcd.data.cells import json_line
    from partgcd.data.names import storable
    from partgcd.export.predictor import Failure

    def row(path: str, result: Answer | Failure, drawing: str | None) -> None:
        line: dict[str, Any] = {"path": storable(path)}
        if isinstance(result, Failure):
            line["error"] = result.reason
        else:
            line["top"] = [
                {
                    "id": each.id,
                    "name": each.name,
                    "kind": each.kind,
                    "confidence": round(each.probability, 5),
                }
                for each in result.top
            ]
            line |= {"novel": result.novel, "novelty": round(result.novelty, 4)}
            if drawing is not None:
                line["explanation"] = drawing
        line["model_version"] = result.version
        sys.stdout.write(json_line(line) + "\n")

    return row


def _table(top_k: int, explain: bool) -> _Row:
    from partgcd.data.names import printable
    from partgcd.export.predictor import Failure

    # Columns have fixed widths, because rows are printed before the next image is looked at.
    print(f"{'image':<{_PATH}}  {'category':<{_NAME}}  {'sure':>6}  novel")

    def row(path: str, result: Answer | Failure, drawing: str | None) -> None:
        shown = _cut(printable(path), _PATH, keep_end=True)
        if isinstance(result, Failure):
            print(f"{shown:<{_PATH}}  not read: {printable(result.reason)}")
            return
        for place, choice in enumerate(result.top):
            name = _cut(printable(choice.name), _NAME)
            mark = ("new kind" if result.novel else "") if place == 0 else ""
            line = f"{shown if place == 0 else '':<{_PATH}}  {name:<{_NAME}}  {100 * choice.probability:5.1f}%  {mark}"
            print(line.rstrip())

    return row


def _cut(text: str, width: int, keep_end: bool = False) -> str:
    if len(text) <= width:
        return text
    return "…" + text[-(width - 1) :] if keep_end else text[: width - 1] + "…"
