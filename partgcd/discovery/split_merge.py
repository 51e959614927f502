"""Out of a clustering's local optimum: merge one class away, start it anew elsewhere, keep what is likelier.

Expectation maximisation leaves two look-alike kinds in one class and one plain kind in two, and no step of it leads
out of that: only a class that gives up its images and begins anew within the crowded one does (Ueda et al., "SMEM
algorithm for mixture models", Neural Computation 12, 2000).

Letters: N images, C classes, F dimensions of a feature.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from partgcd.parts.mixture import sample_rows

_SEARCHED = 10_000
"""Most images that are looked at in search of a likelier mixture; the one found is then fitted to all."""

_TRIES = 4
"""Tries a new class. Where the first found all there was to gain, it took 1.5 to 3."""

_BRIEF, _FULL = 5, 20
"""Iterations of a try, and of the mixture that is kept."""

_GAIN = 1e-6
"""Nats an image that a try has to gain: less is rounding."""


class _Mixture(NamedTuple):
    """Components on the unit sphere: ``centres`` [C, F], ``shares`` [C], and what they say of the images.

    ``owner`` [N] is the likeliest component (a labelled image's class), ``likelihood`` the mean log-likelihood an
    image without the constant that all components share.
    """

    centres: Tensor
    shares: Tensor
    owner: Tensor
    likelihood: float


@torch.no_grad()
def split_and_merge(
    features: Tensor, labels: Tensor, clusters: Tensor, old: int, classes: int, temperature: float, seed: int
) -> Tensor:
    """Clusters [N] of higher likelihood near ``clusters``, with the same number of classes.

    The mixture is that of `starts.settle_clusters`. A try takes a new class that is cheap to merge away (its images
    are nearly as near to another centre), lets it begin anew at an image far from its own centre, iterates a few
    times, and is kept if the likelihood rose. Classes below ``old`` keep their labelled images and are never merged
    away, but may be split.

    Args:
        features: [N, F], of any norm.
        labels: [N] label index, -1 for none.
        clusters: [N] in 0..classes-1, where it starts.
        old: number of labelled classes.
        classes: number of all.
        temperature: of the assignment by cosine.
        seed: of the tries.
    """
    if classes - old < 1 or classes < 2:
        return clusters
    unit = torch.nn.functional.normalize(features.float(), dim=1)
    rows = torch.from_numpy(sample_rows(len(labels), _SEARCHED, seed)).to(labels.device)
    some, own = unit[rows], labels[rows]
    if not bool((own < 0).any()):
        return clusters
    draw = torch.Generator().manual_seed(seed)
    centres, shares = _means(some, torch.nn.functional.one_hot(clusters[rows], classes).float())
    best = _iterate(some, own, centres, shares, temperature, _FULL)
    for _ in range(_TRIES * (classes - old)):
        merged, image = _proposal(some, own, best, old, temperature, draw)
        centres, shares = best.centres.clone(), best.shares.clone()
        centres[merged], shares[merged] = some[image], 1 / classes
        tried = _iterate(some, own, centres, shares / shares.sum(), temperature, _BRIEF)
        if tried.likelihood > best.likelihood + _GAIN:
            best = tried
    return _iterate(unit, labels, best.centres, best.shares, temperature, _FULL).owner


def _iterate(
    unit: Tensor, labels: Tensor, centres: Tensor, shares: Tensor, temperature: float, iterations: int
) -> _Mixture:
    """Expectation maximisation with labelled images held to their class. Shape: unit [N, F], labels [N]."""
    known = labels >= 0
    held = ~torch.nn.functional.one_hot(labels[known], len(centres)).bool()
    for step in range(iterations + 1):
        joint = unit @ centres.T / temperature + shares.log()
        joint[known] = joint[known].masked_fill(held, -1e9)
        if step < iterations:
            centres, shares = _means(unit, joint.softmax(dim=1))
    likelihood = joint.logsumexp(dim=1).mean(dtype=torch.float64)
    return _Mixture(centres, shares, joint.argmax(dim=1), float(likelihood))


def _means(unit: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Centres [C, F] and shares [C] of images [N, F] that belong to classes by ``weights`` [N, C]."""
    centres = torch.nn.functional.normalize(weights.T @ unit, dim=1)
    return centres, (weights.sum(dim=0) / len(weights)).clamp_min(1e-9)


def _proposal(
    unit: Tensor, labels: Tensor, now: _Mixture, old: int, temperature: float, draw: torch.Generator
) -> tuple[int, int]:
    """A new class that is cheap to merge away, and an unlabelled image where it begins anew; both by chance."""
    cosine = unit @ now.centres.T
    near, owner = cosine.gather(1, now.owner[:, None]), now.owner[:, None]
    second = cosine.scatter(1, owner, -2.0).amax(dim=1, keepdim=True)
    loss = ((near - second) / temperature).clamp_min(0).squeeze(1).double().cpu()
    cost = torch.zeros(len(now.centres), dtype=torch.float64).index_add_(0, now.owner.cpu(), loss)[old:]
    cheap = 1 / (cost + cost.median() / 4 + 1e-6) ** 2
    far = (1 - near.squeeze(1)).double().cpu().clamp_min(1e-6).square().masked_fill(labels.cpu() >= 0, 0.0)
    merged = old + int(torch.multinomial(cheap, 1, generator=draw))
    return merged, int(torch.multinomial(far, 1, generator=draw))
