"""Decodes every image of a listing once: into a catalog, a pixel store, and a quarantine with reasons."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings
from partgcd.data.catalog import Broken, Catalog, Duplicate, write_quarantine
from partgcd.data.decode import BrokenImage, decoded, read_image
from partgcd.data.listing import Listing
from partgcd.data.names import first_few, printable, storable
from partgcd.data.pixels import ABOUT, INDEX, PIXELS, PixelStore, planes, read_about, resize
from partgcd.disk.lock import claimed

_FORMAT = 2  # raised whenever the pixels of any readable file change
_REMOVED_S = 60.0
"""How long another process may take to remove what it takes for left over."""

Progress = Callable[[int, int], None]
Reader = Callable[[Path], bytes]


@dataclass(frozen=True)
class _Look:
    """What one file turned out to be: a reason, or an identity, a size and (until it is written) pixels."""

    reason: str = ""
    digest: bytes = b""
    size: tuple[int, int] = (0, 0)
    pixels: NDArray[np.uint8] | None = None
    flat: bool = False


@dataclass(frozen=True)
class _How:
    """How files are looked at: settings, whether pixels are kept, and who reads them."""

    image: DataSettings
    keep: bool
    read: Reader


def ingest(
    listing: Listing,
    folder: Path | None,
    image: DataSettings,
    progress: Progress | None = None,
    threads: int = 0,
    read: Reader = read_image,
) -> Catalog:
    """Decode every image of ``listing`` once, in ``threads`` threads (0: one a core), and say what is there.

    folder: where the pixel store goes, beside a quarantine.csv; None only looks: nothing is written and no
    share of broken images is too large. A finished store made from the same files with the same settings is
    used again. The store appears under its name only when it is complete. The result does not depend on
    ``threads``. progress: called with (images done, images) as they finish. read: gives a file's bytes.
    Of files with equal content the labelled one is kept, else the first by path; the others are duplicates.
    Raises UserError (code 1): more broken images than image.max_broken, no space left, a folder that is not a
    store.
    """
    if folder is None:
        looks = list(_look_at_all(listing, _How(image, False, read), progress, threads))
        return _catalog(listing, looks)[0]
    digest = inputs_digest(listing, image)
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(folder)
        catalog = _finished(folder, digest)
        if catalog is not None:
            # Files did not change; their place and the notes on them may have.
            catalog = replace(catalog, root=listing.root)
            _refuse_too_many(listing, catalog, folder, image)
            return catalog
        if (
            folder.exists()
            and not (folder / ABOUT).is_file()
            and (not folder.is_dir() or any(folder.iterdir()))
        ):
            raise UserError(
                f"{printable(str(folder))} is there and is no pixel store: choose another folder", code=1
            )
    with _writing(folder), _building(folder) as building:
        looks, places, size = [], [], 0
        with (building / PIXELS).open("wb") as file:
            for look in _look_at_all(listing, _How(image, True, read), progress, threads):
                places.append((size, 0, 0))
                if look.pixels is not None:
                    places[-1] = (size, look.pixels.shape[1], look.pixels.shape[2])
                    size += _append(file, look.pixels)
                looks.append(replace(look, pixels=None))
        catalog, rows = _catalog(listing, looks)
        _refuse_too_many(listing, catalog, folder, image)
        np.save(building / INDEX, np.array(places, np.int64).reshape(-1, 3)[rows], allow_pickle=False)
        catalog.save(building)
        about = {"digest": digest, "images": len(catalog), "bytes": size, **image.model_dump(mode="json")}
        (building / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        building.chmod(0o755)  # mkdtemp keeps others out
        if folder.exists():
            folder.rename(building.with_suffix(".old"))
        building.rename(folder)
    return catalog


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """A new folder to build the store in, which is claimed, and gone at the end if it is not the store by then.

    The system drops the claim however its holder ends: that tells a store being built from one that a kill left
    behind, which no process id would on a disk shared by containers.
    """
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".part", dir=folder.parent))
    # Another process may take it for left over before it is claimed: then it is made once more.
    with claimed(building, "builds a pixel store", wait=_REMOVED_S):
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(building.with_suffix(".old"), ignore_errors=True)


def _remove_left_over(folder: Path) -> None:
    """Remove what killed processes left beside the store ``folder``, and nothing that a living one builds."""
    for other in folder.parent.glob(f".{glob.escape(folder.name)}-*.old"):
        shutil.rmtree(other, ignore_errors=True)
    for other in folder.parent.glob(f".{glob.escape(folder.name)}-*.part"):
        with (
            suppress(OSError, UserError),
            claimed(other, "builds a pixel store", through_link=False) as alone,
        ):
            if alone:
                shutil.rmtree(other, ignore_errors=True)


def inputs_digest(listing: Listing, image: DataSettings) -> str:
    """Hex SHA-256 of all that decides a store: settings, paths, labels, sizes and times of the files."""
    settings = [
        _FORMAT,
        PIL.__version__,
        image.image_size,
        image.crop_ratio,
        image.max_aspect,
        image.max_megapixels,
    ]
    digest = hashlib.sha256(json.dumps([settings, listing.notes]).encode())
    for entry in listing.entries:
        try:
            about = (listing.root / entry.path).stat()
            stamp = [about.st_size, about.st_mtime_ns]
        except (OSError, ValueError):
            stamp = []
        digest.update(json.dumps([entry.path, entry.label, stamp]).encode())
    return digest.hexdigest()


def _finished(folder: Path, digest: str) -> Catalog | None:
    """The catalog of a store that is complete and was made from these very inputs."""
    try:
        if read_about(folder).get("digest") != digest:
            return None
        catalog = Catalog.load(folder)
        return catalog if len(PixelStore.open(folder)) == len(catalog) else None
    except (UserError, OSError, ValueError):
        return None


def _look_at_all(listing: Listing, how: _How, progress: Progress | None, threads: int) -> Iterator[_Look]:
    """One look an entry, in the entries' order; only a few are decoded ahead, to bound the memory."""
    total = len(listing.entries)
    workers = threads or min(16, os.cpu_count() or 1)
    entries = iter(listing.entries)
    ahead: deque[Future[_Look]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for entry in islice(entries, 2 * workers):
            ahead.append(pool.submit(_look, listing.root, entry.path, how))
        done = 0
        while ahead:
            look = ahead.popleft().result()
            for entry in islice(entries, 1):
                ahead.append(pool.submit(_look, listing.root, entry.path, how))
            done += 1
            if progress is not None:
                progress(done, total)
            yield look
    finally:
        pool.shutdown(cancel_futures=True)


def _look(root: Path, path: str, how: _How) -> _Look:
    if storable(path) != path:
        return _Look("file name is not UTF-8: rename it")
    try:
        data = how.read(root / path)
        with decoded(data, how.image.max_megapixels) as picture:
            pixels = planes(resize(picture, how.image)) if how.keep else None
            size, flat = picture.size, _is_flat(picture)
    except BrokenImage as broken:
        return _Look(broken.reason)
    except MemoryError:
        return _Look("does not fit in memory")
    return _Look("", hashlib.sha256(data).digest(), size, pixels, flat)


def _is_flat(picture: Image.Image) -> bool:
    """Whether a picture is one colour: a lens cap, a failed export, or values that this program stretches wrongly."""

    def one_colour(image: Image.Image) -> bool:
        return len(image.getcolors(1) or ()) == 1

    # Nearly all pictures are seen not to be by a few of their pixels.
    return one_colour(picture.resize((16, 16), Image.Resampling.NEAREST)) and one_colour(picture)


def _catalog(listing: Listing, looks: list[_Look]) -> tuple[Catalog, NDArray[np.int64]]:
    """The catalog, and [N] which entry each of its rows is."""
    entries = listing.entries
    groups: dict[bytes, list[int]] = {}
    for number, look in enumerate(looks):
        if not look.reason:
            groups.setdefault(look.digest, []).append(number)
    kept: list[int] = []
    duplicates: list[Duplicate] = []
    disputed: list[str] = []
    for members in groups.values():
        labelled = [number for number in members if entries[number].label is not None]
        keep = (labelled or members)[0]
        kept.append(keep)
        duplicates += [Duplicate(entries[each].path, entries[keep].path) for each in members if each != keep]
        for each in labelled:
            if entries[each].label != entries[keep].label:
                disputed.append(f"{entries[keep].path} ({entries[keep].label}) = ")
                disputed[-1] += f"{entries[each].path} ({entries[each].label})"
    kept.sort(key=lambda number: entries[number].path)
    labels = [entries[number].label for number in kept]
    names = sorted({label for label in labels if label is not None})
    index = {name: number for number, name in enumerate(names)}
    notes = [storable(note) for note in listing.notes]
    if disputed:
        notes.append(f"{len(disputed)} copies have another label, the first is kept: {first_few(disputed)}")
    flat = [entries[number].path for number in kept if looks[number].flat]
    if flat:
        what = "image is" if len(flat) == 1 else "images are"
        notes.append(f"{len(flat)} {what} one flat colour: {first_few(flat)}")
    lost = sorted({entry.label for entry in entries if entry.label is not None} - set(names))
    if lost:
        notes.append(f"classes without a usable image are dropped: {first_few(lost)}")
    catalog = Catalog(
        root=listing.root,
        paths=[entries[number].path for number in kept],
        keys=np.array([int.from_bytes(looks[number].digest[:8], "big") for number in kept], np.uint64),
        labels=np.array([-1 if label is None else index[label] for label in labels], np.int64),
        label_names=names,
        sizes=np.array([looks[number].size for number in kept], np.int32).reshape(-1, 2),
        broken=[
            Broken(storable(entry.path), look.reason)
            for entry, look in zip(entries, looks, strict=True)
            if look.reason
        ],
        duplicates=sorted(duplicates, key=lambda each: each.path),
        notes=notes,
    )
    return catalog, np.array(kept, np.int64)


def _refuse_too_many(listing: Listing, catalog: Catalog, folder: Path, image: DataSettings) -> None:
    """Write the quarantine beside the store, then refuse where it is too long."""
    quarantine = folder.parent / "quarantine.csv"
    write_quarantine(quarantine, catalog.broken)
    broken, total = len(catalog.broken), len(listing.entries)
    if len(catalog) and broken <= image.max_broken * total:
        return
    common = Counter(each.reason.split(":")[0] for each in catalog.broken).most_common(3)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in common)
    first = first_few([f"{each.path} ({each.reason})" for each in catalog.broken])
    raise UserError(
        f"{broken} of {total} images ({broken / max(total, 1):.1%}) cannot be read, data.max_broken allows "
        f"{image.max_broken:.1%}: {reasons}; {first}; all are listed in {printable(str(quarantine))}",
        code=1,
    )


def _append(file: BinaryIO, pixels: NDArray[np.uint8]) -> int:
    return file.write(pixels.data)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns the troubles of a disk into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for the pixel store {printable(str(folder))}: free some",
                code=1,
            ) from error
        raise UserError(
            f"cannot write the pixel store {printable(str(folder))}: {error.strerror or error}", code=1
        ) from error
