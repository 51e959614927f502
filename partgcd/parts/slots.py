"""Slot alignment: component k means the same part in every class and every epoch."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from partgcd.parts.mixture import Mixture


def align_slots(mixture: Mixture, reference_mu: Tensor) -> Tensor:
    """Which component of each class belongs in each slot.

    The assignment of components to slots that minimises the sum of squared distances between their means and
    the reference's (Hungarian method).

    Shape: mixture [C, K], reference_mu [K, d] (e.g. the shared mixture) or [C, K, d] (e.g. the last epoch)
    -> permutation [C, K]: slot k of class c is component permutation[c, k]. On the mixture's device.
    """
    reference = reference_mu.to(mixture.mu).expand_as(mixture.mu)
    centre = reference.mean(dim=-2, keepdim=True)
    cost = torch.cdist((reference - centre).double(), (mixture.mu - centre).double()).square().cpu().numpy()
    found = [torch.from_numpy(linear_sum_assignment(one)[1]) for one in cost]
    if not found:
        return torch.empty(0, mixture.components, dtype=torch.int64, device=mixture.mu.device)
    return torch.stack(found).to(mixture.mu.device)


def permute(mixture: Mixture, permutation: Tensor) -> Mixture:
    """The mixture with its components in slot order. Shape: mixture [C, K], permutation [C, K] -> [C, K]."""
    index = permutation.unsqueeze(-1).expand_as(mixture.mu)
    return Mixture(
        mixture.log_pi.gather(1, permutation), mixture.mu.gather(1, index), mixture.var.gather(1, index)
    )
