"""What the report needs from a run folder, read from its documented files and nothing else."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from partgcd.config.errors import UserError

_REQUIRED = ("run.json", "classes.json", "catalog.parquet", "predictions.parquet")
_DEFAULT_IMAGE_SIZE = 224


@dataclass(frozen=True)
class Neighbour:
    """The known class a category resembles most; ``cosine`` in -1..1 between prototypes."""

    name: str
    cosine: float


@dataclass(frozen=True)
class Category:
    """One class of the run and the catalog rows it was given."""

    id: str
    name: str
    kind: str
    labelled: int
    rows: NDArray[np.int64]
    nearest: Neighbour | None

    @property
    def discovered(self) -> bool:
        return self.kind == "discovered"


@dataclass(frozen=True)
class RunRecord:
    """A run as the report sees it. N images in catalog order; categories discovered first, largest first."""

    folder: Path
    run: dict[str, Any]
    config: str
    image_size: int
    paths: list[str]
    labelled: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    margin: NDArray[np.float32]
    categories: list[Category]
    metrics: list[dict[str, Any]]
    evaluation: dict[str, Any] | None
    summary: dict[str, Any]
    quarantine: list[tuple[str, str]]
    duplicates: list[tuple[str, str]]
    notes: list[str]

    @property
    def seed(self) -> int:
        return int(self.run.get("seed") or 0)


@dataclass(frozen=True)
class PartMaps:
    """Part attention maps of R images: ``maps`` [R,P,K] and ``attention`` [R,P] (or None), P = gh * gw."""

    maps: NDArray[np.float32]
    attention: NDArray[np.float32] | None
    grid: tuple[int, int]


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. Raises UserError when it holds no finished run or a file of it cannot be read."""
    missing = [name for name in _REQUIRED if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} holds no finished run ({', '.join(missing)} missing): give the folder that a run wrote"
        )
    run = _mapping(folder / "run.json")
    catalog = _table(folder / "catalog.parquet")
    paths = [str(path) for path in _column(folder / "catalog.parquet", catalog, "path")]
    labels = _column(folder / "catalog.parquet", catalog, "label")
    predictions_file = folder / "predictions.parquet"
    predictions = _table(predictions_file)
    duplicates = _pairs(folder / "duplicates.csv")
    copies = {path for path, _ in duplicates}
    row_of = {path: row for row, path in enumerate(paths)}
    confidence = np.zeros(len(paths), np.float32)
    margin = np.zeros(len(paths), np.float32)
    members: dict[str, list[int]] = {}
    read = ("path", "class_id", "confidence", "margin")
    for path, class_id, sure, gap in zip(
        *(_column(predictions_file, predictions, name) for name in read), strict=True
    ):
        row = row_of.get(path)
        if row is None:
            if path in copies:  # answered like the image it copies, and no row of the catalog
                continue
            raise UserError(
                f"{predictions_file} names {path!r}, which the catalog lacks: the folder mixes two runs", 1
            )
        confidence[row], margin[row] = _number(sure), _number(gap)
        members.setdefault(str(class_id), []).append(row)
    config = _text(folder / "config.yaml")
    evaluation = _mapping(folder / "evaluation.json") if (folder / "evaluation.json").is_file() else None
    summary = _mapping(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    if evaluation is None and isinstance(summary.get("accuracy"), dict):
        evaluation = summary["accuracy"]
    return RunRecord(
        folder=folder,
        run=run,
        config=config,
        image_size=_image_size(config),
        paths=paths,
        labelled=np.array([label is not None for label in labels], dtype=np.bool_),
        confidence=confidence,
        margin=margin,
        categories=_categories(folder / "classes.json", members),
        metrics=_json_lines(folder / "metrics.jsonl"),
        evaluation=evaluation,
        summary=summary,
        quarantine=_pairs(folder / "quarantine.csv"),
        duplicates=duplicates,
        notes=_notes(catalog.schema.metadata or {}),
    )


def read_features(folder: Path, count: int) -> NDArray[np.float32] | None:
    """Class-token features [N,D] as float32, or None when the run kept none for its ``count`` images."""
    from safetensors import safe_open

    file = folder / "features.safetensors"
    if not file.is_file():
        return None
    with safe_open(file, framework="numpy") as tensors:
        if "cls" not in tensors.keys():  # noqa: SIM118  (a handle, not a mapping)
            return None
        features: NDArray[np.float32] = tensors.get_tensor("cls").astype(np.float32)
    return features if features.ndim == 2 and len(features) == count else None


def read_part_maps(folder: Path, rows: list[int]) -> PartMaps | None:
    """Part maps of the catalog rows given, read row by row (the file may be larger than memory)."""
    from safetensors import safe_open

    file = folder / "features.safetensors"
    if not rows or not file.is_file():
        return None
    with safe_open(file, framework="numpy") as tensors:
        names = set(tensors.keys())
        if not {"maps", "grid"} <= names:
            return None
        height, width = (int(side) for side in tensors.get_tensor("grid"))
        stored = tensors.get_slice("maps")
        images, patches, _ = stored.get_shape()
        if patches != height * width or max(rows) >= images:
            return None
        maps = np.concatenate([stored[row : row + 1] for row in rows]).astype(np.float32)
        attention = None
        if "attention" in names and tensors.get_slice("attention").get_shape() == [images, patches]:
            weights = tensors.get_slice("attention")
            attention = np.concatenate([weights[row : row + 1] for row in rows]).astype(np.float32)
    return PartMaps(maps, attention, (height, width))


def part_count(folder: Path) -> int:
    """K, the number of parts whose maps the run kept; 0 when it kept none."""
    found = read_part_maps(folder, [0])
    return 0 if found is None else int(found.maps.shape[2])


def _categories(file: Path, members: dict[str, list[int]]) -> list[Category]:
    listed = _json(file)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "id" in entry for entry in listed):
        raise UserError(f"{file} is not a list of classes: give the folder that a run wrote")
    kinds = {str(entry["id"]): str(entry.get("kind", "")) for entry in listed}
    unknown = sorted(set(members) - set(kinds))
    if unknown:
        raise UserError(
            f"{file} lacks the class {unknown[0]!r} that the predictions name: the folder mixes two runs", 1
        )
    categories = [
        Category(
            id=str(entry["id"]),
            name=str(entry.get("name") or entry["id"]),
            kind=kinds[str(entry["id"])],
            labelled=int(entry.get("labelled") or 0),
            rows=np.array(members.get(str(entry["id"]), []), dtype=np.int64),
            nearest=_nearest(entry.get("nearest") or [], kinds),
        )
        for entry in listed
    ]
    return sorted(categories, key=lambda c: (not c.discovered, -len(c.rows), c.name, c.id))


