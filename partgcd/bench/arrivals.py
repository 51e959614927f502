"""A simulated life of a data set: a first stage and arrivals, each with known and new classes, truth kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partgcd.bench.plan import SetSpec
from partgcd.bench.sets import write_set
from partgcd.config.errors import UserError
from partgcd.data.manifest import read_manifest


@dataclass(frozen=True)
class Shares:
    """How images are dealt.

    Attributes:
        test: of every class, kept out of all stages to score with.
        first: of a first-stage class's images, what the first stage gets; arrivals share the rest alike.
        labelled: of what a first-stage class has in the first stage.
        arrival: of a new class's images, what the arrival that brings it gets; later ones share the rest.
    """

    test: float = 0.2
    first: float = 0.6
    labelled: float = 0.5
    arrival: float = 0.7


@dataclass(frozen=True)
class Life:
    """Image files of every stage, absolute paths.

    Attributes:
        truth: class of every image.
        labelled: images of the first stage that have their label.
        stages: [S] images that come at each stage; the first holds ``labelled``.
        test: images that no stage gets.
        introduced: stage at which each class comes first.
    """

    truth: dict[str, str]
    labelled: list[str]
    stages: list[list[str]]
    test: list[str]
    introduced: dict[str, int]

    def classes(self, until: int) -> list[str]:
        """Classes that have come by stage ``until``, in the order of their coming."""
        return [name for name, stage in self.introduced.items() if stage <= until]


def deal(
    spec: SetSpec, photos: Path, scratch: Path, arrivals: int, seed: int, shares: Shares, fresh: bool = True
) -> Life:
    """Deal a data set's images over a first stage, with half of the classes, and ``arrivals``.

    Classes and images are dealt by ``seed`` alone, from sorted names.

    Args:
        fresh: False leaves the other half of the classes out for good: arrivals bring known classes only.

    Raises:
        UserError: no such data set, or fewer classes than stages need.
    """
    manifest = scratch / "set.csv"
    write_set(spec, photos, manifest)
    truth = {entry.path: str(entry.label) for entry in read_manifest(manifest).entries}
    manifest.unlink()
    names = sorted(set(truth.values()))
    if len(names) < 2 * arrivals:
        raise UserError(f"'{spec.folder}' has {len(names)} classes: {arrivals} arrivals need {2 * arrivals}")
    draw = np.random.default_rng([seed, 0x11FE])
    order = [names[index] for index in draw.permutation(len(names))]
    known, others = order[: -(-len(names) // 2)], order[-(-len(names) // 2) :]
    introduced = dict.fromkeys(known, 0)
    if fresh:
        for arrival, group in enumerate(np.array_split(np.array(others), arrivals), start=1):
            introduced |= dict.fromkeys(group.tolist(), arrival)
    truth = {path: name for path, name in truth.items() if name in introduced}
    stages: list[list[str]] = [[] for _ in range(arrivals + 1)]
    labelled: list[str] = []
    test: list[str] = []
    for name, stage in introduced.items():
        files = sorted(path for path, label in truth.items() if label == name)
        files = [files[index] for index in draw.permutation(len(files))]
        kept = max(1, round(shares.test * len(files)))
        test += files[:kept]
        files = files[kept:]
        last = stage == arrivals
        share = shares.first if stage == 0 else 1.0 if last else shares.arrival
        now = max(2, round(share * len(files)))
        stages[stage] += files[:now]
        if stage == 0:
            labelled += files[: max(1, round(shares.labelled * now))]
        for offset, rest in enumerate(np.array_split(np.array(files[now:]), max(arrivals - stage, 1))):
            if not last:
                stages[stage + 1 + offset] += rest.tolist()
    return Life(truth, sorted(labelled), [sorted(stage) for stage in stages], sorted(test), introduced)
