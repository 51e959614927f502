"""What a data set holds once every image was looked at: rows, labels, and what was left out and why."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.data.cells import path_cell, read_path_cell, text_cell


class Role(IntEnum):
    """How an image came into a rediscovery; all of a plain training are new."""

    NEW = 0
    TAUGHT = 1  # with the label of a class that it shows by example
    CORRECTED = 2  # with the label of a known class
    REPLAYED = 3  # out of the champion's memory: there is no file of it


@dataclass(frozen=True)
class Broken:
    """An image that could not be read. ``path`` is relative to the catalog's root where it lies inside."""

    path: str
    reason: str


@dataclass(frozen=True)
class Duplicate:
    """A file with the very bytes of another: ``same_as`` is the path that was kept."""

    path: str
    same_as: str


@dataclass(frozen=True)
class Catalog:
    """N usable images in path order; row r of everything a run computes is ``paths[r]``. Knows no hidden
    truth.

    root: the folder that ``paths`` are relative to.
    paths: [N] sorted posix paths; absolute for manifest rows outside root; may hold any character.
    keys: [N] first 8 bytes (big endian) of the SHA-256 of the file's content: the identity of the image.
    labels: [N] index into label_names, -1 where the image is unlabelled.
    label_names: the old classes, sorted.
    sizes: [N,2] (width, height) in pixels, of the upright original.
    broken, duplicates: files left out; notes: lines for people.
    roles: [N] of `Role`; all new if not given.
    """

    root: Path
    paths: list[str]
    keys: NDArray[np.uint64]
    labels: NDArray[np.int64]
    label_names: list[str]
    sizes: NDArray[np.int32]
    broken: list[Broken] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    roles: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __post_init__(self) -> None:
        n = len(self.paths)
        if not len(self.roles):
            object.__setattr__(self, "roles", np.zeros(n, np.uint8))
        shapes = (self.keys.shape, self.labels.shape, self.sizes.shape, self.roles.shape)
        if shapes != ((n,), (n,), (n, 2), (n,)):
            raise ValueError(
                f"a catalog of {n} paths needs keys [N], labels [N], sizes [N,2] and roles [N], not {shapes}"
            )

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """[N] True where the image has a label."""
        return self.labels >= 0

    def file(self, row: int) -> Path:
        """Where the image of a row lies."""
        return self.root / self.paths[row]

    def digest(self) -> str:
        """Hex SHA-256 over keys, paths and labels: equal for two catalogs that train alike."""
        rows = json.dumps([self.paths, self.label_names]).encode("ascii")
        digest = hashlib.sha256(len(rows).to_bytes(8, "big") + rows)
        digest.update(self.keys.astype(">u8").tobytes())
        digest.update(self.labels.astype(">i8").tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> Path:
        """Write catalog.parquet (path, key, label, width, height, role), quarantine.csv and duplicates.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        names = [None if label < 0 else self.label_names[label] for label in self.labels.tolist()]
        table = pa.table(
            {
                "path": pa.array(self.paths, pa.string()),
                "key": pa.array(self.keys, pa.uint64()),
                "label": pa.array(names, pa.string()),
                "width": pa.array(self.sizes[:, 0], pa.int32()),
                "height": pa.array(self.sizes[:, 1], pa.int32()),
                "role": pa.array([Role(role).name.lower() for role in self.roles.tolist()], pa.string()),
            }
        )
        about = {"root": str(self.root), "label_names": self.label_names, "notes": self.notes}
        write_quarantine(folder / "quarantine.csv", self.broken)
        _write_rows(
            folder / "duplicates.csv",
            ("path", "same_as"),
            [(path_cell(each.path), path_cell(each.same_as)) for each in self.duplicates],
        )
        # Last and in one step: a folder with a catalog.parquet has the whole catalog, whenever a kill came.
        target, temporary = folder / "catalog.parquet", folder / f".catalog.parquet.{os.getpid()}.tmp"
        try:
            pq.write_table(table.replace_schema_metadata({"partgcd": json.dumps(about)}), temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, folder: Path) -> Catalog:
        """Read what ``save`` wrote. Raises UserError (code 1) where a file is missing or damaged."""
        try:
            # ParquetFile reads this one file; read_table would take "run=1" in a folder's name for a
            # partition.
            with pq.ParquetFile(folder / "catalog.parquet") as stored:
                table = stored.read()
            about = json.loads(table.schema.metadata[b"partgcd"])
            label_names: list[str] = about["label_names"]
            index = {name: number for number, name in enumerate(label_names)}
            labels = [-1 if name is None else index[name] for name in table["label"].to_pylist()]
            roles = table["role"].to_pylist() if "role" in table.column_names else []  # older ones have none
            return cls(
                root=Path(about["root"]),
                paths=table["path"].to_pylist(),
                keys=table["key"].to_numpy().astype(np.uint64),
                labels=np.array(labels, np.int64),
                label_names=label_names,
                sizes=np.stack([table["width"].to_numpy(), table["height"].to_numpy()], 1).astype(np.int32),
                broken=[
                    Broken(read_path_cell(path), reason)
                    for path, reason in _read_rows(folder / "quarantine.csv")
                ],
                duplicates=[
                    Duplicate(*map(read_path_cell, row)) for row in _read_rows(folder / "duplicates.csv")
                ],
                notes=about["notes"],
                roles=np.array([Role[role.upper()] for role in roles], np.uint8),
            )
        except FileNotFoundError as error:
            missing = Path(error.filename or "catalog.parquet").name  # pyarrow's error names no file
            raise UserError(f"no catalog in {folder}: {missing} is missing", code=1) from error
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, csv.Error) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the catalog in {folder} is damaged ({reason[:120]}): scan the data again", code=1
            ) from error


def write_quarantine(path: Path, broken: list[Broken]) -> None:
    """Write a CSV (path, reason) of the images left out. Names with newlines are quoted, as CSV wants it."""
    rows = [(path_cell(each.path), str(text_cell(each.reason))) for each in broken]
    _write_rows(path, ("path", "reason"), rows)


def _write_rows(path: Path, header: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _read_rows(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [(first, second) for first, second in list(csv.reader(file, strict=True))[1:]]
