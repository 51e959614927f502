"""Finds the file that a line of a list means: the one resolver, for manifests, splits, truth files and stdin.

The exact spelling always wins. Only where nothing is there are other ways tried in which people's programs write the
same path, and one is only taken where it leads to one file alone.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from partgcd.data.names import first_few
from partgcd.data.spellings import is_address, spellings, tidy
from partgcd.data.walk import is_image, is_system

_ELSEWHERE = "relative to another folder"
_SPELT = "case, blanks or Unicode form"
_SUFFIX = "no suffix"
_MOVED = "folders that are elsewhere by now"
_DEEPER = "a folder further down"
_SEVERAL = "more than one file could be meant"
_TOLD = 1000


@dataclass
class _Index:
    """Names in a folder by what they are when case and Unicode form don't count; of images also without suffix."""

    names: dict[str, list[str]] = field(default_factory=dict)
    stems: dict[str, list[str]] = field(default_factory=dict)


class _Disk:
    """What is on disk."""

    def there(self, place: str) -> bool:
        return os.path.lexists(place)  # a broken link is there, too

    def names(self, place: str) -> list[str]:
        try:
            return os.listdir(place)  # noqa: PTH208 - a Path for each is slow
        except (OSError, ValueError):
            return []

    def folders(self, place: str) -> list[str]:
        try:
            with os.scandir(place) as listed:
                return sorted(item.name for item in listed if item.is_dir())
        except (OSError, ValueError):
            return []


class _Listed:
    """What a listing has, by absolute places."""

    def __init__(self, places: Iterable[str]) -> None:
        self._inside: dict[str, set[str]] = {}
        self._files = set(places)
        for place in self._files:
            while place not in ("", "/"):
                above, _, name = place.rpartition("/")
                known = above in self._inside
                self._inside.setdefault(above, set()).add(name)
                if known:
                    break
                place = above

    def there(self, place: str) -> bool:
        return place in self._files

    def names(self, place: str) -> list[str]:
        return sorted(self._inside.get(place.rstrip("/"), ()))

    def folders(self, place: str) -> list[str]:
        return [name for name in self.names(place) if f"{place.rstrip('/')}/{name}" in self._inside]


