"""Whether one method beats others, and what of a difference the number of images leaves open."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

SURE = 2.0
"""Standard errors that a difference has to exceed before it counts."""


class Verdict(NamedTuple):
    """One method beside one rival: mean All (v2) over the runs that both have, as shares.

    Attributes:
        trained: whether the rival trains anything; clustering of frozen features does not.
        doubt: the difference that the number of images leaves open, `SURE` standard errors of it. What another
            seed or another CPU would change comes on top.
    """

    rival: str
    trained: bool
    ours: float
    theirs: float
    doubt: float

    @property
    def lost(self) -> bool:
        """Whether a trained rival is level or ahead, or clustering not clearly behind."""
        return self.ours - self.theirs <= (0 if self.trained else self.doubt)


def verdicts(results: Iterable[dict[str, Any]], method: str) -> list[Verdict]:
    """``method`` beside every other one in ``results``, over the sets, backbones and seeds that both have.

    The standard error is that of two independent shares of the unlabelled images, a(1-a)/n + b(1-b)/n; both
    methods answer for the same images, so the true one is lower as a rule.
    """
    found: dict[str, dict[tuple[str, str, int], tuple[float, int]]] = {}
    trained = set()
    for result in results:
        key = (result["set"], result["backbone"], result["seed"])
        value = result["accuracy"]["v2"]["all"], result["images"]["unlabelled"]
        found.setdefault(result["method"], {})[key] = value
        if result["seconds"]["epochs"] > 0:
            trained.add(result["method"])
    own = found.get(method, {})
    given = []
    for rival, theirs in found.items():
        both = sorted(own.keys() & theirs.keys())
        if rival == method or not both:
            continue
        pairs = [(own[key][0], theirs[key][0], own[key][1]) for key in both]
        variance = sum((a * (1 - a) + b * (1 - b)) / n for a, b, n in pairs)
        ours, other = statistics.mean(a for a, _, _ in pairs), statistics.mean(b for _, b, _ in pairs)
        given.append(Verdict(rival, rival in trained, ours, other, SURE * math.sqrt(variance) / len(pairs)))
    return given
