"""The run folder: what a run leaves on disk, and where each piece lies."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd import __version__
from partgcd.config.errors import UserError
from partgcd.config.load import differing_keys, load_settings, to_yaml
from partgcd.config.tree import Settings
from partgcd.disk.files import (
    disk_errors,
    is_temporary,
    read_json,
    remove_temporaries,
    write_bytes,
    write_json,
    write_text,
)
from partgcd.disk.lock import claimed

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "faiss-cpu",
    "faiss-gpu",
)


REFUSED = "refused"
"""Status of a run that ended before it trained: wrong settings, no weights, too many broken images."""


class RunFolder:
    """Paths and small records of one run. Create one with `create`, come back to one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.record = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.truth = path / "truth.parquet"
        self.quarantine = path / "quarantine.csv"
        self.classes = path / "classes.json"
        self.features = path / "features.safetensors"
        self.model = path / "model.safetensors"
        self.predictions = path / "predictions.parquet"
        self.evaluation = path / "evaluation.json"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.epochs = path / "epochs"
        self.store = path / "store"
        self.cache = path / "cache"
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(
        cls, path: Path, settings: Settings, data: Path, request: dict[str, Any], run_id: str | None = None
    ) -> RunFolder:
        """Begin a run in ``path``, which must not hold one, but for one that was refused before it trained.

        Args:
            path: becomes the run folder.
            settings: the resolved tree, written to config.yaml.
            data: what ``--data`` named; kept absolute so that a resume works from anywhere.
            request: what else decides the run's catalog (protocol, split file).
            run_id: unique; minted here if not given.

        Raises:
            UserError: the folder holds a run (naming the keys that differ) or other files.
        """
        run = cls(path)
        if is_there(run.record) and run.info().get("status") == REFUSED:
            run.clear()
        elif is_there(run.record):
            raise UserError(
                f"'{path}' already holds a run{_difference(run, settings)}: --resume '{path}' continues it, "
                "another --out begins a new one"
            )
        make_folder(path)
        write_text(run.config, to_yaml(settings))
        write_json(run.record, {
            "id": run_id or new_run_id(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "begun",
            "partgcd": __version__,
            "seed": settings.seed,
            "data": os.path.abspath(data),  # noqa: PTH100 - Path.absolute keeps '..'
            "request": request,
            "command": sys.argv[1:],
            "python": sys.version.split()[0],
            "versions": _versions(),
            "git": _git_revision(),
        })  # fmt: skip
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run folder.

        Raises:
            UserError: there is none at ``path``.
        """
        run = cls(path)
        if not is_there(run.record):
            raise UserError(f"no run in '{path}': a run folder holds run.json")
        return run

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Inside: no other process works on this run. See `claimed_run`."""
        with claimed_run(self.path):
            yield

    def refuse(self) -> None:
        """Record that the run could not be done as asked; if nothing was trained it may be begun anew."""
        self.update(status="failed" if self.checkpoints.exists() else REFUSED)

    def clear(self) -> None:
        """Remove what an untrained run has written."""
        for folder in (self.store, self.cache, self.epochs):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.record, self.metrics, self.truth, self.path / "catalog.parquet"):
            file.unlink(missing_ok=True)
        for table in (self.quarantine, self.path / "duplicates.csv"):
            table.unlink(missing_ok=True)

    def settings(self) -> Settings:
        """The resolved settings the run was begun with."""
        return load_settings(file=self.config)

    def info(self) -> dict[str, Any]:
        """run.json."""
        loaded: dict[str, Any] = read_json(self.record)
        return loaded

    def update(self, **fields: Any) -> None:
        """Set fields of run.json atomically."""
        write_json(self.record, {**self.info(), **fields})

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one epoch's line to metrics.jsonl."""
        with disk_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines written so far; a line cut by a kill is left out."""
        if not self.metrics.exists():
            return []
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines

    def save_epoch(self, after: int, **arrays: NDArray[Any]) -> None:
        """Write ``epochs/epoch-NNNN.npz``: how things stood after ``after`` epochs."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, value in arrays.items():
                # Named by a ZipInfo the entry carries no clock time: equal arrays make equal files.
                entry = zipfile.ZipInfo(f"{name}.npy")
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w") as stream:
                    np.lib.format.write_array(stream, np.asanyarray(value), allow_pickle=False)
        write_bytes(self.epochs / f"epoch-{after:04d}.npz", buffer.getvalue())

    def read_epochs(self) -> list[tuple[int, dict[str, NDArray[Any]]]]:
        """(epoch, arrays) of every recorded epoch, in order."""
        found = []
        # Not a pattern: of a folder that may not be read it would find nothing, in silence.
        files = sorted(self.epochs.iterdir()) if self.epochs.is_dir() else []
        for path in (file for file in files if re.fullmatch(r"epoch-\d+\.npz", file.name)):
            with np.load(path, allow_pickle=False) as arrays:
                found.append((int(path.stem.removeprefix("epoch-")), dict(arrays)))
        return found

    def keep_metrics(self, epochs: int) -> None:
        """Drop lines of epochs after ``epochs``: a resumed run writes them again."""
        kept = [line for line in self.read_metrics() if line["epoch"] <= epochs]
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