class Finder:
    """Files that a list names, on disk or among the paths of a listing. Remembers the folders it has looked into.

    root: the folder that relative paths start from. beside: folders that they may start from as well. paths: those
    of the listing, relative to root or absolute; None looks at the disk.
    """

    def __init__(self, root: Path, beside: Iterable[Path] = (), paths: Iterable[str] | None = None) -> None:
        # Not resolved: '..' behind a link leads elsewhere than its name says.
        self._root = str(root.absolute())
        self._real_root = os.path.realpath(self._root).rstrip("/")
        self._bases = list(dict.fromkeys([self._root, *(str(each.absolute()) for each in beside)]))
        self._names = paths is not None
        self._paths = {self._at(self._root, path): path for path in paths or ()}
        self._files: _Disk | _Listed = _Listed(self._paths) if self._names else _Disk()
        self._indices: dict[str, _Index] = {}
        self._inner: dict[str, list[str]] | None = None
        self._whys: Counter[str] = Counter()
        self._shown: list[str] = []
        self._lost: list[str] = []

    def find(self, written: str) -> str | None:
        """The path that is meant, relative to root where it lies below, else absolute; as the listing has it.

        None where nothing fits, or more than one file does; ``notes`` tells of both.
        """
        own = tidy(written)
        exact = self._at(self._root, own)
        if self._files.there(exact):
            return self._path(exact, own)
        for why, places in self._others(written):
            if len(places) == 1:
                self._whys[why] += 1
                path = self._path(places[0], "")
                if len(self._shown) < 2:
                    self._shown.append(f"{written} -> {path}")
                return path
            if places:
                self._lose(written, _SEVERAL)
                return None
        self._lose(written, _matter(written))
        return None

    def notes(self, name: str) -> list[str]:
        """Lines on the paths of the list ``name`` that are spelt otherwise than the files, and on those that lead
        nowhere where it can be seen why."""
        lines = []
        if self._whys:
            kinds = ", ".join(f"{why} {count}" for why, count in self._whys.most_common())
            lines.append(
                f"{name}: {self._whys.total()} paths are written otherwise than the files are called and were found "
                f"all the same ({kinds}), such as {first_few(self._shown, 1)}"
            )
        if self._lost:
            lines.append(f"{name}: paths that lead to no file: {first_few(self._lost)}")
        return lines

    def _others(self, written: str) -> Iterator[tuple[str, list[str]]]:
        """Places that ``written`` may mean, one way of reading it after the other, each with what it overlooks."""
        ways = spellings(written)
        for text, why in ways:
            for base in self._bases if not text.startswith("/") else self._bases[:1]:
                place = self._at(base, text)
                if self._files.there(place):
                    yield why or _ELSEWHERE, [place]
                if self._names and (real := self._real(place)):
                    yield why or _ELSEWHERE, [real]
        for text, why in ways:
            for base in self._bases if not text.startswith("/") else self._bases[:1]:
                yield _joined(why, _SPELT), self._loose(base, text)
        for text, why in ways:
            for rest in self._moved(text):
                yield _joined(why, _MOVED), self._loose(self._root, rest)
        for text, why in ways:
            if not text.startswith("/"):
                yield _joined(why, _DEEPER), self._deeper(text)

    def _at(self, base: str, text: str) -> str:
        place = text if text.startswith("/") else f"{base.rstrip('/')}/{text}"
        # Paths of a listing are names, which '..' may be taken out of; on disk it may stand behind a link.
        return os.path.normpath(place) if self._names else place

    def _path(self, place: str, own: str) -> str:
        if self._names:
            return self._paths[place]
        if own and not own.startswith("/"):
            return own
        below = place.removeprefix(self._root.rstrip("/") + "/")
        return place if os.pardir in place.split("/") else below

    def _real(self, place: str) -> str | None:
        """The same file by the listing's root, where another link leads to it."""
        try:
            real = os.path.realpath(place)
        except ValueError:  # a NUL
            return None
        if not real.startswith(self._real_root + "/"):
            return None
        other = self._at(self._root, real[len(self._real_root) + 1 :])
        return other if self._files.there(other) else None

    def _loose(self, base: str, text: str) -> list[str]:
        """Places that ``text`` leads to where case and Unicode form don't count, nor the suffix if it has none.

        Of several, those that differ in the Unicode form alone.
        """
        parts = text.strip("/").split("/")
        ends = ["" if text.startswith("/") else base.rstrip("/")]
        for number, part in enumerate(parts):
            if part == os.pardir:
                ends = [f"{end}/{part}" for end in ends]
                continue
            last = number == len(parts) - 1
            ends = [f"{end}/{name}" for end in ends for name in self._alike(end or "/", part, last)]
        ends = [end for end in ends if self._files.there(end)]
        if len(ends) > 1:
            wanted = _composed("/".join(parts))
            ends = [end for end in ends if _composed(end).endswith(wanted)] or ends
        return ends

    def _alike(self, place: str, name: str, last: bool) -> list[str]:
        index = self._index(place)
        found = index.names.get(_folded(name), [])
        if not found and last and not is_image(name):
            found = index.stems.get(_folded(name), [])
        return found

    def _index(self, place: str) -> _Index:
        known = self._indices.get(place)
        if known is None:
            known = self._indices[place] = _Index()
            for name in self._files.names(place):
                known.names.setdefault(_folded(name), []).append(name)
                if is_image(name):
                    known.stems.setdefault(_folded(name.rpartition(".")[0]), []).append(name)
        return known

    def _moved(self, text: str) -> Iterator[str]:
        """The ends of a path of another machine or another folder that may lie below root, the longest first.

        Nothing but a file's name says too little, unless it lay in a folder of root's name.
        """
        parts = text.strip("/").split("/")
        own = _folded(self._root.rpartition("/")[2])
        for cut in range(1, len(parts)):
            rest = parts[cut:]
            if _folded(parts[cut - 1]) == own or (text.startswith("/") and len(rest) > 1):
                yield "/".join(rest)

    def _deeper(self, text: str) -> list[str]:
        """Places of ``text`` in the folders that lie in root."""
        if self._inner is None:
            self._inner = {}
            for folder in self._files.folders(self._root):
                if folder.startswith(".") or is_system(folder):
                    continue
                index = self._index(f"{self._root.rstrip('/')}/{folder}")
                for key in {*index.names, *index.stems}:
                    self._inner.setdefault(key, []).append(folder)
        folders = self._inner.get(_folded(text.partition("/")[0]), [])
        return [place for each in folders for place in self._loose(self._root, f"{each}/{text}")]

    def _lose(self, written: str, why: str) -> None:
        if why and len(self._lost) < _TOLD:
            self._lost.append(f"{written} ({why})")


def _matter(written: str) -> str:
    """What strikes the eye in a path that leads nowhere."""
    if is_address(written):
        return "a web address: download it"
    whys = [why for _, why in spellings(written) if why]
    return f"{whys[-1]}, and no such file" if whys else ""


def _joined(*whys: str) -> str:
    return " and ".join(filter(None, whys))


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).strip()
