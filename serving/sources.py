"""Where the model to serve comes from: a bundle's folder, a link to one, or an alias of a registry."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from partgcd.config.errors import UserError
from partgcd.export.bundle import DIGEST
from partgcd.export.predictor import Predictor
from partgcd.serving.settings import ServeSettings

if TYPE_CHECKING:
    from partgcd.registry.log import Identity


@dataclass(frozen=True)
class Wanted:
    """What should be served now.

    Attributes:
        path: the bundle's folder, links resolved.
        version: the id that its manifest.sha256 states; nothing is verified yet.
        labels: differs when names, merges or splits changed.
    """

    path: Path
    version: str
    labels: Hashable = None


@dataclass(frozen=True)
class Retired:
    """A class that answers no more, and who answers for it."""

    id: str
    merged_into: str | None
    split_into: tuple[str, ...] = ()


class Source(Protocol):
    """Looked at every second; all of it may block and is called from threads."""

    def current(self) -> Wanted:
        """What should be served. Raises UserError or OSError where that can't be told."""

    def dress(self, predictor: Predictor) -> Predictor:
        """``predictor`` with what people decided about its classes; its bundle's files are not read again."""

    def retired(self, class_id: str) -> Retired | None:
        """What became of a class that is not answered with."""

    def rename(self, class_id: str, name: str, wait: float) -> None:
        """Raises UserError as `registry.edits.rename` does; ``wait`` seconds for others who change it."""


class BundleSource:
    """A bundle in a folder. What is served changes with the folder's content, or with the link that it is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def current(self) -> Wanted:
        """See `Source`."""
        return _wanted(self.path)

    def dress(self, predictor: Predictor) -> Predictor:
        """See `Source`: a bundle alone has the names it was exported with."""
        return predictor

    def retired(self, class_id: str) -> Retired | None:
        """See `Source`."""
        return None

    def rename(self, class_id: str, name: str, wait: float) -> None:
        """See `Source`."""
        raise UserError(
            "a bundle never changes: put it into a registry (partgcd registry add) and serve that to rename classes"
        )


class RegistrySource:
    """The version that an alias of a registry points at, with the registry's names."""

    def __init__(self, path: Path, alias: str) -> None:
        from partgcd.registry.versions import Registry

        self.registry = Registry(path)
        self.alias = alias

    def current(self) -> Wanted:
        """See `Source`."""
        stamp = self.registry.stamp()[1]  # read first: a rename in between is seen the next time
        return _wanted(self.registry.resolve(self.alias), stamp)

    def dress(self, predictor: Predictor) -> Predictor:
        """See `Source`."""
        from partgcd.registry.overlay import overlay_of, with_overlay

        return with_overlay(predictor, overlay_of(predictor.bundle, self._identity()))

    def retired(self, class_id: str) -> Retired | None:
        """See `Source`."""
        identity = self._identity()
        if class_id in identity.merged:
            return Retired(class_id, identity.canonical(class_id))
        if class_id in identity.splits:
            return Retired(class_id, None, identity.splits[class_id].children)
        return None

    def rename(self, class_id: str, name: str, wait: float) -> None:
        """See `Source`."""
        from partgcd.registry.edits import rename

        rename(self.registry, class_id, name, wait)

    def _identity(self) -> Identity:
        from partgcd.registry.log import fold, read_log

        return fold(read_log(self.registry.log))


def open_source(settings: ServeSettings) -> Source:
    """The source that the settings name.

    Raises:
        UserError: there is neither a bundle nor a registry.
    """
    from partgcd.registry.serve import is_registry

    if is_registry(settings.source):
        return RegistrySource(settings.source, settings.alias)
    source = BundleSource(settings.source)
    source.current()
    return source


def _wanted(path: Path, labels: Hashable = None) -> Wanted:
    folder = path.resolve()
    try:
        text = (folder / DIGEST).read_bytes()[:64].decode("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"no bundle in '{path}': partgcd export RUN --out '{path}' makes one") from error
    if re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise UserError(f"'{path}' was changed: {DIGEST} holds no digest; export the bundle again", 1)
    return Wanted(folder, text, labels)
