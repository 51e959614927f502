"""New photos as they come: unlabelled whatever their folders are called, each once, and none that was seen."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.data.decode import SUFFIXES, BrokenImage, read_image
from partgcd.data.listing import Entry, Listing
from partgcd.data.pixels import PixelStore
from partgcd.data.scan import scan

_BLANK = 4.0  # variance of grey values
_RELATED = 0.15  # correlation of pixels four apart: resizing and JPEG blocks bind nearer ones in noise, too


@dataclass(frozen=True)
class Arrivals:
    """What a folder holds.

    Attributes:
        listing: files that are to be looked at, one of each content, without labels.
        keys: content key of each of them.
        files, seen, copies, unreadable: how many files there were, were seen before, repeat another one, and could
            not be opened.
    """

    listing: Listing
    keys: NDArray[np.uint64]
    files: int
    seen: int
    copies: int
    unreadable: int

    def digest(self) -> str:
        """Of the set of contents, whatever the files are called."""
        return hashlib.sha256(np.sort(self.keys).astype(">u8").tobytes()).hexdigest()


def look_through(folder: Path, seen: NDArray[np.uint64]) -> Arrivals:
    """Read (not decode) every image of ``folder`` and keep what is new in it.

    Args:
        seen: keys of images that were trained on.

    Raises:
        UserError: no such folder.
    """
    listing = _files(folder)
    known, found = set(seen.tolist()), set[int]()
    entries, keys = [], []
    copies = before = unreadable = 0
    for entry in listing.entries:
        try:
            key = content_key(read_image(listing.root / entry.path))
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
    return Arrivals(kept, np.array(keys, dtype=np.uint64), len(listing.entries), before, copies, unreadable)


def _files(folder: Path) -> Listing:
    """Every image below a folder, or of a manifest; hidden files are left out, and labels are nobody's business."""
    if not folder.exists():
        raise UserError(f"no such folder: '{folder}'")
    if not folder.is_dir():
        return scan(folder)
    root, entries = folder.absolute(), list[Entry]()
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(place).relative_to(root)
        entries += [
            Entry((here / name).as_posix())
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    return Listing(root, entries, [], "no labels")


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
