"""New photos as they come: unlabelled whatever their folders are called, each once, and none that was seen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.data.decode import BrokenImage, read_image
from partgcd.data.listing import ALL_LABELLED, NO_LABELS, Entry, Listing
from partgcd.data.pixels import PixelStore
from partgcd.data.scan import is_folder, scan
from partgcd.data.walk import walk

_BLANK = 4.0  # variance of grey values
_RELATED = 0.15  # correlation of pixels four apart: resizing and JPEG blocks bind nearer ones in noise, too


_HELD_BYTES = 2**29
"""Bytes of files that are held from the look at their contents to their decoding; those beyond are read again."""


class Reader:
    """Reads each image file once: what was read for its content is given, once more, to who decodes it."""

    def __init__(self) -> None:
        self._held: dict[Path, bytes] = {}
        self._room = _HELD_BYTES

    def key(self, path: Path, hold: Callable[[int], bool] = lambda key: True) -> int:
        """`content_key` of a file, whose bytes are held if ``hold`` says so of the key. Raises BrokenImage."""
        data = read_image(path)
        key = content_key(data)
        if len(data) <= self._room and path not in self._held and hold(key):
            self._held[path] = data
            self._room -= len(data)
        return key

    def read(self, path: Path) -> bytes:
        """The bytes of a file. Raises BrokenImage."""
        held = self._held.pop(path, None)
        if held is None:
            return read_image(path)
        self._room += len(held)
        return held


@dataclass(frozen=True)
class Arrivals:
    """What a folder holds.

    Attributes:
        listing: files that are to be looked at, one of each content, without labels.
        keys: content key of each of them.
        files, seen, copies, unreadable: how many files there were, were seen before, repeat another one, and could
            not be opened.
        notes: lines on what the folder holds and was not looked at.
    """

    listing: Listing
    keys: NDArray[np.uint64]
    files: int
    seen: int
    copies: int
    unreadable: int
    notes: tuple[str, ...] = ()

    def left_out(self) -> str:
        """What was not looked at, as the end of a line."""
        return "".join(f"; {note}" for note in self.notes)

    def digest(self) -> str:
        """Of the set of contents, whatever the files are called."""
        return hashlib.sha256(np.sort(self.keys).astype(">u8").tobytes()).hexdigest()


def look_through(folder: Path, seen: NDArray[np.uint64], reader: Reader | None = None) -> Arrivals:
    """Read (not decode) every image of ``folder`` and keep what is new in it.

    Args:
        seen: keys of images that were trained on.
        reader: holds what is new for who decodes it; None where nobody does.

    Raises:
        UserError: no such folder.
    """
    listing, notes = _files(folder)
    known, found = set(seen.tolist()), set[int]()
    entries, keys = [], []
    copies = before = unreadable = 0
    for entry in listing.entries:
        try:
            path = listing.root / entry.path
            if reader is None:
                key = content_key(read_image(path))
            else:
                key = reader.key(path, lambda key: key not in known and key not in found)
        except BrokenImage:
            unreadable += 1
            continue
        if key in known:
            before += 1
        elif key in found:
            copies += 1
        else:
            found.add(key)
            entries.append(Entry(entry.path))
            keys.append(key)
    kept = replace(listing, entries=entries, notes=[])
    found_keys = np.array(keys, dtype=np.uint64)
    return Arrivals(kept, found_keys, len(listing.entries), before, copies, unreadable, tuple(notes))


def _files(folder: Path) -> tuple[Listing, list[str]]:
    """Every image of a folder, or of a manifest, and what was left out; labels are nobody's business."""
    if not is_folder(folder, "folder"):
        listing = scan(folder)
        return listing, [note for note in listing.notes if note not in (NO_LABELS, ALL_LABELLED)]
    found = walk(folder.absolute())
    # An inbox always holds its record, and files that a server is about to write.
    return Listing(found.root, [Entry(path) for path in found.files], [], "no labels"), found.notes(
        files=False
    )


def content_key(data: bytes) -> int:
    """The identity of an image file: the first eight bytes of its SHA-256, as catalogs have it."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def empty_pictures(store: PixelStore, size: int) -> NDArray[np.bool_]:
    """[N] whether a picture shows nothing: one colour, or noise whose neighbouring pixels have little in common.

    Looked at four pixels apart: photographs correlate above 0.35 there, enlarged or compressed noise does not.
    """
    empty = np.zeros(len(store), dtype=bool)
    for row in range(len(store)):
        grey = store.centre(np.array([row]), size)[0].mean(axis=0)
        spread = float(grey.var())
        if spread < _BLANK:
            empty[row] = True
            continue
        centred = grey - grey.mean()
        right = float((centred[:, 4:] * centred[:, :-4]).mean()) / spread
        down = float((centred[4:] * centred[:-4]).mean()) / spread
        empty[row] = max(right, down) < _RELATED
    return empty
