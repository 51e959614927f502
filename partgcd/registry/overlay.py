"""What people decided about classes, applied to a bundle's answers after its graph: names, merges, splits.

Pure functions of NumPy arrays. A merge sums probabilities; a split gives an image's whole probability to the nearer
of two stored sub-prototypes, so that an image of the parent stays an image of one of its children.

Letters: B images, C the bundle's classes, L classes that answer, D dimensions of the class token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.bundle import EXEMPLARS, Bundle, read_tensors
from partgcd.export.graph_names import FEATURE
from partgcd.export.manifest import ClassEntry
from partgcd.export.predictor import Predictor
from partgcd.registry.log import Identity, Split


@dataclass(frozen=True)
class Overlay:
    """How a bundle's C columns become L answers.

    Attributes:
        classes: [L] who answers, numbered anew.
        columns: [C] what becomes of each column.
    """

    classes: list[ClassEntry]
    columns: list[_Leaf | _Fork]

    @property
    def needs_feature(self) -> bool:
        """Whether a split makes answers depend on the class token."""
        return any(isinstance(each, _Fork) for each in self.columns)

    def __call__(
        self, fused: NDArray[np.float32], feature: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """Probabilities [B, L] from [B, C], with class tokens ``feature`` [B, D] of any norm where there are splits."""
        answers = np.zeros((len(fused), len(self.classes)), dtype=fused.dtype)
        unit = None
        if feature is not None:
            unit = feature / np.maximum(np.linalg.norm(feature, axis=1, keepdims=True), 1e-12)
        for column, node in enumerate(self.columns):
            _pour(node, fused[:, column], unit, answers)
        return answers


@dataclass(frozen=True)
class _Leaf:
    """A place among the answers."""

    place: int


@dataclass(frozen=True)
class _Fork:
    """Two ways, the nearer prototype's is taken; ``prototypes`` [2, D] of unit norm."""

    prototypes: NDArray[np.float32]
    ways: tuple[_Leaf | _Fork, _Leaf | _Fork]


def _pour(
    node: _Leaf | _Fork,
    mass: NDArray[np.float32],
    unit: NDArray[np.float32] | None,
    answers: NDArray[np.float32],
) -> None:
    if isinstance(node, _Leaf):
        answers[:, node.place] += mass
        return
    if unit is None:
        raise ValueError("a split is decided by class tokens, and there are none")
    second = (unit @ node.prototypes.T).argmax(axis=1) == 1
    for way, here in zip(node.ways, (~second, second), strict=True):
        _pour(way, np.where(here, mass, 0), unit, answers)


def make_overlay(
    identity: Identity,
    entries: Sequence[ClassEntry],
    prototypes: Mapping[str, NDArray[np.float32]],
) -> Overlay:
    """The overlay of ``identity`` for a bundle's classes.

    Args:
        prototypes: of every split that a column of the bundle runs into, by parent: [2, D], unit norm.
    """
    places: dict[str, int] = {}
    counts: dict[str, list[float]] = {}
    by_id = {entry.id: entry for entry in entries}

    def lead(name: str, entry: ClassEntry, share: float) -> _Leaf | _Fork:
        name = identity.canonical(name)
        split = identity.splits.get(name)
        if split is not None:
            sizes = np.array([max(len(keys), 1) for keys in split.keys], dtype=float)
            shares = share * sizes / sizes.sum()
            first, second = (
                lead(child, entry, float(part)) for child, part in zip(split.children, shares, strict=True)
            )
            return _Fork(prototypes[name].astype(np.float32), (first, second))
        place = places.setdefault(name, len(places))
        count = counts.setdefault(name, [0.0, 0.0])
        count[0] += share * entry.labelled
        count[1] += share * entry.assigned
        return _Leaf(place)

    columns = [lead(entry.id, entry, 1.0) for entry in entries]
    answering = []
    for name, place in places.items():
        own = by_id.get(name) or by_id.get(_root(identity, name))
        kind = own.kind if own is not None else "discovered"
        shown = identity.names.get(name) or (own.name if own is not None else name)
        labelled, assigned = (round(value) for value in counts[name])
        answering.append(
            ClassEntry(index=place, id=name, name=shown, kind=kind, labelled=labelled, assigned=assigned)
        )
    return Overlay(answering, columns)


def overlay_of(bundle: Bundle, identity: Identity) -> Overlay:
    """The overlay for a verified bundle.

    Raises:
        UserError: one of its classes is split, and its graph, made by an older program, gives no class tokens.
    """
    entries = bundle.manifest.classes
    met = _forks(identity, [entry.id for entry in entries])
    if met and FEATURE not in bundle.manifest.graph.outputs:
        raise UserError(
            f"'{bundle.path}' gives no class tokens, which split classes need: export its run again", 1
        )
    exemplars = read_tensors(bundle, EXEMPLARS) if met else None
    prototypes = {}
    for name in met:
        split = identity.splits[name]
        made = np.array(split.prototypes, dtype=np.float32)
        if split.bundle != bundle.id and exemplars is not None:
            # Training turned the space since: the same images say where the two halves are now.
            made = _means(split, exemplars["keys"], exemplars["cls"], made)
        prototypes[name] = made
    return make_overlay(identity, entries, prototypes)


def with_overlay(predictor: Predictor, overlay: Overlay) -> Predictor:
    """The predictor answering as people want it; it shares the graph with the one given."""
    return predictor.relabelled(overlay.classes, overlay)


def _means(
    split: Split, keys: NDArray[np.uint64], cls: NDArray[np.floating], fallback: NDArray[np.float32]
) -> NDArray[np.float32]:
    made = fallback.copy()
    for side, wanted in enumerate(split.keys):
        rows = np.isin(keys, np.array([int(key, 16) for key in wanted], dtype=np.uint64))
        if not rows.any():
            return fallback
        mean = cls[rows].astype(np.float32).mean(axis=0)
        made[side] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return made


def _forks(identity: Identity, ids: Sequence[str]) -> list[str]:
    """Parents of all splits that the columns ``ids`` run into."""
    found: dict[str, None] = {}
    left = list(ids)
    while left:
        name = identity.canonical(left.pop())
        if name in identity.splits and name not in found:
            found[name] = None
            left += identity.splits[name].children
    return list(found)


def _root(identity: Identity, name: str) -> str:
    while name in identity.parents:
        name = identity.parents[name]
    return name
