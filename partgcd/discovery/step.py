"""One training step: two views in, one loss out.

The losses compare images of a batch with each other, so they are computed on the whole batch. Where many ranks
share it, each runs the model on its own images, and what the losses need is gathered with its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel
from partgcd.discovery.warm import Teacher
from partgcd.methods.method import Batch, Course, Moment, PartBatch, objective
from partgcd.model.module import DiscoveryModel
from partgcd.parts.maps import present
from partgcd.run.device import Autocast
from partgcd.run.world import Ranks


class StepLoss(NamedTuple):
    """The total to descend and every term of it, detached, by name."""

    total: Tensor
    terms: dict[str, float]


class Trainee(NamedTuple):
    """What a step trains: a model with its parts (None: without), by a method at work."""

    model: DiscoveryModel
    parts: PartModel | None
    course: Course
    settings: Settings
    autocast: Autocast


class Views(NamedTuple):
    """A step's images: B of the whole batch, b of them this rank's.

    Attributes:
        tokens: [2b, T, Dt] trunk tokens of this rank's images, first views then second views.
        assigned: [b] a_i, the class whose mixture makes an image's parts.
        rows: [B] of the catalog.
        labels: [B] label index, -1 for none.
        shares: how many images each rank has, in rank order.
    """

    tokens: Tensor
    assigned: Tensor
    rows: Tensor
    labels: Tensor
    shares: Sequence[int]


def step_loss(
    trainee: Trainee, views: Views, moment: Moment, world: Ranks, memory: Teacher | None = None
) -> StepLoss:
    """The objective of Eq. 13 on one batch: the method's terms, and the memory of the model before.

    Args:
        memory: what the model before said of the whole batch, where training goes on from one.
    """
    batch = _look(trainee, views, world)
    terms = trainee.course.terms(batch, moment)
    if memory is not None:
        terms += memory.terms(batch, trainee.settings.loss.student_temperature)
    total = objective(terms, moment.alpha)
    values = {term.name: float(term.loss.detach()) for term in terms}
    return StepLoss(total, values | {"total": float(total.detach())})


def _look(trainee: Trainee, views: Views, world: Ranks) -> Batch:
    """What the losses see of a batch."""
    model, parts, tokens = trainee.model, trainee.parts, views.tokens
    maps: Tensor | None = None
    watched: tuple[Tensor, ...] = ()
    with torch.no_grad():
        if parts is not None:
            temperature = trainee.settings.parts.temperature
            maps = parts.maps(model.mixture_patches(tokens), views.assigned.repeat(2), temperature)
        if trainee.course.watch is not None:
            with trainee.autocast():
                watched = trainee.course.watch(tokens)
    with trainee.autocast():
        out = model(tokens, maps)
        # Gradients are added up in the order of these lines: another one has other last bits.
        projected = model.projector(out.cls)
        own = [model.prototypes(out.cls), projected]
        if maps is not None and out.part is not None and out.parts is not None:
            part_projected = model.projector(out.part)
            own += [model.part_cosine(out.part), part_projected, out.parts]
            own.append(present(maps, trainee.settings.parts.presence, out.weight))
    whole = whole_batch([*own, *watched], world, views.shares)
    side = PartBatch(*whole[2:6]) if len(own) == 6 else None
    return Batch(views.rows, views.labels, whole[0], whole[1], side, tuple(whole[len(own) :]))


def whole_batch(values: Sequence[Tensor], world: Ranks, shares: Sequence[int]) -> list[Tensor]:
    """What this rank computed of its images, [2b, ...] each, as what all did of the batch, [2, B, ...].

    One message carries everything. The gradient of a rank's own images is whole: the other ranks compute the
    same loss.
    """
    views = [each.reshape(2, -1, *each.shape[1:]) for each in values]
    if world.size == 1:
        return views
    own = [each.transpose(0, 1).float() for each in views]
    wide = world.all_gather(torch.cat([each.flatten(1) for each in own], dim=1), shares)
    columns = torch.split(wide, [each[0].numel() for each in own], dim=1)
    return [
        column.reshape(-1, 2, *each.shape[2:]).transpose(0, 1).to(_kept(each.dtype))
        for column, each in zip(columns, views, strict=True)
    ]


def _kept(kind: torch.dtype) -> torch.dtype:
    """Losses are computed in float32 whatever the model's type was; what says yes or no stays so."""
    return torch.bool if kind == torch.bool else torch.float32