def _nearest(entries: list[dict[str, Any]], kinds: dict[str, str]) -> Neighbour | None:
    for entry in entries:
        if kinds.get(str(entry.get("id")), "old") == "old":
            return Neighbour(str(entry.get("name", entry.get("id"))), _number(entry.get("cosine")))
    return None


def _image_size(config: str) -> int:
    try:
        tree = yaml.safe_load(config)
    except yaml.YAMLError:
        return _DEFAULT_IMAGE_SIZE
    data = tree.get("data") if isinstance(tree, dict) else None
    size = data.get("image_size") if isinstance(data, dict) else None
    return size if isinstance(size, int) and size > 0 else _DEFAULT_IMAGE_SIZE


def _notes(metadata: dict[bytes, bytes]) -> list[str]:
    try:
        notes = json.loads(metadata.get(b"partgcd", b"{}"))["notes"]
    except (ValueError, KeyError, TypeError):
        return []
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _table(file: Path) -> Any:
    try:
        # ParquetFile reads this one file; read_table would take "run=1" in a folder's name for a partition.
        with pq.ParquetFile(file) as stored:
            return stored.read()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{file} cannot be read as Parquet ({reason}): restore it or run again", 1) from error


def _column(file: Path, table: Any, name: str) -> list[Any]:
    if name not in table.column_names:
        raise UserError(f"{file} has no column {name!r}: it was not written by this version of partgcd")
    values: list[Any] = table.column(name).to_pylist()
    return values


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): restore it or run again", 1) from error


def _mapping(file: Path) -> dict[str, Any]:
    content = _json(file)
    if not isinstance(content, dict):
        raise UserError(f"{file} does not hold a JSON object: restore it or run again", 1)
    return content


def _json_lines(file: Path) -> list[dict[str, Any]]:
    lines = []
    for line in _text(file).splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # a run that was killed may leave half a last line
            continue
        if isinstance(entry, dict):
            lines.append(entry)
    return lines


def _pairs(file: Path) -> list[tuple[str, str]]:
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", errors="replace", newline="") as stream:
        rows = list(csv.reader(stream))
    return [(row[0], row[1]) for row in rows[1:] if len(row) >= 2]
