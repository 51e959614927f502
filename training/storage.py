"""Runs on a storage: what goes there with a checkpoint, and how a run comes back from it.

A storage is what Ray and pyarrow reach by a URI (``s3://``, ``gs://``, ``file://``) or a path. Below it a run
has a folder of its id; in that, Ray's folders ``checkpoint_*`` each hold all that a run needs to go on but the
photos themselves, and ``results`` what a finished run found.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from partgcd.config.errors import UserError
from partgcd.disk.files import read_json, write_json
from partgcd.run.folder import RunFolder

_LIST = "contents.json"
_LEFT_OUT = ("store", "cache", "checkpoints", "ray")


def is_uri(name: str) -> bool:
    """Whether ``name`` is a URI rather than a path or an id."""
    return "://" in name


def absolute(storage: str) -> str:
    """A storage as every worker understands it."""
    return storage if is_uri(storage) else os.path.abspath(storage)  # noqa: PTH100 - Path keeps '..'


@contextmanager
def pack(run: RunFolder, checkpoint: Path | None) -> Iterator[Path | None]:
    """Inside: a folder with all that the run needs to go on from ``checkpoint``; None where there is none.

    Its contents are listed with their sizes, so that a copy that was cut off is known as one.
    """
    if checkpoint is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="partgcd-") as scratch:
        kit = Path(scratch) / "kit"
        shutil.copytree(run.path, kit, ignore=lambda folder, names: _unwanted(run, folder))
        shutil.copytree(checkpoint, kit / "checkpoints" / checkpoint.name)
        for file in run.cache.glob("parts.*"):
            (kit / "cache").mkdir(exist_ok=True)
            shutil.copy2(file, kit / "cache" / file.name)
        files = [path for path in sorted(kit.rglob("*")) if path.is_file()]
        write_json(kit / _LIST, {str(path.relative_to(kit)): path.stat().st_size for path in files})
        yield kit


def _unwanted(run: RunFolder, folder: str) -> set[str]:
    names = set(_LEFT_OUT) if Path(folder) == run.path else set()
    return names | {name for name in os.listdir(folder) if name.startswith(".")}  # noqa: PTH208


def fetch(uri: str, runs: Path) -> Path:
    """Bring the run that lies at ``uri`` back to ``runs``/<id>, as its newest whole checkpoint holds it.

    Raises:
        UserError: no such storage or run, or the run is already here.
    """
    system, root = connect(uri)
    found = [
        info.path
        for info in listed(system, root)
        if info.type == pa.fs.FileType.Directory and info.base_name.startswith("checkpoint_")
    ]
    for folder in sorted(found, reverse=True):
        with tempfile.TemporaryDirectory(prefix="partgcd-") as scratch:
            kit = Path(scratch) / "kit"
            pa.fs.copy_files(folder, str(kit), source_filesystem=system)
            if not _whole(kit):
                continue
            (kit / _LIST).unlink()
            name = str(RunFolder.open(kit).info()["id"])
            target = runs / name
            if target.exists():
                raise UserError(
                    f"'{target}' is already here: --resume {name} goes on with it; move it away to begin from "
                    f"'{uri}'"
                )
            runs.mkdir(parents=True, exist_ok=True)
            shutil.move(kit, target)
            return target
    raise UserError(f"no run to resume at '{uri}': name the folder that holds its checkpoint_* folders")


def _whole(kit: Path) -> bool:
    try:
        sizes: dict[str, Any] = read_json(kit / _LIST)
        return all((kit / name).stat().st_size == size for name, size in sizes.items())
    except (UserError, OSError):
        return False


def put_results(run: RunFolder, storage: str) -> None:
    """Copy what a finished run found to ``storage``/<id>/results."""
    system, root = connect(storage)
    target = f"{root}/{run.info()['id']}/results"
    for path in sorted(run.path.rglob("*")):
        name = path.relative_to(run.path)
        if path.is_file() and name.parts[0] not in _LEFT_OUT:
            system.create_dir(f"{target}/{name.parent.as_posix()}")
            pa.fs.copy_files(str(path), f"{target}/{name.as_posix()}", destination_filesystem=system)


def connect(uri: str) -> tuple[pa.fs.FileSystem, str]:
    """The file system of a storage and the path in it.

    Raises:
        UserError: no such kind of storage.
    """
    try:
        system, path = pa.fs.FileSystem.from_uri(absolute(uri))
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"'{uri}' is no storage that can be reached: {str(error).splitlines()[0]}; use a folder, s3://, "
            "gs:// or another URI that pyarrow knows"
        ) from error
    return system, path


def listed(system: pa.fs.FileSystem, root: str) -> list[Any]:
    """What lies directly in ``root``; nothing where it does not exist."""
    try:
        return list(system.get_file_info(pa.fs.FileSelector(root, allow_not_found=True)))
    except OSError as error:
        raise UserError(f"the storage can't be read: {str(error).splitlines()[0]}", 1) from error
