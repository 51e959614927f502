"""The registry on disk: versions that never change, and names that move between them in one step.

registry.json            what this folder is
versions/000001/         version.json, bundle/, and what came with it; made aside and renamed in
aliases.json             champion, candidate, previous, and every move so far; replaced as a whole
classes.jsonl            names, merges, splits and notes of classes (`identity`)
.lock, .rediscover       held by whoever changes the registry, or trains for it
work/                    a rediscovery under way
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.data.names import first_few
from partgcd.disk.files import disk_errors, read_json, remove_temporaries, write_bytes, write_json
from partgcd.disk.lock import locked
from partgcd.export.bundle import DIGEST, GRAPH, MANIFEST, Bundle, building, open_bundle
from partgcd.export.graph_check import check_graph

ALIASES = ("champion", "candidate", "previous")

BUNDLE, RECORD = "bundle", "version.json"
_FORMAT = "partgcd registry"
WAIT = 60.0
"""Seconds for another process to finish a change; the longest is the copy of a bundle."""

_KEPT_MOVES = 1000


@dataclass(frozen=True)
class Version:
    """One version. ``record`` is version.json: bundle id, parent, run, data digest, class ids, when and why."""

    number: int
    path: Path
    record: dict[str, Any]

    @property
    def bundle(self) -> Path:
        """The bundle's folder."""
        return self.path / BUNDLE

    @property
    def class_ids(self) -> list[str]:
        """Ids of its classes, by column."""
        return [str(each) for each in self.record["classes"]]


