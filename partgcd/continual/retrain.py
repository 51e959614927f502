"""One training that goes on from a champion: new photos and a replay of the old ones in, a finished run out.

Rows of the run's catalog: new photos first, then labelled images that are still there, then images of which only
tokens are left. The known classes keep their columns, so that nothing has to be matched afterwards.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import normalize

from partgcd.config.tree import Settings
from partgcd.continual.champion import Memory
from partgcd.continual.growth import COHERENT, SMALLEST, Growth, coherence
from partgcd.continual.retained import Reference, Retained, start_tensors, targets_of
from partgcd.data.catalog import Catalog, Role
from partgcd.discovery.class_records import ClassRecord, Nearest
from partgcd.discovery.fit import Fitted, fit
from partgcd.discovery.outputs import answer_all, write_model, write_outputs
from partgcd.discovery.warm import Teacher, WarmStart
from partgcd.export.novelty import joint_features
from partgcd.export.replay import Replay, write_replay
from partgcd.registry.log import mint
from partgcd.run.folder import RunFolder
from partgcd.run.world import World

EPOCHS = 6
"""Passes of a training that goes on, at least; one that begins anew takes 20."""

_MOST_EPOCHS = 20
_STEPS = 150

REFITS = [0.125, 0.25, 0.5, 1.0]
"""Shares of the epochs after which the new classes' prototypes are set anew to clusters."""

STRENGTH = 1.0
"""Weight of the term that holds on to former answers."""

LOGIT_ADJUSTMENT = 0.7
"""How much likelier than a class that people vouch for one must be that was discovered, to be the answer: e to this.

Among new photos new classes are frequent; later they are classes like others, and people rely on the known ones. Of
0.3, 0.5, 0.7 and 1 the largest that took less than half a point of all answers at arrivals of left-out products
(grocery50-rest, seeds 0 and 1); with 1 a known class took a look-alike in.
"""

_PROVISIONAL = re.compile(r"(new|group)-\d+( |$)")
_HELD_OF = 5  # one exemplar in so many is never trained on


@dataclass(frozen=True)
class Parted:
    """A memory in two, and what it lets champion and candidate be compared on.

    Attributes:
        replayed, replayed_classes: what is trained on, and each image's class in the next model.
        held, held_classes: what is held out for ever.
        scored, scored_classes: images that the champion has as much of an advantage on as the candidate: of a class
            of which the champion held some out, those; of another one, those that both are trained on.
    """

    replayed: Memory
    replayed_classes: NDArray[np.int64]
    held: Memory
    held_classes: NDArray[np.int64]
    scored: Memory
    scored_classes: NDArray[np.int64]


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        records: of all classes, known ones first.
        fused: [N, C] probabilities of all images of the catalog.
        features: [N, F] what images are clustered by, unit norm.
        coherence: of each new class, `growth.coherence` for the champion.
    """

    fitted: Fitted
    records: list[ClassRecord]
    fused: NDArray[np.float32]
    features: NDArray[np.float32]
    coherence: NDArray[np.float64]


def continual_settings(champion: Settings, epochs: int, seed: int, changes: dict[str, object]) -> Settings:
    """The champion's settings for a training that goes on. ``changes``: fields of `train`, such as the device."""
    train = champion.train.model_copy(update={"epochs": epochs, **changes})
    discovery = champion.discovery.model_copy(update={"prototype_refits": REFITS})
    data = champion.data.model_copy(update={"max_broken": 1.0})
    return champion.model_copy(update={"train": train, "discovery": discovery, "data": data, "seed": seed})


