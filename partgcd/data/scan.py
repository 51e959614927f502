"""Finds the images of a folder or a manifest and what is said about their classes. Opens no image."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from partgcd.config.errors import UserError
from partgcd.data.decode import SUFFIXES
from partgcd.data.layout import empty_folders, read_layout
from partgcd.data.listing import Entry, Listing
from partgcd.data.manifest import read_manifest
from partgcd.data.names import printable
from partgcd.data.table import MANIFESTS
from partgcd.data.walk import walk

__all__ = ["Entry", "Listing", "scan"]


def scan(data: Path, known: Collection[str] | None = None) -> Listing:
    """List the images of ``data``: a folder, or a CSV or Parquet manifest.

    Folders: class folders (sub-folders belong to their class) beside an unlabelled one; labelled/<class>/ and
    unlabelled/; or loose images without labels. Loose images beside class folders are unlabelled. Other layouts are
    read as a person would read them, and a note says how (``layout.read_layout``). What is walked and what is left
    out is ``walk.walk``'s.
    known: names of classes that exist, where a person names them by folders. Raises UserError: no such folder, no
    image in it, or a layout that can be read in two ways.
    """
    data = data.expanduser()
    if not is_folder(data):
        if data.suffix.lower() not in MANIFESTS:
            raise UserError(
                f"{printable(str(data))} is neither a folder nor a manifest ({', '.join(sorted(MANIFESTS))})"
            )
        return read_manifest(data)
    root = data.absolute()
    found = walk(root)
    if not found.files:
        more = "; ".join(empty_folders(found) + found.notes())
        raise UserError(
            f"no images in {printable(str(data))}: files ending in {' '.join(sorted(SUFFIXES))} are read"
            + (f" ({more})" if more else "")
        )
    entries, layout, notes = read_layout(found, known)
    return Listing(root, entries, notes + found.notes(), layout)


def is_folder(data: Path, what: str = "file or folder") -> bool:
    """Whether ``data`` is a folder. Raises UserError where there is no such ``what``, or nobody may look."""
    try:
        return stat.S_ISDIR(os.stat(data).st_mode)  # noqa: PTH116 - Path's answers hide the reason
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise UserError(f"no such {what}: {printable(str(data))}") from None
    except OSError as error:  # nobody may look, or a name that is too long
        code = 1 if isinstance(error, PermissionError) else 2
        raise UserError(f"cannot read {printable(str(data))}: {error.strerror or error}", code) from error
