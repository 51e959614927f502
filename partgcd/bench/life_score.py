"""How a model of one stage answers held-out images, against a truth that no training saw."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from partgcd.continual.growth import SMALLEST


def score(
    answered: list[str], truth: list[str], names: dict[str, str], introduced: dict[str, int], stage: int
) -> dict[str, Any]:
    """Accuracies in 0..1 on images of all classes that have come by ``stage``.

    A class that people labelled is right only under its own id; discovered ids are matched to the other classes one
    to one (Hungarian), as the images alone can't tell their names.

    Args:
        answered: class id of each image; truth: its class.
        names: class by id, for the labelled ones.
        introduced: stage at which each class came.
    """
    there = [index for index, name in enumerate(truth) if introduced[name] <= stage]
    ids = [answered[index] for index in there]
    true = [truth[index] for index in there]
    found = sorted({name for name in ids if name not in names})
    fresh = sorted({name for name in true if introduced[name] > 0})
    counts = np.zeros((len(found), len(fresh)), dtype=np.int64)
    for one, name in zip(ids, true, strict=True):
        if one in found and name in fresh:
            counts[found.index(one), fresh.index(name)] += 1
    rows, columns = linear_sum_assignment(counts, maximize=True)
    meaning = {**names, **{found[row]: fresh[column] for row, column in zip(rows, columns, strict=True)}}
    right = np.array([meaning.get(one) == name for one, name in zip(ids, true, strict=True)])
    came = np.array([introduced[name] for name in true])

    def of(mask: np.ndarray) -> float | None:
        return round(float(right[mask].mean()), 4) if mask.any() else None

    majority = {one: {"class": most, **counts} for one, most, counts in _commonest(ids, true)}
    homes = {name: {"id": most, **counts} for name, most, counts in _commonest(true, ids)}
    return {
        "all": of(came >= 0), "old": of(came == 0), "new": of(came > 0),
        "earlier": of((came > 0) & (came < stage)), "now": of((came == stage) & (came > 0)),
        "images": len(true), "majority": majority, "homes": homes,
    }  # fmt: skip


def _commonest(keys: list[str], values: list[str]) -> list[tuple[str, str, dict[str, int]]]:
    """Each key with the most frequent of its values, how many ``images`` had that one, and ``of`` how many."""
    found = []
    for key in sorted(set(keys)):
        beside = Counter(value for other, value in zip(keys, values, strict=True) if other == key)
        most, count = beside.most_common(1)[0]
        found.append((key, most, {"images": count, "of": beside.total()}))
    return found


def first_meanings(earlier: list[dict[str, Any]], least: int = 3) -> dict[str, str]:
    """The class that each id clearly stood for first: more than half of at least ``least`` images were of it.

    Args:
        earlier: `score` of the stages, oldest first.
    """
    first: dict[str, str] = {}
    for each in earlier:
        first = _clear(each["majority"], least) | first
    return first


def _clear(majority: dict[str, Any], least: int) -> dict[str, str]:
    return {
        name: str(one["class"]) for name, one in majority.items()
        if one["of"] >= least and one["images"] > one["of"] / 2
    }  # fmt: skip


def changed_meaning(earlier: list[dict[str, Any]], now: dict[str, Any], least: int = 3) -> list[str]:
    """Ids whose class, by majority, is clearly another than the first that they clearly stood for.

    The stage before alone would not do: an id that is half of one class at one stage could go over to the other at the
    next. An id that takes in many images of a look-alike is one of them even if it keeps all of its own: see
    `moved_away`.

    Args:
        earlier: `score` of the stages before, oldest first; now: of this one.
    """
    first = first_meanings(earlier, least)
    return sorted(
        name for name, kind in _clear(now["majority"], least).items() if first.get(name, kind) != kind
    )


def moved_away(earlier: list[dict[str, Any]], now: dict[str, Any], least: int = 3) -> list[str]:
    """Ids that no longer get most of the images of the class that they clearly stood for first. Arguments as above."""
    homes = now["homes"]
    return sorted(
        name for name, kind in first_meanings(earlier, least).items()
        if kind in homes and homes[kind]["id"] != name
    )  # fmt: skip


def unknown_classes(majority: dict[str, Any], came: list[str], least: int = SMALLEST) -> list[str]:
    """Classes that a rediscovery could find: enough of the photos are theirs, and no id stands for them yet.

    An arrival brings photos of classes that an earlier one missed, too. An id stands for the class that most of its
    held-out images are of.

    Args:
        majority: of the stage before, as `score` gives it.
        came: class of each photo of the arrival.
        least: photos that make a class.
    """
    meant = {str(one["class"]) for one in majority.values()}
    return sorted(name for name, count in Counter(came).items() if count >= least and name not in meant)
