"""Data sets of a bench as manifests: whole folders, seeded draws of classes, made long tails."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from partgcd.benchmark.plan import SetSpec
from partgcd.config.errors import UserError
from partgcd.data.decode import SUFFIXES
from partgcd.run.files import write_csv


def write_set(spec: SetSpec, photos: Path, manifest: Path) -> int:
    """Write ``manifest`` (path,label with absolute paths) and return the number of classes.

    The draw is NumPy's ``default_rng(draw_seed).permutation`` over the sorted class names, so that a set is
    the same on every machine. A tail keeps the first images by name.

    Raises:
        UserError: no such folder, or fewer classes than the draw asks for.
    """
    root = (photos / spec.folder).resolve()
    if not root.is_dir():
        raise UserError(f"no data set '{spec.folder}' below '{photos}'")
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    if spec.draw is not None:
        if spec.draw > len(names):
            raise UserError(f"'{spec.folder}' has {len(names)} classes, {spec.draw} were to be drawn")
        order = np.random.default_rng(spec.draw_seed).permutation(len(names))
        picked = order[spec.draw :] if spec.rest else order[: spec.draw]
        names = [names[index] for index in sorted(picked.tolist())]
    elif spec.rest:
        raise UserError(f"'{spec.folder}': rest needs a draw")
    rows = []
    for rank, name in enumerate(_tail_order(names, spec)):
        files = sorted(path for path in (root / name).iterdir() if path.suffix.lower() in SUFFIXES)
        if spec.tail is not None:
            files = files[: _tail_size(spec.tail, rank, len(names))]
        rows += [(str(path), name) for path in files]
    write_csv(manifest, ["path", "label"], rows)
    return len(names)


def _tail_order(names: list[str], spec: SetSpec) -> list[str]:
    """Classes from large to small: by a seeded shuffle, so that the tail means nothing else."""
    if spec.tail is None:
        return names
    order = np.random.default_rng([spec.draw_seed, 1]).permutation(len(names))
    return [names[index] for index in order]


def _tail_size(tail: tuple[int, int], rank: int, classes: int) -> int:
    largest, smallest = tail
    share = rank / max(classes - 1, 1)
    return round(float(largest * (smallest / largest) ** share))
