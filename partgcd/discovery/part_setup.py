"""Before the first epoch: the projection of frozen patches, the number of parts, and the shared mixture."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.discovery.refresh import Look, filtered_patches
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.count import choose_parts
from partgcd.parts.em import fit_shared
from partgcd.parts.projection import Projection, fit_projection

_SHARED_IMAGES = 1500
_PROJECTION_IMAGES = 600


class PartSetup(NamedTuple):
    """What the mixtures start from.

    Attributes:
        projection: frozen patch to mixture space.
        bank: every class on the shared mixture, none fitted yet.
        silhouettes: mean silhouette by K; empty when K was given.
        seconds: what it took.
    """

    projection: Projection
    bank: GMMBank
    silhouettes: dict[int, float]
    seconds: float


@torch.no_grad()
def prepare_parts(
    model: DiscoveryModel,
    attention: Tensor,
    labels: Tensor,
    classes: int,
    settings: Settings,
    look: Look,
) -> PartSetup:
    """Fit the projection, choose K and fit the shared mixture.

    Labelled images teach all three; where nothing is labelled, all images do.

    Args:
        attention: [N, P] class attention of the untrained block.
        labels: [N] label index, -1 for none.
        classes: number of classes the bank holds.

    Raises:
        UserError: too few patches for the number of parts asked for.
    """
    began = time.perf_counter()
    parts = settings.parts
    known = np.flatnonzero((labels >= 0).cpu().numpy())
    pool = known if len(known) else np.arange(look.store.rows)
    draw = np.random.Generator(np.random.Philox(key=[settings.seed, 0xBA5E]))

    def sample(limit: int) -> np.ndarray:
        return np.sort(draw.choice(pool, size=min(limit, len(pool)), replace=False))

    raw, _ = filtered_patches(
        model, look, None, sample(_PROJECTION_IMAGES), attention, parts.attention_filter
    )
    projection = fit_projection(raw, parts.projection, settings.seed)
    del raw
    rows = sample(_SHARED_IMAGES)
    patches, per_row = filtered_patches(model, look, projection, rows, attention, parts.attention_filter)
    silhouettes: dict[int, float] = {}
    if parts.count == "auto":
        groups = _by_class(patches, per_row, labels[torch.from_numpy(rows).to(labels.device)])
        try:
            chosen = choose_parts(
                groups, parts.count_min, parts.count_max, parts.silhouette_patches, settings.seed
            )
        except ValueError as error:
            raise UserError(
                f"too few image patches to choose K from {parts.count_min} to {parts.count_max}: "
                "add images, raise --image-size, or set parts.count"
            ) from error
        k, silhouettes = chosen.k, dict(chosen.silhouettes)
    else:
        k = parts.count
    if len(patches) < 2 * k:
        raise UserError(
            f"{len(patches)} image patches can't be split into K = {k} parts: add images or lower parts.count"
        )
    floor = parts.variance_floor * float(patches.var(dim=0).mean())
    shared = fit_shared(patches, k, settings.seed, max(parts.em_iterations, 50), parts.em_tolerance, floor)
    return PartSetup(
        projection, GMMBank.all_shared(shared, classes), silhouettes, time.perf_counter() - began
    )


def _by_class(patches: Tensor, per_row: Tensor, labels: Tensor) -> list[Tensor]:
    """Patches grouped by their image's class; one group where nothing is labelled."""
    owner = torch.repeat_interleave(labels.to(patches.device), per_row)
    return [patches[owner == label] for label in torch.unique(owner)]
