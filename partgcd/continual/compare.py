"""What a candidate changes: measured on remembered images and on the new photos, and told class by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.cluster.novel_samples import closeness
from partgcd.config.tree import Settings
from partgcd.continual.annotations import HeldOut
from partgcd.continual.champion import AnsweringModel, Predictions, predict_all, trunk_tokens
from partgcd.continual.gate import NEW_CLASS, SURE, Check, Measured
from partgcd.continual.growth import Growth
from partgcd.continual.intake import Arrivals
from partgcd.continual.likeness import MANY, UNLIKE, surges, unlikeness
from partgcd.continual.retained import Reference, Retained
from partgcd.continual.retrain import Parted, Trained
from partgcd.data.catalog import Catalog
from partgcd.registry.overlay import Overlay
from partgcd.run.world import World

_MOST_DISAGREEMENTS = 100
_PICTURES = 12

_NEAR = 0.5
"""Familiarity of photos that have to stay where they are.

A model is sure of many photos of classes that it does not know. On left-out products 30, 15 and 28% of the photos it
was sure of were such ones, and they were all that moved; of those nearer than half of the known images 0, 9, 5% were.
"""


class Against(NamedTuple):
    """What a candidate is measured against.

    Attributes:
        familiar: `growth.familiarity` of the new photos.
        beside: pixels [H, 3, S, S] and class of images that a person holds out beside the memory's.
    """

    reference: Reference
    parted: Parted
    familiar: NDArray[np.float64]
    beside: HeldOut | None


@dataclass(frozen=True)
class Judged:
    """A finished training as its judges see it, and its bundle."""

    trained: Trained
    measured: Measured
    checks: list[Check]
    bundle: Path

    @property
    def passed(self) -> bool:
        """Whether every check is."""
        return all(check.passed for check in self.checks)


class About(NamedTuple):
    """Of a rediscovery: the version it went on from, its seed, and its seconds."""

    parent: int
    seed: int
    seconds: float


def measure(against: Against, settings: Settings, trained: Trained, world: World) -> Measured:
    """Champion and candidate on the remembered and held-out images and the new photos."""
    reference, parted, familiar, beside = against
    known, overlay, retained = reference.known, reference.overlay, reference.retained
    old, total = len(retained.ids), len(trained.records)
    champion = known.on(world.device).served()
    tokens = [torch.from_numpy(parted.scored.tokens).float()]
    truth = parted.scored_classes
    if beside is not None:
        tokens.append(trunk_tokens(champion.model, beside[0], world.device))
        truth = np.concatenate([truth, beside[1]])
    parts = [each for each in tokens if len(each)]
    joined = torch.cat(parts) if parts else torch.empty(0)
    answers = []
    for model, mixtures in (
        (champion.model, champion.parts),
        (trained.fitted.setup.model, trained.fitted.parts),
    ):
        if not len(joined):
            answers.append(np.zeros((0, total), np.float32))
            continue
        found = predict_all(
            AnsweringModel(model, mixtures, None, settings), lambda rows: joined[rows].to(world.device), len(joined),
            trained.fitted.setup.autocast, lambda done, all_: world.progress("gate", done, all_),
        )  # fmt: skip
        answers.append(
            _columns(overlay, retained, found, total) if model is champion.model else found.fused.numpy()
        )
    fresh = np.flatnonzero(reference.labels < 0)
    seen = trained.fused[fresh]
    return Measured(
        (answers[0], answers[1], truth),
        (_columns(overlay, retained, reference.served, total)[fresh], seen),
        reference.served.novelty.numpy()[fresh] > known.bundle.manifest.novelty.threshold,
        familiar >= _NEAR,
        trained.coherence.tolist(),
        [record.name for record in trained.records],
        old,
        len(retained.taught),
    )


def _columns(
    overlay: Overlay, retained: Retained, predictions: Predictions, total: int
) -> NDArray[np.float32]:
    """The champion's probabilities [N, total] over the candidate's columns; new classes have none."""
    answers = overlay(predictions.fused.numpy(), predictions.cls.numpy())
    places = {entry.id: entry.index for entry in overlay.classes}
    found = np.zeros((len(answers), total), dtype=np.float32)
    found[:, : len(retained.classes)] = answers[:, [places[entry.id] for entry in retained.classes]]
    return found


def describe_changes(
    judged: Judged,
    retained: Retained,
    catalog: Catalog,
    growth: Growth,
    arrivals: Arrivals,
    about: About,
) -> dict[str, Any]:
    """Everything the change report tells, as plain values. Images are named by path and row of the catalog."""
    found, trained, checks = judged.measured, judged.trained, judged.checks
    known, old, records = found.old - found.taught, found.old, trained.records
    fresh = np.flatnonzero(catalog.labels < 0)
    before, after = found.seen
    answers, sure = after.argmax(axis=1), after.max(axis=1)
    first, surely = before.argmax(axis=1), before.max(axis=1)
    steady = [check.passed for check in checks if check.name == NEW_CLASS]
    times = surges(
        np.bincount(answers, minlength=len(records))[:known],
        np.array([entry.labelled + entry.assigned for entry in retained.classes]),
    )
    appeared, shown, grew = [], [], []
    for record in records:
        own = np.flatnonzero(answers == record.index)
        best = own[np.argsort(-sure[own], kind="stable")][:_PICTURES]
        entry = {
            "id": record.id, "name": record.name, "photos": len(own),
            "images": [_image(catalog, int(fresh[row]), float(sure[row])) for row in best],
        }  # fmt: skip
        if record.index >= old:
            entry |= {
                "coherence": round(found.coherence[record.index - old], 3),
                "steady": steady[record.index - old],
                "nearest": [{"name": near.name, "cosine": near.cosine} for near in record.nearest],
                "came_from": _shares(first[own], found.names),
            }
            appeared.append(entry)
        elif record.index >= known:
            shown.append(entry | {"examples": record.labelled, "came_from": _shares(first[own], found.names)})
        elif len(own):
            remembered, came = (
                trained.features[rows] for rows in (catalog.labels == record.index, fresh[own])
            )
            unlike, many = unlikeness(remembered, came, about.seed), float(times[record.index])
            mixed = many >= MANY and unlike >= UNLIKE
            if mixed:  # strangers first: the surest photos are the class's own
                strange = own[np.argsort(closeness(remembered, came), kind="stable")][:_PICTURES]
                entry["images"] = [_image(catalog, int(fresh[row]), float(sure[row])) for row in strange]
            grew.append(entry | {"times": round(many, 2), "unlike": round(unlike, 2), "mixed": mixed})
    moved = np.flatnonzero((first != answers) & (surely >= SURE) & ~found.novel)
    moved = moved[np.argsort(-surely[moved], kind="stable")]
    disagreements = [
        {**_image(catalog, int(fresh[row]), float(surely[row])), "before": found.names[first[row]],
         "now": found.names[answers[row]], "now_confidence": round(float(sure[row]), 4)}
        for row in moved[:_MOST_DISAGREEMENTS]
    ]  # fmt: skip
    return {
        "parent": about.parent,
        "photos": {
            "new": len(fresh), "seen": arrivals.seen, "copies": arrivals.copies, "broken": len(catalog.broken),
            "unfamiliar": int(found.novel.sum()), "replayed": int((catalog.labels >= 0).sum()),
        },
        "classes": {"known": known, "taught": len(shown), "new": len(records) - old},
        "estimate": {
            "classes": growth.classes, "by_size": round(growth.by_size, 2),
            "unknown_share": round(growth.unknown.share, 4), "error": round(growth.unknown.error, 4),
        },
        "appeared": appeared,
        "taught": shown,
        "grew": sorted(grew, key=lambda entry: not entry["mixed"]),
        "dropped": [entry.id for entry in retained.dropped],
        "forgotten": _forgotten(found, records[:known]),
        "moved": len(moved),
        "disagreements": disagreements,
        "checks": [check.as_json() for check in checks],
        "passed": all(check.passed for check in checks),
        "seconds": round(about.seconds, 1),
    }  # fmt: skip


def _forgotten(found: Measured, records: list[Any]) -> list[dict[str, Any]]:
    """Known classes of whose remembered and held-out images fewer are right than before."""
    before, after, truth = found.remembered
    lost = []
    for record in records:
        own = truth == record.index
        if own.any():
            was = float((before[own].argmax(axis=1) == record.index).mean())
            now = float((after[own].argmax(axis=1) == record.index).mean())
            if now < was:
                lost.append(
                    {"id": record.id, "name": record.name, "before": round(was, 4), "now": round(now, 4),
                     "images": int(own.sum())}
                )  # fmt: skip
    return lost


def _image(catalog: Catalog, row: int, confidence: float) -> dict[str, Any]:
    return {"path": catalog.paths[row], "row": row, "confidence": round(confidence, 4)}


def _shares(classes: NDArray[np.int64], names: list[str]) -> list[dict[str, Any]]:
    """What the champion took the images for, the most frequent first."""
    counts = np.bincount(classes, minlength=len(names))
    order = np.argsort(-counts, kind="stable")[:3]
    return [{"name": names[index], "photos": int(counts[index])} for index in order if counts[index]]
