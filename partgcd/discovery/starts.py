"""Where trained heads start when they do not start at random: from what the untrained backbone knows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from partgcd.backbone.tokens import TokenStore
from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import BATCH, Features
from partgcd.discovery.semi_kmeans import semi_kmeans
from partgcd.model.module import DiscoveryModel
from partgcd.parts.maps import part_features
from partgcd.run.device import Autocast

_RIDGE = 0.05
"""Ridge penalty as a share of the mean squared part feature times the number of images."""


def start_prototypes(
    model: DiscoveryModel, features: Features, labels: Tensor, old: int, classes: int, settings: Settings
) -> None:
    """Set the prototypes to the centres of semi-supervised k-means over the untrained class tokens.

    The norm of a random start is kept, because it sets how far a step turns a prototype.
    """
    centres, _ = semi_kmeans(features.cls.cpu().numpy(), labels.cpu().numpy(), old, classes, settings.seed)
    with torch.no_grad():
        weight = model.prototypes.weight
        norm = weight.norm(dim=1, keepdim=True).mean()
        weight.copy_(torch.from_numpy(centres).to(weight) * norm)


@torch.no_grad()
def start_adapter(
    model: DiscoveryModel,
    parts: PartModel,
    store: TokenStore,
    settings: Settings,
    device: torch.device,
    autocast: Autocast,
) -> None:
    """Set the adapter's linear path to the ridge regression from the mean part feature to the class token.

    The part feature then starts as the class token's best linear guess from parts, so that shared prototypes
    and projector mean something to it from the first step.
    """
    assert model.adapter is not None
    total = store.rows
    means, targets = [], []
    for start in range(0, total, BATCH):
        rows = np.arange(start, min(start + BATCH, total))
        tokens = store.read(rows, device)
        first = torch.zeros(len(rows), dtype=torch.long, device=device)
        maps = parts.maps(model.backbone.frozen_patches(tokens), first, settings.parts.temperature)
        with autocast():
            out = model.backbone.block(tokens)
        weight = model.pooling_weight(out.attention)
        v = part_features(maps, out.patches.float(), weight, normalise=settings.parts.normalise_parts)
        means.append(v.mean(dim=1).double())
        targets.append(out.cls.double())
    x, y = torch.cat(means), torch.cat(targets)
    mx, my = x.mean(dim=0), y.mean(dim=0)
    x, y = x - mx, y - my
    gram = x.T @ x
    gram.diagonal().add_(_RIDGE * float(gram.diagonal().mean()))
    weights = torch.linalg.solve(gram, x.T @ y).T
    model.adapter.start_linear(weights.float(), (my - weights @ mx).float())
