"""Part attention maps (Eq. 9), part features (Eq. 10) and which parts an image shows."""

from __future__ import annotations

import torch
from torch import Tensor

from partgcd.parts.bank import GMMBank, log_likelihood
from partgcd.parts.exact import exact_products


def attention_filter(attention: Tensor) -> Tensor:
    """The patches that mixtures are fitted on: class attention of at least the image's mean (Eq. 7).

    Shape: attention [B, P] -> bool [B, P], at least one True a row.
    """
    attention = attention.float()
    # the rounded mean of equal values may lie above all of them
    level = torch.minimum(attention.mean(-1, keepdim=True), attention.amax(-1, keepdim=True))
    return attention >= level


def foreground_weight(attention: Tensor) -> Tensor:
    """How much each patch counts in Eq. 10 when the background is to be left out: min(max(a_j / mean(a) - 1, 0), 1).

    It is 0 for every patch that `attention_filter` drops and rises without a step, so that rounding, which
    another engine does in another way, can't take a patch out of an answer.

    Shape: attention [B, P] -> [B, P], no gradient.
    """
    attention = attention.detach().float()
    return (attention / attention.mean(-1, keepdim=True).clamp_min(1e-12) - 1).clamp(0, 1)


def part_maps(bank: GMMBank, patches: Tensor, classes: Tensor, temperature: float = 1.0) -> Tensor:
    """Part attention maps M: the responsibilities of Eq. 9, each image under its assigned class's mixture.

    The temperature divides log pi_k + log N before the softmax: 1 is the paper, higher is softer.

    Shape: patches [B, P, d] (projected frozen patches), classes [B] -> [B, P, K], sums to 1 over K.
    """
    return torch.softmax(log_likelihood(bank, patches, classes) / temperature, dim=-1)


def part_features(
    maps: Tensor, patches: Tensor, weight: Tensor | None = None, normalise: bool = True
) -> Tensor:
    """Part features v^k = sum_j M_j^k f^j (Eq. 10). Gradients flow to patches (and to maps that want them).

    Args:
        maps: [B, P, K].
        patches: [B, P, D] learnable patches; half precision is summed in float32.
        weight: [B, P] factor of each patch, e.g. the attention filter; None pools all patches (the paper).
        normalise: L2-normalise each feature. A part with next to no mass keeps a length near 0.

    Returns:
        [B, K, D], at least float32.
    """
    patches = patches.to(torch.promote_types(patches.dtype, torch.float32))
    maps = maps.to(patches.dtype)
    if weight is not None:
        maps = maps * weight.to(maps.dtype).unsqueeze(-1)
    with exact_products(patches.device):
        features = maps.transpose(1, 2) @ patches
    return torch.nn.functional.normalize(features, dim=-1, eps=1e-6) if normalise else features


def present(maps: Tensor, threshold: float, weight: Tensor | None = None) -> Tensor:
    """Whether a part shows in an image: its attention mass is at least ``threshold`` of the patches that count.

    One such patch is the image's mean weight of those above 0: of a small picture's foreground, a few patches most of
    which count by half, whole ones would be too much to ask.

    Shape: maps [B, P, K], weight [B, P] as in `part_features` -> bool [B, K]. Where no patch counts, no part shows.
    """
    if weight is None:
        return maps.sum(dim=1) >= threshold
    weight = weight.to(maps.dtype)
    counted = (weight > 0).sum(-1, keepdim=True)
    mass = (maps * weight.unsqueeze(-1)).sum(dim=1)
    return (mass * counted >= threshold * weight.sum(-1, keepdim=True)) & (counted > 0)
