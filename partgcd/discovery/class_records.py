"""Classes as people see them: ids that stay, names that can be read, and who is near whom."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Nearest:
    """A known class near another one, by the cosine of their prototypes."""

    id: str
    name: str
    cosine: float


@dataclass(frozen=True)
class ClassRecord:
    """One category.

    Attributes:
        index: its column in every probability of the run.
        id: stable identifier; never reused, whatever the name becomes.
        name: the label's name for an old class, a provisional one for a discovered class.
        kind: 'old' (people labelled it) or 'discovered'.
        labelled, assigned: images with its label, and unlabelled images assigned to it.
        nearest: up to three old classes, nearest first.
    """

    index: int
    id: str
    name: str
    kind: str
    labelled: int
    assigned: int
    nearest: tuple[Nearest, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values, as classes.json holds them."""
        return {**asdict(self), "nearest": [asdict(near) for near in self.nearest]}


def mint_id(run: str, index: int) -> str:
    """The id of class ``index`` of run ``run``: 40 bits of a digest, the same whenever it is asked for."""
    return "c-" + hashlib.sha256(f"{run}/{index}".encode()).hexdigest()[:10]


def describe_classes(
    run: str,
    label_names: list[str],
    prototypes: NDArray[np.float32],
    labels: NDArray[np.int64],
    predicted: NDArray[np.int64],
) -> list[ClassRecord]:
    """Records of all classes, by index.

    Discovered classes are numbered by size, the largest first, and named after the old class they resemble
    most; with no old class, by number alone.

    Args:
        run: the run's id, from which class ids are minted.
        label_names: names of the old classes, which have the first indices.
        prototypes: [C, D].
        labels: [N] label index, -1 for none.
        predicted: [N] class index.
    """
    total, old = len(prototypes), len(label_names)
    unit = prototypes / np.maximum(np.linalg.norm(prototypes, axis=1, keepdims=True), 1e-12)
    cosine = unit @ unit[:old].T
    labelled = np.bincount(labels[labels >= 0], minlength=total)
    assigned = np.bincount(predicted[labels < 0], minlength=total)
    rank = {
        int(index): place + 1 for place, index in enumerate(old + np.argsort(-assigned[old:], kind="stable"))
    }
    width = len(str(max(total - old, 1)))
    width = max(width, 2)
    records = []
    for index in range(total):
        near = [
            Nearest(mint_id(run, int(other)), label_names[other], round(float(cosine[index, other]), 4))
            for other in np.argsort(-cosine[index], kind="stable")
            if other != index
        ][:3]
        if index < old:
            name = label_names[index]
        elif near:
            name = f"new-{rank[index]:0{width}d} near {near[0].name}"
        else:
            name = f"group-{rank[index]:0{width}d}"
        while index >= old and name in label_names:
            name += " (discovered)"
        records.append(
            ClassRecord(
                index,
                mint_id(run, index),
                name,
                "old" if index < old else "discovered",
                int(labelled[index]),
                int(assigned[index]),
                tuple(near),
            )
        )
    return records
