"""Sinkhorn-Knopp: predictions adjusted so that every class gets its share of the images (supplement).

Letters: N images, C classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from partgcd.run.world import ALONE, Ranks

CHUNK = 8192  # images whose scores are held twice; bounds the extra memory, not the result
LARGEST = 1e30  # of a score; beyond it sums of scores and potentials would leave float32


def _shares(marginals: Tensor | None, scores: Tensor, world: Ranks) -> Tensor:
    """The classes' shares of the images, [C] float64 summing to 1; 0 for a class that no image can take."""
    classes = scores.shape[1]
    if marginals is None:
        shares = torch.ones(classes, dtype=torch.float64, device=scores.device)
    else:
        shares = marginals.to(scores.device, torch.float64)
        if shares.shape != (classes,):
            raise ValueError(f"marginals have shape {tuple(shares.shape)}: expected ({classes},)")
        if not bool((torch.isfinite(shares) & (shares >= 0)).all()) or float(shares.sum()) <= 0:
            raise ValueError("marginals must be finite, at least 0 and not all 0")
    takers = (scores if len(scores) else scores.new_full((1, classes), -math.inf)).amax(dim=0) > -math.inf
    if world.size > 1:
        takers = world.all_reduce(takers.double()) > 0
    possible = shares * takers
    if float(possible.sum()) > 0:
        shares = possible
    return shares / shares.sum()


def sinkhorn(
    log_p: Tensor,
    iterations: int = 10,
    tolerance: float = 1e-3,
    marginals: Tensor | None = None,
    overwrite: bool = False,
    world: Ranks = ALONE,
) -> Tensor:
    """The predictions closest to ``log_p`` (in KL) whose classes have the given mass, as log-probabilities.

    Solves min KL(Q || P) with rows of Q summing to 1 and column c to N * marginals[c] by alternating
    scalings, in the log domain. It stops once every column holds to a relative ``tolerance`` (rows hold
    exactly by then) or after ``iterations`` column updates. It ends with a row normalisation, so rows are
    probability vectors in any case and an early stop shows in the columns only.

    Rows may carry any constant: logits over a temperature do as well as log-probabilities. -inf forbids a
    class to an image. A class forbidden to all images, or with a zero marginal, gets nothing and the others
    share its mass; an image with no class left is read as knowing nothing, the same score for all classes in
    play.

    The result is float32 (float64 where the input is); per-class sums are float64. Besides it, the memory is
    a few thousand rows; with ``overwrite`` the result takes the input's own memory where the types agree.

    In a ``world`` of many ranks each passes its own images' rows and gets them back; the columns' masses are
    those of all ranks together.

    Shape: log_p [N, C]; marginals [C], non-negative, scaled to sum to 1, uniform by default -> [N, C].

    Raises ValueError for a score that is NaN or +inf and for marginals that are no distribution over C
    classes.
    """
    dtype = torch.float64 if log_p.dtype == torch.float64 else torch.float32
    log_q = log_p.detach().to(dtype)
    if not overwrite and log_q.data_ptr() == log_p.data_ptr():
        log_q = log_q.clone()
    many = world.size > 1
    images = len(log_q)
    if many:
        images = int(world.all_reduce(torch.tensor([images], device=log_q.device)))
    if not images:
        return log_q
    if len(log_q) and not bool(log_q.amax() < math.inf):  # a maximum of NaN is NaN
        raise ValueError("scores hold NaN or +inf: the model that made them has diverged")

    shares = _shares(marginals, log_q, world)
    in_play = shares > 0
    for chunk in torch.split(log_q, CHUNK):
        chunk.masked_fill_(~in_play, -math.inf)
        blank = (chunk == -math.inf).all(dim=1, keepdim=True)
        chunk.masked_fill_(blank & in_play, 0.0)
        forbidden = chunk == -math.inf
        chunk.clamp_(-LARGEST, LARGEST).masked_fill_(forbidden, -math.inf)
        chunk -= chunk.amax(dim=1, keepdim=True)

    log_target = torch.where(in_play, shares * images, 1.0).log()
    potential = torch.zeros_like(shares)
    for _ in range(iterations):
        log_mass = torch.full_like(potential, -math.inf)
        for chunk in torch.split(log_q, CHUNK):
            normalised = F.log_softmax(chunk + potential.to(dtype), dim=1)
            log_mass = torch.logaddexp(log_mass, normalised.logsumexp(dim=0).double())
        if many:
            log_mass = world.all_gather(log_mass[None], [1] * world.size).logsumexp(dim=0)
        excess = torch.where(in_play, log_mass - log_target, 0.0)
        if float(excess.expm1().abs().max()) <= tolerance:
            break
        potential -= excess
    for chunk in torch.split(log_q, CHUNK):
        chunk.copy_(F.log_softmax(chunk + potential.to(dtype), dim=1))
    return log_q


def pin_labelled(q: Tensor, labels: Tensor) -> Tensor:
    """The same probabilities with every labelled image certain of its label (1 there, 0 elsewhere).

    Shape: q [N, C]; labels [N] int64, class index or -1 for an unlabelled image -> [N, C].
    """
    labelled = labels >= 0
    pinned = q.masked_fill(labelled[:, None], 0.0)
    rows = labelled.nonzero().squeeze(1)
    pinned[rows, labels[rows]] = 1.0
    return pinned
