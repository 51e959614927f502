"""One training step: two views in, one loss out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel
from partgcd.model.losses import base_loss, part_discrepancy
from partgcd.model.module import DiscoveryModel
from partgcd.parts.maps import present
from partgcd.run.device import Autocast


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
) -> StepLoss:
    """The objective of Eq. 13 on one batch.

    Args:
        parts: None for the global baseline (SimGCD): alpha is then irrelevant.
        tokens: [2B, T, Dt] trunk tokens, first views then second views.
        labels: [B] label index, -1 for none.
        assigned: [B] a_i, the class whose mixture makes an image's parts.
        alpha: weight of the part branch at this step.
        labelled_exist: whether the catalog has labels at all (else lambda is 0).
    """
    maps = None
    if parts is not None:
        with torch.no_grad():
            frozen = model.backbone.frozen_patches(tokens)
            maps = parts.maps(frozen, assigned.repeat(2), settings.parts.temperature)
    with autocast():
        out = model(tokens, maps)
        projected = model.projector(out.cls)
        cosine = model.prototypes(out.cls)
    base = base_loss(
        _views(cosine), _views(projected), labels, settings.loss, teacher_temperature, labelled_exist
    )
    total = base["cls"] + base["rep"]
    terms = dict(base)
    if maps is not None and out.part is not None and out.parts is not None:
        with autocast():
            part_projected = model.projector(out.part)
            part_cosine = model.part_cosine(out.part)
        part = base_loss(
            _views(part_cosine),
            _views(part_projected),
            labels,
            settings.loss,
            teacher_temperature,
            labelled_exist,
        )
        here = present(maps, settings.parts.presence)
        pdr = part_discrepancy(
            _views(out.parts),
            _views(here),
            settings.parts.pdr_temperature,
            settings.parts.pdr_positive_in_denominator,
        )
        branch = settings.parts.pdr_weight * pdr
        if settings.parts.classification:
            branch = branch + part["cls"]
        if settings.parts.contrast:
            branch = branch + part["rep"]
        total = total + alpha * branch
        terms |= {f"part_{name}": value for name, value in part.items()} | {"pdr": pdr}
    terms["total"] = total
    return StepLoss(total, {name: float(value.detach()) for name, value in terms.items()})


def _views(stacked: Tensor) -> Tensor:
    """[2B, ...] to [2, B, ...]."""
    return stacked.reshape(2, -1, *stacked.shape[1:])
