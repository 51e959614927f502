"""Whether a candidate may answer instead of the champion: margins, what was measured, and a verdict in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SURE = 0.9
"""Probability from which the champion counts as sure of an image."""

NEW_CLASS = "new class"
"""Name of the check that there is one of for each new class, in their order."""

_ERROR_BINS = 10


@dataclass(frozen=True)
class Margins:
    """How far a candidate may fall behind, as shares.

    Attributes:
        forgetting: accuracy of known classes on remembered and held-out images.
        disagreement: images that the champion was sure of and the candidate puts elsewhere.
        calibration: expected calibration error above the champion's, on the same images.
        coherence: of each new class, `growth.coherence`.
        few: images of a measure below which one image more may be wrong than its margin allows.
    """

    forgetting: float = 0.02
    disagreement: float = 0.05
    calibration: float = 0.05
    coherence: float = 0.4
    few: int = 100


@dataclass(frozen=True)
class Check:
    """One thing that was measured."""

    name: str
    value: float
    limit: float
    passed: bool
    text: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """Answers of champion and candidate over the same columns, the classes that both know and the new ones.

    Attributes:
        remembered: [H, C] champion's and candidate's probabilities of images that neither or both trained on, and their
            class [H].
        seen: [n, C] the same of the new photos; a column that the champion lacks is 0.
        novel: [n] whether the champion called a photo novel.
        near: [n] whether it lies as near to remembered images as photos of known classes mostly do.
        coherence: of each new class.
        names: [C].
        old: number of classes before the new ones: those that the champion knows, and the ``taught`` ones.
        taught: the last so many of those are shown by example: that images move there is what a person wants.
    """

    remembered: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]
    seen: tuple[NDArray[np.float32], NDArray[np.float32]]
    novel: NDArray[np.bool_]
    near: NDArray[np.bool_]
    coherence: list[float]
    names: list[str]
    old: int
    taught: int = 0


def judge(found: Measured, margins: Margins) -> list[Check]:
    """Every check; the candidate may be promoted if all passed."""
    before, after, truth = found.remembered
    checks = []
    if len(truth):
        first, second = ((each.argmax(axis=1) == truth) for each in (before, after))
        drop = float(first.mean() - second.mean())
        limit = _lenient(margins.forgetting, len(truth), margins.few)
        checks.append(
            Check("old classes", drop, limit, drop <= limit,
                  f"remembered images of known classes: {100 * first.mean():.1f}% right before, "
                  f"{100 * second.mean():.1f}% now, of {len(truth)}")
        )  # fmt: skip
        moved = calibration_error(after, truth) - calibration_error(before, truth)
        limit = _lenient(margins.calibration, len(truth), margins.few)
        checks.append(
            Check("calibration", moved, limit, moved <= limit,
                  f"calibration error {100 * calibration_error(before, truth):.1f}% before, "
                  f"{100 * calibration_error(after, truth):.1f}% now")
        )  # fmt: skip
    checks += _agreement(found, margins)
    for index, value in enumerate(found.coherence):
        name = found.names[found.old + index]
        checks.append(
            Check(NEW_CLASS, value, margins.coherence, value >= margins.coherence,
                  f"to the champion, {100 * value:.0f}% of the images nearest to those of '{name}' are in it too")
        )  # fmt: skip
    return checks


def calibration_error(probabilities: NDArray[np.float32], truth: NDArray[np.int64]) -> float:
    """Expected calibration error [0, 1] of the best answers, in ten bins of equal width."""
    best = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == truth
    bins = np.minimum((best * _ERROR_BINS).astype(int), _ERROR_BINS - 1)
    gaps = [
        abs(float(right[bins == b].mean() - best[bins == b].mean())) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    return float(sum(gaps))


def _agreement(found: Measured, margins: Margins) -> list[Check]:
    answer = found.seen[1].argmax(axis=1)
    wanted = (answer >= found.old - found.taught) & (answer < found.old)
    checks, familiar = [], ~found.novel & found.near & ~wanted
    # New photos alone: remembered images that both trained on would hide what moved among those.
    before, after = (each[familiar] for each in found.seen)
    sure = before.max(axis=1) >= SURE
    if sure.any():
        differ = float((before[sure].argmax(axis=1) != after[sure].argmax(axis=1)).mean())
        limit = _lenient(margins.disagreement, int(sure.sum()), margins.few)
        checks.append(
            Check("agreement", differ, limit, differ <= limit,
                  f"{100 * differ:.1f}% of {int(sure.sum())} familiar photos that the champion was sure of "
                  "are put elsewhere")
        )  # fmt: skip
    before, after = (
        np.concatenate([found.remembered[0], before]),
        np.concatenate([found.remembered[1], after]),
    )
    sure = before.max(axis=1) >= SURE
    one, other = before[sure].argmax(axis=1), after[sure].argmax(axis=1)
    for index in np.unique(one).tolist():
        own = other[one == index]
        kept = float((own == index).mean())
        if len(own) >= 3 and kept < 0.5:
            checks.append(
                Check("meaning", 1 - kept, 0.5, False,
                      f"most images of '{found.names[index]}' are now of another class")
            )  # fmt: skip
    return checks


def _lenient(margin: float, count: int, few: int) -> float:
    """The margin, with room for one image where there are few."""
    return margin if count >= few else max(margin, 1.0 / count + 1e-9)