@contextmanager
def claimed_run(path: Path) -> Iterator[bool]:
    """Inside: no other process begins or works on the run in ``path``, and what a killed one left half written is gone.

    The folder is made if it is not there: of two that begin a run in it at the same moment one has it.

    Yields:
        False on a disk without locks: the run goes on without, and leaves strange files alone.

    Raises:
        UserError: code 75 while another process works on the run.
    """
    if is_there(path) and not path.is_dir():
        raise UserError(f"--out '{path}' is a file: name a folder")
    with claimed(path, "works on the run") as known:
        if known and is_there(path / "run.json"):
            for folder in (path, path / "epochs", path / "cache"):
                remove_temporaries(folder)
        yield known


def make_folder(path: Path) -> None:
    """Make ``path``, which may hold no more than what a start leaves that was killed before its record.

    Raises:
        UserError: it is a file, or it holds something else.
    """
    with disk_errors(path):
        if path.exists() and not path.is_dir():
            raise UserError(f"--out '{path}' is a file: name a folder")
        if path.is_dir() and any(
            entry.name != "config.yaml" and not is_temporary(entry.name) for entry in path.iterdir()
        ):
            raise UserError(f"--out '{path}' is not empty and holds no run: choose a new folder")
        path.mkdir(parents=True, exist_ok=True)
        remove_temporaries(path)


def find_run(name: str, runs: Path = Path("runs")) -> Path:
    """The folder of ``--resume NAME``: a path, or the id or folder name of a run below ``runs``.

    Raises:
        UserError: nothing there; the ids that are there are listed.
    """
    direct = Path(name)
    if is_there(direct / "run.json"):
        return direct
    known = {}
    for folder in sorted(runs.iterdir()) if runs.is_dir() else ():
        if folder.name == name and is_there(folder / "run.json"):
            return folder
        try:
            known[str(read_json(folder / "run.json")["id"])] = folder
        except (UserError, KeyError, TypeError):
            continue
    if name in known:
        return known[name]
    listed = f"known here: {', '.join(list(known)[-5:])}" if known else f"'{runs}' holds no runs"
    raise UserError(f"no run '{name}' to resume; {listed}")


def is_there(path: Path) -> bool:
    """Whether ``path`` exists; a name that no file can have does not.

    Raises:
        PermissionError: nobody may know: the folder that it would be in is closed.
    """
    try:
        return path.exists()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False


def new_run_id() -> str:
    """Sortable and unique: the time in UTC and 24 random bits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _difference(run: RunFolder, settings: Settings) -> str:
    try:
        keys = differing_keys(run.settings(), settings)
    except UserError:
        return ""
    return f" of another configuration ({'; '.join(keys[:6])})" if keys else ""


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_revision() -> str | None:
    """The commit of the checkout this package runs from; None for an installed wheel."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
