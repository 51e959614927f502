"""Data sets of a bench as manifests: whole folders, seeded draws of classes, made long tails."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from partgcd.bench.plan import SetSpec
from partgcd.config.errors import UserError
from partgcd.data.walk import walk
from partgcd.disk.files import write_csv


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
    found = walk(root)
    files: dict[str, list[str]] = {name: [] for name in sorted(found.folders) if name and "/" not in name}
    for path in found.files:
        if "/" in path:
            files[path.partition("/")[0]].append(path)
    names = list(files)
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
        kept = files[name] if spec.tail is None else files[name][: _tail_size(spec.tail, rank, len(names))]
        rows += [(str(root / path), name) for path in kept]
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
