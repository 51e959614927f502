"""k-means in the place of mixtures: the paper's ablation of soft, weighted parts with shapes of their own."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from partgcd.parts.mixture import Mixture

VARIANCE = 1e-4
"""Of every component: so small that responsibilities name the nearest centre and nothing else."""


def fit_hard(patches: Tensor, sizes: Tensor, start: Mixture, iterations: int = 50) -> Mixture:
    """Each class's k-means centres as a mixture of equal, nearly vanishing spheres.

    k-means is the limit of such a mixture as the variance goes to 0, so that maps, slots and the bank need no
    other code. A class with fewer patches than parts keeps its start.

    Shape: patches [M, d], rows of class c after those of class c - 1; sizes [C]; start [C, K] -> [C, K].
    """
    centres = start.mu.clone()
    parts = start.components
    for index, rows in enumerate(torch.split(patches, sizes.tolist())):
        if len(rows) < parts:
            continue
        model = KMeans(parts, init=start.mu[index].cpu().double().numpy(), n_init=1, max_iter=iterations)
        model.fit(np.ascontiguousarray(rows.cpu().double().numpy()))
        centres[index] = torch.from_numpy(model.cluster_centers_).to(centres)
    return Mixture(
        torch.full_like(start.log_pi, -math.log(parts)), centres, torch.full_like(start.var, VARIANCE)
    )
