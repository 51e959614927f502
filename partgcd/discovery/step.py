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
from partgcd.model.losses import base_loss, part_discrepancy
from partgcd.model.module import DiscoveryModel
from partgcd.parts.maps import present
from partgcd.run.device import Autocast
from partgcd.run.world import World


class StepLoss(NamedTuple):
    """The total to descend and every term of it, detached, by name."""

    total: Tensor
    terms: dict[str, float]


def step_loss(
    model: DiscoveryModel,
    parts: PartModel | None,
    tokens: Tensor,
    labels: Tensor,
    assigned: Tensor,
    settings: Settings,
    alpha: float,
    teacher_temperature: float,
    labelled_exist: bool,
    autocast: Autocast,
    world: World | None = None,
    shares: Sequence[int] = (),
    teacher: Teacher | None = None,
) -> StepLoss:
    """The objective of Eq. 13 on one batch.

    Args:
        parts: None for the global baseline (SimGCD): alpha is then irrelevant.
        tokens: [2b, T, Dt] trunk tokens of this rank's b images, first views then second views.
        labels: [B] label index of the whole batch, -1 for none.
        assigned: [b] a_i, the class whose mixture makes an image's parts.
        alpha: weight of the part branch at this step.
        labelled_exist: whether the catalog has labels at all (else lambda is 0).
        world, shares: the ranks that share the batch and how many images each has; b is B without them.
        teacher: what the model before said of the whole batch, where training goes on from one.
    """
    maps = None
    if parts is not None:
        with torch.no_grad():
            maps = parts.maps(model.mixture_patches(tokens), assigned.repeat(2), settings.parts.temperature)
    with autocast():
        out = model(tokens, maps)
        projected = model.projector(out.cls)
        cosine = model.prototypes(out.cls)
    part_projected = part_cosine = here = parts_found = None
    if maps is not None and out.part is not None and out.parts is not None:
        with autocast():
            part_projected = model.projector(out.part)
            part_cosine = model.part_cosine(out.part)
        here, parts_found = present(maps, settings.parts.presence, out.weight), out.parts
    cosine, projected, part_cosine, part_projected, parts_found, here = whole_batch(
        (cosine, projected, part_cosine, part_projected, parts_found, here), world, shares
    )
    assert cosine is not None and projected is not None
    base = base_loss(cosine, projected, labels, settings.loss, teacher_temperature, labelled_exist)
    total = base["cls"] + base["rep"]
    terms = dict(base)
    if teacher is not None:
        terms["memory"] = teacher.loss(cosine, settings.loss.student_temperature)
        total = total + teacher.strength * terms["memory"]
    if (
        part_cosine is not None
        and part_projected is not None
        and parts_found is not None
        and here is not None
    ):
        part = base_loss(
            part_cosine, part_projected, labels, settings.loss, teacher_temperature, labelled_exist
        )
        pdr = part_discrepancy(
            parts_found,
            here,
            settings.parts.pdr_temperature,
            settings.parts.pdr_positive_in_denominator,
        )
        branch = settings.parts.pdr_weight * pdr
        if settings.parts.classification:
            branch = branch + part["cls"]
        if settings.parts.contrast:
            branch = branch + part["rep"]
        if teacher is not None:
            terms["part_memory"] = teacher.loss(part_cosine, settings.loss.student_temperature)
            branch = branch + teacher.strength * terms["part_memory"]
        total = total + alpha * branch
        terms |= {f"part_{name}": value for name, value in part.items()} | {"pdr": pdr}
    terms["total"] = total
    return StepLoss(total, {name: float(value.detach()) for name, value in terms.items()})


def whole_batch(
    found: Sequence[Tensor | None], world: World | None, shares: Sequence[int]
) -> list[Tensor | None]:
    """What this rank found of its images, [2b, ...] each, as what all found of the batch, [2, B, ...].

    One message carries everything. The gradient of a rank's own images is whole: the other ranks compute the
    same loss.
    """
    views = [None if each is None else each.reshape(2, -1, *each.shape[1:]) for each in found]
    if world is None or world.size == 1:
        return list(views)
    own = [each.transpose(0, 1).float() for each in views if each is not None]
    wide = world.all_gather(torch.cat([each.flatten(1) for each in own], dim=1), shares)
    columns = iter(torch.split(wide, [each[0].numel() for each in own], dim=1))
    return [
        None if each is None else
        next(columns).reshape(-1, 2, *each.shape[2:]).transpose(0, 1).to(_kept(each.dtype))
        for each in views
    ]  # fmt: skip


def _kept(kind: torch.dtype) -> torch.dtype:
    """Losses are computed in float32 whatever the model's type was; what says yes or no stays so."""
    return torch.bool if kind == torch.bool else torch.float32
