"""When prototypes are set anew to clusters of what was learned so far, and to which ones."""

from __future__ import annotations

import torch
from torch import Tensor

from partgcd.config.tree import Settings
from partgcd.discovery.refresh import Features
from partgcd.discovery.setup import Setup
from partgcd.discovery.starts import refit_clusters, settle_clusters
from partgcd.run.world import World


def refit_due(after: int, settings: Settings) -> bool:
    """Whether prototypes are set anew after ``after`` epochs."""
    epochs = settings.train.epochs
    return after > 0 and any(after == max(1, round(s * epochs)) for s in settings.discovery.prototype_refits)


def recluster(setup: Setup, features: Features, settings: Settings, world: World, number: int) -> Tensor:
    """Clusters [N] that new classes' prototypes are set to during training, before epoch ``number``.

    Of the class tokens alone, begun anew from the labels and the numbers expected: not from where training has moved
    the prototypes, which keeps them only their indices.
    """
    predicted = setup.model.prototypes(features.cls).argmax(dim=1)
    seed = (settings.seed * 1009 + number) % 2**31
    clusters = torch.zeros_like(predicted)
    if world.rank == 0:  # one k-means for all, so that all have the same one
        clusters = refit_clusters(
            features.cls, setup.labels, predicted, setup.old, setup.classes, seed, setup.expected
        )
    return world.broadcast(clusters)


def settle(
    setup: Setup, features: Features, fused: Tensor, part: Tensor | None, settings: Settings, world: World
) -> Tensor:
    """Clusters [N] that all prototypes are set to after the last epoch, of whole and parts together.

    Args:
        fused: [N, C] both heads' answers, which it starts from.
        part: [N, D] part-enhanced features of unit norm; None without parts.
    """
    joint = features.cls
    if part is not None:
        joint = torch.cat([joint, settings.parts.cluster_weight * part], dim=1)
    temperature = settings.discovery.cluster_temperature
    return settle_clusters(joint, setup.labels, fused, temperature, world=world, shares=_shares(setup))


def _shares(setup: Setup) -> Tensor | None:
    """Of each class among the unlabelled images, where training goes on from a model that lets expect it."""
    if setup.expected is None:
        return None
    unlabelled = int((setup.labels < 0).sum())
    return torch.from_numpy(setup.expected.shares(unlabelled, setup.old, setup.classes))