class Registry:
    """A registry that is there. Light: opening and resolving read two small files and no model."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where there is no registry at ``path``."""
        self.path = path
        self.log = path / "classes.jsonl"
        self.work = path / "work"
        self._versions = path / "versions"
        self._aliases = path / "aliases.json"
        if not (path / "registry.json").is_file():
            raise UserError(f"no registry in '{path}': partgcd registry init '{path}' makes one")
        about = read_json(path / "registry.json")
        if not isinstance(about, dict) or about.get("format") != _FORMAT or about.get("schema_version") != 1:
            raise UserError(f"'{path}' holds no registry that this program reads: update partgcd", 1)

    @classmethod
    def init(cls, path: Path) -> Registry:
        """Make a registry in ``path``; one that is there stays as it is.

        Raises:
            UserError: the folder holds something else.
        """
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            (path / "versions").mkdir(exist_ok=True)
            if not (path / "registry.json").exists():
                strange = {entry.name for entry in path.iterdir()} - {"versions", "work"}
                strange = {name for name in strange if not name.startswith(".")}
                if strange:
                    raise UserError(
                        f"'{path}' is not empty ({first_few(sorted(strange))}): name a new folder"
                    )
                created = datetime.now(UTC).isoformat(timespec="seconds")
                write_json(
                    path / "registry.json", {"format": _FORMAT, "schema_version": 1, "created": created}
                )
        return cls(path)

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return [
            Version(int(folder.name), folder, read_json(folder / RECORD))
            for folder in sorted(self._versions.iterdir())
            if re.fullmatch(r"\d{6,}", folder.name)
        ]

    def aliases(self) -> dict[str, int]:
        """{alias: version number} of the aliases that are set."""
        return {name: int(number) for name, number in self._pointers()["aliases"].items()}

    def moves(self) -> list[dict[str, Any]]:
        """Every move of an alias: time, alias, from, to, why; oldest first."""
        return list(self._pointers()["moves"])

    def resolve(self, name: str = "champion") -> Path:
        """The bundle's folder of an alias or a version number ('3' or 'v3').

        Raises:
            UserError: no such alias or version.
        """
        return self.version(name).bundle

    def version(self, name: str) -> Version:
        """The version of an alias or a number. Errors as `resolve`."""
        if name in ALIASES:
            number = self.aliases().get(name)
            if number is None:
                raise UserError(
                    f"'{self.path}' has no {name} yet: partgcd registry promote sets the champion", 1
                )
        else:
            matched = re.fullmatch(r"v?0*(\d{1,9})", name)
            if matched is None:
                raise UserError(f"no version '{name}': give a number, or one of {', '.join(ALIASES)}")
            number = int(matched[1])
        folder = self._versions / f"{number:06d}"
        if not (folder / RECORD).is_file():
            raise UserError(f"'{self.path}' has no version {number}: partgcd registry list names them", 1)
        return Version(number, folder, read_json(folder / RECORD))

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes whenever an alias moved or a class was renamed, merged or split; two calls of stat."""
        return tuple(_stamp(file) for file in (self._aliases, self.log))

    def log_digest(self) -> str:
        """Of the log of classes."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return hashlib.sha256(data).hexdigest()

    def add(
        self,
        bundle: Path,
        *,
        parent: int | None = None,
        note: str = "",
        extras: Mapping[str, bytes] | None = None,
    ) -> Version:
        """Copy a bundle in as the next version, verified before and as it lies there. No alias moves.

        The very bundle that is a version already is that version.

        Args:
            parent: the version it was trained from.
            extras: files beside the bundle, by name.

        Raises:
            UserError: the bundle is damaged, its graph is refused (`check_graph`), or it is of another family (it
                shares no class with the registry).
        """
        with self.changing(f"adding '{bundle.name}'"):
            found = open_bundle(bundle)
            check_graph(found.read(GRAPH))  # it may come from anybody, and is promoted without a look at it
            known = self.versions()
            same = [each for each in known if each.record["bundle"] == found.id]
            return same[0] if same else self._write(found, known, parent, note, extras or {})

    def point(self, alias: str, number: int, why: str) -> None:
        """Move an alias to a version. Raises UserError where there is no such version."""
        with self.changing(f"moving {alias}"):
            self._move({alias: self.version(str(number)).number}, why)

    def promote(self, name: str = "candidate", why: str = "by hand") -> Version:
        """Make a version the champion; the one before becomes 'previous', in the same step.

        Raises:
            UserError: no such version, or its bundle is not what was added.
        """
        with self.changing("promoting"):
            version = self.version(name)
            self._check(version)
            before = self.aliases()
            if before.get("champion") == version.number:
                return version
            targets: dict[str, int | None] = {"champion": version.number}
            if "champion" in before:
                targets["previous"] = before["champion"]
            if before.get("candidate") == version.number:
                targets["candidate"] = None
            self._move(targets, why)
        return version

    def rollback(self, why: str = "rolled back") -> Version:
        """Exchange champion and previous, in one step.

        Raises:
            UserError: there is no previous version, or its bundle is not what was added.
        """
        with self.changing("rolling back"):
            version = self.version("previous")
            self._check(version)
            self._move({"champion": version.number, "previous": self.aliases().get("champion")}, why)
        return version

    def verify(self) -> list[str]:
        """What is wrong with the registry, one line each: bundles, records, aliases, the log of classes."""
        from partgcd.registry.log import read_log

        problems, numbers = list[str](), set[int]()

        def look(what: str, at: Callable[[], object]) -> None:
            try:
                at()
            except UserError as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"{what} can't be read ({error.strerror or error})")
            except (KeyError, TypeError, ValueError) as error:
                problems.append(f"{what} is damaged ({type(error).__name__}: {error})")

        def look_at(folder: Path) -> None:
            version = self.version(folder.name)
            numbers.add(version.number)
            self._check(version)

        def look_at_versions() -> None:
            for folder in sorted(self._versions.iterdir()):
                if not folder.name.startswith("."):  # what a killed process left; the next change removes it
                    look(f"version {folder.name}", partial(look_at, folder))

        def look_at_aliases() -> None:
            for name, number in self.aliases().items():
                if number not in numbers:
                    problems.append(f"{name} is version {number}, which is not there or can't be read")

        look(f"'{self._versions}'", look_at_versions)
        look(f"'{self._aliases}'", look_at_aliases)
        look(f"'{self.log}'", partial(read_log, self.log))
        return problems

    @contextmanager
    def changing(self, what: str, wait: float = WAIT) -> Iterator[None]:
        """Inside: nobody else changes the registry; what a killed process left half written is gone.

        Args:
            wait: seconds for another process to finish.

        Raises:
            UserError: code 75 where another process would not finish.
        """
        with locked(self.path / ".lock", what, wait):
            remove_temporaries(self.path)
            for left in self._versions.glob(".*.part"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside: no other rediscovery of this registry runs.

        Raises:
            UserError: code 75 where another one does.
        """
        with locked(self.path / ".rediscover", "a rediscovery"):
            yield

    def _write(
        self,
        found: Bundle,
        known: list[Version],
        parent: int | None,
        note: str,
        extras: Mapping[str, bytes],
    ) -> Version:
        manifest = found.manifest
        ids = [each.id for each in manifest.classes]
        family = {name for version in known for name in version.class_ids}
        if known and not family & set(ids):
            raise UserError(
                f"'{found.path}' is of another family: it shares no class with '{self.path}'; "
                "--align gives its classes the ids of the champion's they agree with"
            )
        number = max((each.number for each in known), default=0) + 1
        record = {
            "version": number,
            "bundle": found.id,
            "parent": parent,
            "added": datetime.now(UTC).isoformat(timespec="seconds"),
            "note": note,
            "run": manifest.provenance.run,
            "data": manifest.provenance.data,
            "partgcd": manifest.provenance.partgcd,
            "classes": ids,
        }
        folder = self._versions / f"{number:06d}"
        with building(folder) as part:
            _copy(found, part / BUNDLE)
            if open_bundle(part / BUNDLE).id != found.id:
                raise UserError(f"'{found.path}' changed while it was copied: add it again", 1)
            for name, data in extras.items():
                write_bytes(part / name, data)
            write_json(part / RECORD, record)
        return Version(number, folder, record)

    def _check(self, version: Version) -> None:
        if open_bundle(version.bundle).id != version.record["bundle"]:
            raise UserError(f"version {version.number} holds another bundle than the one that was added", 1)

    def _pointers(self) -> dict[str, Any]:
        if not self._aliases.exists():
            return {"aliases": {}, "moves": []}
        found = read_json(self._aliases)
        if not isinstance(found, dict) or not isinstance(found.get("aliases"), dict):
            raise UserError(f"'{self._aliases}' is damaged: it names no aliases", 1)
        return found

    def _move(self, targets: Mapping[str, int | None], why: str) -> None:
        """Point aliases (None drops one) in a single replacement of the file."""
        before = self._pointers()
        now, moves = dict(before["aliases"]), list(before["moves"])
        time = datetime.now(UTC).isoformat(timespec="seconds")
        for name, number in targets.items():
            if now.get(name) == number:
                continue
            moves.append({"time": time, "alias": name, "from": now.get(name), "to": number, "why": why})
            if number is None:
                now.pop(name, None)
            else:
                now[name] = number
        write_json(self._aliases, {"aliases": now, "moves": moves[-_KEPT_MOVES:]})


def _copy(bundle: Bundle, target: Path) -> None:
    """Copy what is the bundle, and make it last through a power cut."""
    for name in (MANIFEST, DIGEST, *bundle.manifest.files):
        copy = target / name
        with disk_errors(target):  # copytree would go on after a full disk, and list its failures at the end
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, copy, follow_symlinks=False)
            handle = os.open(copy, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        about = file.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (about.st_ino, about.st_mtime_ns, about.st_size)
