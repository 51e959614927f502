"""What a method is: what it needs, how it begins, its loss terms, and what it keeps from step to step.

The fit loop runs any of them and knows none by name. What they all share is the model's heads: every method answers
with prototypes, so that every method can be exported, served and carried on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from partgcd.config.tree import Settings
from partgcd.model.module import DiscoveryModel


class Term(NamedTuple):
    """One part of the objective.

    Attributes:
        name: in metrics.jsonl, where its value stands without the weight.
        loss: a scalar.
        weight: in the objective; 0 is only watched.
        of_parts: whether it belongs to the part branch, whose sum counts alpha times.
    """

    name: str
    loss: Tensor
    weight: float = 1.0
    of_parts: bool = False


@dataclass(frozen=True)
class PartBatch:
    """The part branch's side of a batch.

    Attributes:
        cosine: [2, B, C] of the part head.
        projected: [2, B, d] in the contrastive space.
        features: [2, B, K, D] v of Eq. 10.
        present: [2, B, K] whether a part is in the view.
    """

    cosine: Tensor
    projected: Tensor
    features: Tensor
    present: Tensor


@dataclass(frozen=True)
class Batch:
    """What the losses of a step see: the whole batch of B images in two views, on every rank.

    Attributes:
        rows: [B] of the catalog.
        labels: [B] label index, -1 for none.
        cosine: [2, B, C] of the class head, without a temperature.
        projected: [2, B, d] in the contrastive space.
        parts: None for methods without.
        watched: what the method's own `Course.watch` said, each [2, B, ...].
    """

    rows: Tensor
    labels: Tensor
    cosine: Tensor
    projected: Tensor
    parts: PartBatch | None = None
    watched: tuple[Tensor, ...] = ()


class Moment(NamedTuple):
    """Where in the run a step stands.

    Attributes:
        teacher_temperature: tau_t.
        alpha: weight of the part branch.
        labelled: whether the catalog has labels at all (else lambda is 0).
    """

    teacher_temperature: float
    alpha: float
    labelled: bool


class Scene(NamedTuple):
    """What a method begins with.

    Attributes:
        labels: [N] label index, -1 for none.
        old: number of labelled classes, the first of the model's.
    """

    model: DiscoveryModel
    labels: Tensor
    old: int
    settings: Settings


@dataclass(frozen=True)
class Course:
    """A method at work on one fit.

    Attributes:
        terms: the objective of a batch, in the order in which it is summed.
        watch: says something of this rank's trunk tokens [2b, T, Dt] without gradient, each [2b, ...].
        embed: an embedding [b, E] of evaluation tokens [b, T, Dt]; ``epoch`` then gets those of all images.
        epoch: before each epoch: embeddings [N, E].
        after_step: after the optimiser's step.
        settle: clusters [N] that the last prototypes are set to, of the last embeddings [N, E]; where the settings
            ask for none, or this is None, the fit loop's own mixture does it.
        state, restore: tensors that a resumed run needs, by name, and their way back.
    """

    terms: Callable[[Batch, Moment], list[Term]]
    watch: Callable[[Tensor], tuple[Tensor, ...]] | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    epoch: Callable[[Tensor], None] | None = None
    after_step: Callable[[], None] | None = None
    settle: Callable[[Tensor], Tensor] | None = None
    state: Callable[[], dict[str, Tensor]] = dict
    restore: Callable[[dict[str, Tensor]], None] | None = None


class Clusters(NamedTuple):
    """Centres [C, D] of unit norm, and every image's cluster [N]; old classes come first."""

    centres: NDArray[np.float32]
    clusters: NDArray[np.int64]


class Points(NamedTuple):
    """What a clustering works on: unit-norm features [N, D], labels [N] (-1 for none) of ``old`` classes."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    old: int


@dataclass(frozen=True)
class Method:
    """One way to find categories.

    Attributes:
        name: as in ``discovery.method``.
        about: a line for people, with the source.
        parts: whether it has mixtures and a part head.
        begin: one fit of it; None for a method that trains nothing.
        cluster: (points, number of classes, seed) to clusters, of a method that trains nothing.
    """

    name: str
    about: str
    parts: bool = False
    begin: Callable[[Scene], Course] | None = None
    cluster: Callable[[Points, int, int], Clusters] | None = None


def objective(terms: Iterable[Term], alpha: float) -> Tensor:
    """The weighted sum of ``terms``: of the whole picture's, and ``alpha`` times that of the part branch's.

    Each side is summed on its own in the order given, so that a sum's last bits don't hang on the other side.

    Raises:
        ValueError: no term of the whole picture has a weight.
    """
    sides: list[Tensor | None] = [None, None]
    for term in terms:
        if term.weight:
            value = term.loss if term.weight == 1.0 else term.weight * term.loss
            before = sides[term.of_parts]
            sides[term.of_parts] = value if before is None else before + value
    whole, parts = sides
    if whole is None:
        raise ValueError("no term has a weight")
    return whole if parts is None else whole + alpha * parts