def epochs_for(images: int, batch_size: int) -> int:
    """Passes over so many images, new and remembered: 6, and up to 20 where those would make few steps.

    On 250 photos of ten products 6 passes, 42 steps, lost 15 points of the known classes, and 18 none.
    """
    steps = max(images // batch_size, 1)
    return min(max(EPOCHS, math.ceil(_STEPS / steps)), _MOST_EPOCHS)


def part_memory(memory: Memory, retained: Retained) -> Parted:
    """Hold one in five exemplars of every class out; those that a version before held out stay so."""
    held = memory.held.copy()
    fair = np.zeros(len(held), dtype=bool)
    for index in range(len(retained.classes)):
        own = np.flatnonzero(retained.members == index)
        wanted = len(own) // _HELD_OF - int(held[own].sum())
        if wanted > 0:
            # Those of people, if there are enough to train on too: only their word is a truth to score against.
            free = own[~held[own]]
            labelled = free[memory.labelled[free]]
            free = labelled if len(labelled) >= 2 * wanted else free
            held[free[np.arange(wanted) * len(free) // wanted]] = True
        fair[own] = memory.held[own] if memory.held[own].any() else ~held[own]
    known = retained.members >= 0
    picked = (known & ~held, known & held, fair)
    back, out, scored = ((memory.rows(rows), retained.members[rows]) for rows in picked)
    return Parted(*back, *out, *scored)


def join_catalog(fresh: Catalog, classes: list[str], parted: Parted, taught: int = 0) -> Catalog:
    """Images with pixels, then replayed ones; label names are class ids by column.

    Args:
        fresh: new photos, and labelled images with class ids for labels.
        classes: ids of the classes by column, known ones and then the ``taught`` ones that are shown by example.
    """
    column = {name: index for index, name in enumerate(classes)}
    own = np.array([-1] + [column[name] for name in fresh.label_names], dtype=np.int64)[fresh.labels + 1]
    there = set(fresh.keys.tolist())
    keep = np.array([key not in there for key in parted.replayed.keys.tolist()], dtype=bool)
    keys = parted.replayed.keys[keep]
    known = len(classes) - taught
    roles = np.where(own < 0, Role.NEW, np.where(own < known, Role.CORRECTED, Role.TAUGHT))
    return replace(
        fresh,
        paths=[*fresh.paths, *(f"replay/{key:016x}" for key in keys.tolist())],
        keys=np.concatenate([fresh.keys, keys]),
        labels=np.concatenate([own, parted.replayed_classes[keep]]),
        label_names=classes,
        sizes=np.concatenate([fresh.sizes, np.zeros((len(keys), 2), np.int32)]),
        roles=np.concatenate([roles, np.full(len(keys), Role.REPLAYED)]).astype(np.uint8),
    )


def new_alone(
    catalog: Catalog, settings: Settings, reference: Reference, growth: Growth
) -> tuple[Catalog, Settings, Reference, Growth]:
    """The same without anything that is remembered, for plain fine-tuning: no label, no refit that needs one."""
    rows = np.flatnonzero(catalog.roles == Role.NEW)
    picked = torch.from_numpy(rows)
    alone = replace(
        catalog, paths=[catalog.paths[row] for row in rows.tolist()], keys=catalog.keys[rows],
        labels=catalog.labels[rows], sizes=catalog.sizes[rows], roles=catalog.roles[rows],
    )  # fmt: skip
    discovery = settings.discovery.model_copy(update={"prototype_refits": []})
    return (
        alone,
        settings.model_copy(update={"discovery": discovery}),
        replace(
            reference,
            predictions=reference.predictions.rows(picked),
            served=reference.served.rows(picked),
            labels=alone.labels,
        ),
        replace(growth, clusters=growth.clusters[rows]),
    )


def warm_start(
    reference: Reference,
    growth: Growth,
    replay: NDArray[np.float16],
    strength: float = STRENGTH,
) -> WarmStart:
    """What the fit begins with.

    Args:
        replay: trunk tokens of the images without pixels, in the catalog's order.
        strength: of the term against forgetting; 0 leaves it out.
    """
    known, retained, predictions, labels = (
        reference.known,
        reference.retained,
        reference.predictions,
        reference.labels,
    )
    old, known_classes = len(retained.classes), len(retained.ids)
    total = known_classes + growth.classes
    clusters: list[tuple[Tensor, Tensor | None]] = []
    for index in range(old, total):
        shown = index < known_classes
        own = labels == index if shown else (growth.clusters == index) & (labels < 0)
        rows = torch.from_numpy(np.flatnonzero(own))
        clusters.append((
            predictions.cls[rows].mean(dim=0),
            predictions.part[rows].mean(dim=0) if predictions.part is not None else None,
        ))  # fmt: skip
    tensors, bank = start_tensors(known, retained, reference.exemplars, clusters)
    teacher = None
    if strength > 0:
        targets = targets_of(reference.overlay, retained, predictions, total)
        # Of what is shown as something new the champion knows no better.
        weights = torch.from_numpy(((labels >= 0) & (labels < old)).astype(np.float32))
        unlearned = torch.full((len(labels),), -1)
        teacher = Teacher(targets, weights, strength, unlearned).follow(
            torch.from_numpy(growth.clusters), torch.from_numpy(labels), known_classes
        )
    projection = known.parts.projection if known.parts is not None else None
    return WarmStart(tensors, bank, projection, teacher, replay if len(replay) else None, growth.expected)


class Fresh(NamedTuple):
    """What a training that goes on is given beside its start.

    Attributes:
        new_ids: an id for each new class.
        numbered: what provisional names count on from.
    """

    run: RunFolder
    settings: Settings
    catalog: Catalog
    parted: Parted
    new_ids: list[str]
    numbered: int


def train(fresh: Fresh, world: World, start: WarmStart, reference: Reference) -> Trained:
    """Train, drop new classes that came to nothing, and leave a finished run that can be exported.

    A class came to nothing if it got too few photos, or ones that do not lie together for the champion. What holds on
    to former answers also leans to classes that people vouch for.
    """
    run, settings, catalog, parted, new_ids, numbered = fresh
    fitted = fit(settings, catalog, world, start)
    retained, memory = reference.retained, reference.known.memory
    old, unlabelled = len(retained.ids), catalog.labels < 0
    answers = answer_all(fitted, settings, world)
    # Before the logit adjustment: that known classes get the doubtful photos says nothing about the new ones.
    labels = np.where(unlabelled, answers.fused.argmax(axis=1), catalog.labels)
    together = coherence(reference.predictions.joint.numpy(), labels, unlabelled, range(old, start.classes))
    kept = np.ones(len(together), dtype=bool)
    if start.teacher is not None:  # plain fine-tuning, which it is compared with, has neither
        kept = together >= COHERENT
        fitted.setup.model.set_logit_adjustment(_logit_adjustment(retained, start.classes).to(world.device))
        answers = answer_all(fitted, settings, world)
    kept &= np.bincount(answers.fused.argmax(axis=1)[unlabelled], minlength=start.classes)[old:] >= SMALLEST
    if not kept.all():
        keep = np.concatenate([np.arange(old), old + np.flatnonzero(kept)])
        fitted = prune(fitted, keep)
        _renumber(run, keep, start.classes)
        answers = answer_all(fitted, settings, world)
    ids = [each for each, stays in zip(new_ids, kept.tolist(), strict=True) if stays]
    records = describe(retained, ids, numbered, answers.prototypes, answers.fused.argmax(axis=1), catalog)
    tokens = start.replay if start.replay is not None else np.empty((0, 1, 1), np.float16)
    write_replay(run, Replay(
        tokens, _labelled_of(catalog, parted), memory.seen, parted.held.keys, parted.held_classes, parted.held.labelled,
        parted.held.tokens,
    ))  # fmt: skip
    write_model(run, fitted.setup.model, fitted.parts)
    write_outputs(run, catalog, answers, records)
    run.update(status="finished")
    part = torch.from_numpy(answers.feature) if answers.feature is not None else None
    cls = normalize(torch.from_numpy(answers.cls), dim=1)
    joint = joint_features(cls, normalize(part, dim=1) if part is not None else None)
    return Trained(fitted, records, answers.fused, joint.numpy(), together[kept])


def prune(fitted: Fitted, keep: NDArray[np.int64]) -> Fitted:
    """The same without the classes that are not in ``keep``."""
    rows = torch.from_numpy(keep).to(fitted.setup.labels.device)
    model = fitted.setup.model
    for head in (model.prototypes, model.part_prototypes):
        if head is not None:
            head.weight = Parameter(head.weight.detach()[rows])
    if model.logit_adjustment is not None:
        model.set_logit_adjustment(model.logit_adjustment.detach()[rows])
    bank = fitted.bank.select(rows) if fitted.bank is not None else None
    return replace(fitted, bank=bank)


def _logit_adjustment(retained: Retained, classes: int) -> Tensor:
    """What is added to each class's logit, [classes]: people vouch for those of which they labelled images."""
    vouched = [entry.kind == "old" for entry in retained.classes] + [True] * len(retained.taught)
    found = torch.full((classes,), -LOGIT_ADJUSTMENT)
    found[: len(vouched)][torch.tensor(vouched)] = 0.0
    return found


def _renumber(run: RunFolder, keep: NDArray[np.int64], classes: int) -> None:
    """Make the last epoch's record speak of the classes that are left; nobody asks it about images of others."""
    after, last = run.read_epochs()[-1]
    place = np.full(classes, -1, dtype=np.int32)
    place[keep] = np.arange(len(keep))
    there = place[last["candidate_classes"]] >= 0
    run.save_epoch(
        after,
        predicted=np.maximum(place[last["predicted"]], 0),
        assigned=np.maximum(place[last["assigned"]], 0),
        candidate_rows=last["candidate_rows"][there],
        candidate_classes=place[last["candidate_classes"][there]],
    )


def describe(
    retained: Retained,
    new_ids: list[str],
    numbered: int,
    prototypes: NDArray[np.float32],
    predicted: NDArray[np.int64],
    catalog: Catalog,
) -> list[ClassRecord]:
    """Records of all classes: known ones with ids, names and counts carried on, new ones named provisionally."""
    old, entries = len(retained.classes), [*retained.classes, *retained.taught]
    came = np.bincount(predicted[catalog.labels < 0], minlength=len(prototypes))
    unit = prototypes / np.maximum(np.linalg.norm(prototypes, axis=1, keepdims=True), 1e-12)
    cosine = unit @ unit[:old].T
    records = []
    for index in range(len(prototypes)):
        near = tuple(
            Nearest(retained.classes[o].id, retained.classes[o].name, round(float(cosine[index, o]), 4))
            for o in np.argsort(-cosine[index], kind="stable").tolist()
            if o != index
        )[:3]
        if index < len(entries):
            entry = entries[index]
            records.append(ClassRecord(
                index, entry.id, entry.name, entry.kind, entry.labelled, entry.assigned + int(came[index]), near
            ))  # fmt: skip
        else:
            names = [retained.classes[o].name for o in np.argsort(-cosine[index], kind="stable").tolist()]
            place = index - len(entries)
            name = provisional_name(numbered + place + 1, names)
            records.append(ClassRecord(index, new_ids[place], name, "discovered", 0, int(came[index]), near))
    return records


def provisional_name(number: int, nearest: list[str]) -> str:
    """What a class is called until a person names it: by number, and by the nearest class that has a name.

    Args:
        nearest: names of known classes, nearest first; provisional ones would make names without end.
    """
    named = [name for name in nearest if not _PROVISIONAL.match(name)]
    return f"new-{number:02d}" + (f" near {named[0]}" if named else "")


def mint_ids(count: int, taken: set[str]) -> list[str]:
    """``count`` new ids that nobody has or had."""
    ids: list[str] = []
    for _ in range(count):
        ids.append(mint(taken | set(ids)))
    return ids


def _labelled_of(catalog: Catalog, parted: Parted) -> NDArray[np.bool_]:
    """Of the replayed rows, whether a person said what they are."""
    labelled = dict(zip(parted.replayed.keys.tolist(), parted.replayed.labelled.tolist(), strict=True))
    replayed = catalog.keys[catalog.roles == Role.REPLAYED]
    return np.array([labelled[key] for key in replayed.tolist()], dtype=bool)
