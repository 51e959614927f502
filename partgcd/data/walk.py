"""Walks folders for images: the one walker, so that every command sees the same files. Opens no image."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.data.decode import SUFFIXES
from partgcd.data.names import first_few, printable

_SYSTEM = frozenset(
    # Synology, QNAP and their like: thumbnails, waste, snapshots
    {"@eadir", "@tmp", "@sharebin", "@recycle", "@recently-snapshot", "@transcode", "@__thumb", "@__qini"}
    | {"#recycle", "#snapshot", "~snapshot", "network trash folder", "lost+found", "lost.dir"}
    # Windows, also as a server
    | {"$recycle.bin", "recycler", "$extend", "system volume information", "thumbs.db", "ehthumbs.db"}
    | {"ehthumbs_vista.db", "desktop.ini", "msocache", "_vti_cnf", "_vti_pvt", "_derived"}
    # macOS
    | {"__macosx", "temporary items", "thevolumesettingsfolder", "icon\r", "ipod photo cache"}
    # cameras and photo programs
    | {"canonmsc", "eosmisc", "avf_info", "picasa.ini", "zbthumbnail.info", "pspbrwse.jbf", "[originals]"}
)
"""Folded names that file servers, systems, cameras and photo programs give to what is theirs."""

_SYSTEM_KINDS = re.compile(
    r".*\.(lrdata|lrcat-data)|.*@syno(eastream|resource)"
    r"|syno(photo|file)_thumb_.*|found\.\d{3}",
    re.DOTALL,
)
_LIBRARY = re.compile(r".*\.(photoslibrary|photolibrary|migratedphotolibrary|aplibrary)", re.DOTALL)
_OF_A_LIBRARY = frozenset({"originals", "masters"})
_PEEKED = 2000
_DEEPEST = 100
"""Folders in each other, from which on a tree is a mistake and not somebody's order."""


@dataclass
class Folder:
    """What a folder itself holds that is no image: files by suffix, names of system files and folders, and how
    many hidden ones."""

    others: Counter[str] = field(default_factory=Counter)
    system: list[str] = field(default_factory=list)
    hidden: int = 0


@dataclass
class Walk:
    """What lies below a folder.

    files: image files, posix paths relative to ``root``, sorted.
    folders: every folder that was read, by its path ('' is the root).
    hidden, hidden_full: paths left out as hidden, and those of them that are folders with images.
    system: paths left out because systems and programs use their names.
    unreadable: folders, with the reason. repeated: linked folders that had been read already.
    """

    root: Path
    files: list[str] = field(default_factory=list)
    folders: dict[str, Folder] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    hidden_full: list[str] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    def notes(self, files: bool = True) -> list[str]:
        """Lines on what was left out; ``files`` False leaves out hidden files and those of other kinds."""
        lines = []
        if self.unreadable:
            lines.append(
                f"folders that could not be read, their images are missing: {first_few(self.unreadable, 10)}"
            )
        if self.repeated:
            lines.append(f"linked folders skipped, they were read already: {first_few(self.repeated, 10)}")
        if self.system:
            counts = Counter(path.rpartition("/")[2] for path in self.system)
            names = [name if count == 1 else f"{name} ({count})" for name, count in counts.most_common()]
            lines.append(
                f"system folders and files left out: {first_few(names, 10)}; rename one that is yours"
            )
        full = f"{first_few(self.hidden_full, 10)}; rename one that is yours"
        if files and self.hidden:
            full_ones = set(self.hidden_full)
            shown = [path for path in self.hidden if path not in full_ones]
            among = f", with images in {full}" if self.hidden_full else ""
            others = f": {first_few(shown)}" if shown else ""
            lines.append(f"{len(self.hidden)} hidden files or folders skipped{others}{among}")
        elif self.hidden_full:
            lines.append(f"hidden folders with images skipped: {full}")
        skipped = sum((each.others for each in self.folders.values()), Counter[str]())
        if files and skipped:
            kinds = ", ".join(f"{printable(kind)} {count}" for kind, count in skipped.most_common(6))
            lines.append(f"{skipped.total()} files skipped that are not images by their suffix: {kinds}")
        return lines


def walk(root: Path) -> Walk:
    """Every image below ``root``, at any depth, by its suffix.

    Left out: hidden files and folders, those that systems and programs keep for themselves (``is_system``), files
    without an image suffix. A linked folder is followed once below each top-level folder, so that one may be linked
    into two classes and no loop goes on. ``root`` itself is read whatever its name is. Raises UserError (code 1)
    where it can't be read.
    """
    found = Walk(root)
    top = os.fspath(root)
    seen: set[tuple[str, int, int]] = set()
    stack, links = [""], deque[str]()
    while stack or links:
        # Real folders before linked ones, so that a link and not what it leads to counts as the repetition.
        path = stack.pop() if stack else links.popleft()
        place = f"{top}/{path}" if path else top
        if path.count("/") >= _DEEPEST:
            found.unreadable.append(f"{path} (more than {_DEEPEST} folders deep)")
            continue
        try:
            about = os.stat(place)  # noqa: PTH116 - a Path for each of a million folders is slow
            key = (path.split("/", 1)[0], about.st_dev, about.st_ino)
            if key in seen or ("", *key[1:]) in seen:
                found.repeated.append(path or ".")
                continue
            seen.add(key)
            with os.scandir(place) as listed:
                inside = sorted(listed, key=lambda item: item.name)
        except OSError as error:
            if not path:
                raise UserError(f"cannot read {printable(top)}: {error.strerror or error}", 1) from error
            found.unreadable.append(f"{path} ({error.strerror or error})")
            continue
        here = found.folders[path] = Folder()
        below: list[str] = []
        for item in inside:
            name = item.name
            own = f"{path}/{name}" if path else name
            if is_system(name, path.rpartition("/")[2] or root.name):
                found.system.append(own)
                here.system.append(name)
            elif name.startswith("."):
                found.hidden.append(own)
                here.hidden += 1
                if _is_folder(item) and _holds_images(item.path):
                    found.hidden_full.append(own)
            elif _is_folder(item):
                (links if item.is_symlink() else below).append(own)
            elif is_image(name):
                found.files.append(own)
            else:
                here.others[Path(name).suffix.lower() or "no suffix"] += 1
        stack.extend(reversed(below))
    found.files.sort()
    return found


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - a Path for each file is slow


def is_system(name: str, parent: str = "") -> bool:
    """Whether file servers, systems, cameras or photo programs use this name for what is theirs: thumbnails, waste
    bins, previews. Of a photo library of macOS, in the folder ``parent``, only the originals are photos."""
    folded = name.casefold()
    if folded in _SYSTEM or _SYSTEM_KINDS.fullmatch(folded):
        return True
    return _LIBRARY.fullmatch(parent.casefold()) is not None and folded not in _OF_A_LIBRARY


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself: no folder, and broken if its name is an image's
        return False


def _holds_images(place: str) -> bool:
    """Whether an image lies in a folder or in those in it, as far as a short look tells."""
    looked, stack = 0, [place]
    while stack:
        try:
            with os.scandir(stack.pop()) as listed:
                for item in listed:
                    looked += 1
                    if looked > _PEEKED:
                        return False
                    if item.is_dir(follow_symlinks=False):
                        stack.append(item.path)
                    elif is_image(item.name):
                        return True
        except OSError:
            continue
    return False
