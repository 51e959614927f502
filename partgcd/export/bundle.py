"""A bundle on disk: written whole or not at all, and read only if every byte is the one that was written."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from partgcd.config.errors import UserError
from partgcd.data.names import first_few, printable
from partgcd.disk.files import BYTES, NO_LINK, NO_WAIT, disk_errors, write_bytes
from partgcd.disk.lock import claimed
from partgcd.export.manifest import FileEntry, Manifest, parse_manifest

MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
GRAPH = "model.onnx"
BANK = "gmm_bank.safetensors"
WEIGHTS = "weights.safetensors"
EXEMPLARS = "exemplars.safetensors"
PARITY = "parity.safetensors"
CARD = "MODEL_CARD.md"
THUMBNAILS = "thumbnails"

_NAME = re.compile(r"(thumbnails/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,120}")
_MOST_MANIFEST = 64_000_000
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A verified bundle. ``id`` is the sha256 of its manifest and stands for all of its content."""

    path: Path
    id: str
    manifest: Manifest

    def read(self, name: str) -> bytes:
        """The bytes of one of its files, checked again as they are read.

        Raises:
            UserError: the file changed since the bundle was opened.
        """
        entry = self.manifest.files[name]
        with _opened(self.path, name) as stream:
            data = stream.read(entry.bytes + 1)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _changed(self.path, name)
        return data


def open_bundle(path: Path) -> Bundle:
    """Verify a bundle: manifest, names, sizes and the sha256 of every file. The graph is not run.

    Raises:
        UserError: there is no bundle, or it is not what was exported; the file is named.
    """
    if not (path / MANIFEST).exists():
        raise UserError(f"no bundle in '{path}': partgcd export RUN --out '{path}' makes one")
    with _opened(path, MANIFEST) as stream:
        text = stream.read(_MOST_MANIFEST)
    with _opened(path, DIGEST) as stream:
        recorded = stream.read(1000)
    digest = hashlib.sha256(text).hexdigest()
    if recorded != _digest_line(digest):
        raise UserError(
            f"'{path}' was changed: {MANIFEST} and {DIGEST} do not belong together; export the bundle again",
            1,
        )
    manifest = parse_manifest(text)
    _check_names(path, manifest)
    for name, entry in manifest.files.items():
        _check_file(path, name, entry)
    return Bundle(path, digest, manifest)


def read_tensors(bundle: Bundle, name: str) -> dict[str, NDArray[Any]]:
    """The tensors in one of its files.

    Raises:
        UserError: the file changed since the bundle was opened, or holds none.
    """
    try:
        found: dict[str, NDArray[Any]] = load(bundle.read(name))
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"'{bundle.path}' is refused: {name} holds no tensors ({error})", 1) from error
    return found


def required_files(parts: bool) -> list[str]:
    """Files that a bundle cannot do without, beside manifest and digest."""
    return [GRAPH, *([BANK] if parts else []), WEIGHTS, EXEMPLARS, PARITY, CARD]


@contextmanager
def building(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` to write into; it becomes ``out`` if the block ends well, else it is removed.

    The folder is locked: of two processes that write the same ``out`` one has it, and what a killed one left in it is
    removed by the next.

    Raises:
        UserError: there is something at ``out`` already, or nothing can be written there; code 75 while another
            process writes it.
    """
    refuse_existing(out)
    target = Path(os.path.abspath(out))  # noqa: PTH100 - Path.absolute keeps '..'
    folder = target.with_name(f".{target.name}.part")
    with disk_errors(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    with claimed(folder, "writes a bundle", through_link=False) as alone:
        refuse_existing(out)
        if not alone:  # a disk without locks: a name of its own keeps the two apart
            with disk_errors(out):
                folder.rmdir()
                folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".part", dir=target.parent))
        elif folder.stat().st_uid != os.geteuid():
            raise UserError(f"'{folder}' belongs to somebody else: remove it, or choose another name", 1)
        else:
            _empty(folder)
        try:
            yield folder
            with disk_errors(out):
                folder.chmod(0o755)  # until now others were kept out
                refuse_existing(out)
                folder.rename(target)
                _sync(target.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    """Remove what a killed process left in ``folder``."""
    with disk_errors(folder):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def refuse_existing(out: Path) -> None:
    """Raises UserError where there is something at ``out``."""
    if os.path.lexists(out):
        raise UserError(f"--out '{out}' exists: bundles are never overwritten, choose another name")


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Write manifest.json and manifest.sha256; the bundle's id is returned."""
    text = manifest.to_json().encode("utf-8")
    digest = hashlib.sha256(text).hexdigest()
    write_bytes(folder / MANIFEST, text)
    write_bytes(folder / DIGEST, _digest_line(digest))
    return digest


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Size and digest of every file below ``folder``, by name."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            data = file.read_bytes()
            found[file.relative_to(folder).as_posix()] = FileEntry(
                sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)
            )
    return found


def _digest_line(digest: str) -> bytes:
    """As `sha256sum` writes and checks it."""
    return f"{digest}  {MANIFEST}\n".encode("ascii")


def _check_names(path: Path, manifest: Manifest) -> None:
    listed = set(manifest.files)
    for name in sorted(listed):
        # Only plain names, and one folder: nothing absolute, no '..', nothing hidden, nothing escaped.
        if _NAME.fullmatch(name) is None or name in (MANIFEST, DIGEST):
            raise UserError(f"'{path}' is refused: its manifest names a file '{printable(name)}'", 1)
    missing = [name for name in required_files(manifest.parts is not None) if name not in listed]
    if missing:
        raise UserError(f"'{path}' is refused: its manifest does not list {missing[0]}", 1)
    there = {MANIFEST, DIGEST, *listed}
    extra = []
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = (Path(folder) / name).relative_to(path).as_posix()
            if (Path(folder) / name).is_symlink():
                raise UserError(f"'{path}' is refused: {printable(place)} is a link", 1)
            if name in files and place not in there:
                extra.append(place)
    if extra:
        raise UserError(f"'{path}' was changed: its manifest does not list {first_few(sorted(extra))}", 1)


def _check_file(path: Path, name: str, entry: FileEntry) -> None:
    digest, size = hashlib.sha256(), 0
    with _opened(path, name) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > entry.bytes:
                break
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise _changed(path, name)


@contextmanager
def _opened(path: Path, name: str) -> Iterator[BinaryIO]:
    """A regular file of the bundle, never through a link.

    Raises:
        UserError: it is missing, unreadable, or something else than a file.
    """
    file = path / name
    try:
        handle = os.open(file, os.O_RDONLY | NO_LINK | NO_WAIT | BYTES)
        stream = os.fdopen(handle, "rb")
    except FileNotFoundError as error:
        raise UserError(f"'{path}' is incomplete: {name} is missing; export the bundle again", 1) from error
    except OSError as error:
        raise UserError(
            f"'{path}' is refused: {name} can't be read ({error.strerror or error})", 1
        ) from error
    with stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise UserError(f"'{path}' is refused: {name} is not a regular file", 1)
        yield stream


def _changed(path: Path, name: str) -> UserError:
    return UserError(
        f"'{path}' was changed: {name} is not the file that was exported; export the bundle again", 1
    )


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
