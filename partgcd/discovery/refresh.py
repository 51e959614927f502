"""Once an epoch: who looks like which class, which images speak for a new one, and what its parts are.

All from stored trunk tokens: features and attention cost the last block's class row alone, mixtures are
fitted on frozen patches that never change.

In a `World` of many ranks each takes contiguous rows of images, and for mixtures contiguous classes; what
comes out is gathered, so that every rank holds all of it. Without a world one process does all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.backbone.tokens import TokenStore
from partgcd.cluster.candidates import Candidates, Scores, Wanted, candidates_per_class, select_candidates
from partgcd.cluster.prototypes import calibrated_prototypes
from partgcd.cluster.shares import class_shares
from partgcd.cluster.sinkhorn import pin_labelled, sinkhorn
from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel, predict
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.em import fit_mixtures
from partgcd.parts.hard import fit_hard
from partgcd.parts.maps import attention_filter
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import Projection, project
from partgcd.parts.slots import align_slots, permute
from partgcd.run.device import Autocast
from partgcd.run.world import ALONE, Ranks, share_of

BATCH = 256
"""Images a forward pass of the last block; fixed, so that resumed runs see the same batches."""


class Look(NamedTuple):
    """How the evaluation views of all N images are seen: their trunk tokens, and by whom.

    Attributes:
        tick: called with (done, total) images; it may raise to stop.
        world: each of its ranks sees a share.
    """

    store: TokenStore
    device: torch.device
    autocast: Autocast
    tick: Callable[[int, int], None]
    world: Ranks = ALONE


class Features(NamedTuple):
    """Evaluation-view features of all N images: ``cls`` [N, D] unit norm, ``attention`` [N, P]."""

    cls: Tensor
    attention: Tensor


class Assignment(NamedTuple):
    """What the class head says of all N images.

    Attributes:
        predicted: [N] its argmax.
        assigned: [N] a_i: the label of a labelled image, else the argmax of the adjusted prediction.
        candidates: images that speak for each class.
    """

    predicted: Tensor
    assigned: Tensor
    candidates: Candidates


@torch.no_grad()
def compute_features(model: DiscoveryModel, look: Look) -> Features:
    """Class tokens and class attention of the evaluation view of every image."""

    def one(tokens: Tensor) -> tuple[Tensor, Tensor]:
        with look.autocast():
            out = model(tokens, None)
        return torch.nn.functional.normalize(out.cls.float(), dim=1), out.attention.float()

    cls, attention = over_images(one, look)
    return Features(cls, attention)


@torch.no_grad()
def compute_embeddings(embed: Callable[[Tensor], Tensor], look: Look) -> Tensor:
    """What ``embed`` makes of the evaluation view of every image, [N, E]."""

    def one(tokens: Tensor) -> tuple[Tensor, ...]:
        with look.autocast():
            return (embed(tokens),)

    return over_images(one, look)[0]


def over_images(compute: Callable[[Tensor], tuple[Tensor, ...]], look: Look) -> tuple[Tensor, ...]:
    """What ``compute`` says of the tokens [b, T, D] of every image, `BATCH` at a time: tensors [N, ...].

    Batches begin at the same images however many ranks share them, so each image's answer is the same bits.
    """
    store, device, _, tick, world = look
    share = share_of(store.rows, world, BATCH)
    found = []
    with world.together():
        for start in range(share.start, share.stop, BATCH):
            tick(start - share.start, len(share))
            found.append(compute(store.read(np.arange(start, min(start + BATCH, share.stop)), device)))
        tick(len(share), len(share))
    if world.size == 1:
        return tuple(torch.cat(each) for each in zip(*found, strict=True))
    # A rank without images learns what they look like from one that is not counted.
    mine = found or [compute(store.read(np.zeros(1, dtype=np.int64), device))]
    return tuple(world.all_gather(torch.cat(each)[: len(share)]) for each in zip(*mine, strict=True))


@torch.no_grad()
def compute_answers(
    model: DiscoveryModel,
    parts: PartModel | None,
    settings: Settings,
    look: Look,
) -> tuple[Tensor, Tensor | None]:
    """What `predict` says of the evaluation view of every image.

    Returns:
        fused probabilities [N, C], and part-enhanced features [N, D] with unit norm (None without parts).
    """

    def one(tokens: Tensor) -> tuple[Tensor, ...]:
        with look.autocast():
            found = predict(model, parts, tokens, settings.parts, settings.discovery)
        if found.feature is None:
            return (found.fused.float(),)
        return found.fused.float(), torch.nn.functional.normalize(found.feature.float(), dim=1)

    fused, *feature = over_images(one, look)
    return fused, feature[0] if feature else None


@torch.no_grad()
def assign(
    model: DiscoveryModel,
    features: Features,
    labels: Tensor,
    old: int,
    settings: Settings,
    world: Ranks = ALONE,
) -> Assignment:
    """Predictions, Sinkhorn-adjusted assignments and candidates (Eqs. 4 to 6).

    Args:
        labels: [N] label index, -1 for none.
        old: number of labelled classes; classes at and above it are sought among unlabelled images.
    """
    discovery, parts = settings.discovery, settings.parts
    share = share_of(len(labels), world)
    mine = slice(share.start, share.stop)
    cls, known = features.cls[mine], labels[mine]
    cosine = model.prototypes(cls)
    log_p = (cosine / discovery.sinkhorn_temperature).log_softmax(dim=1)
    shares = class_shares(log_p, labels, old, discovery.marginal_power, world)
    q = sinkhorn(
        log_p, discovery.sinkhorn_iterations, discovery.sinkhorn_tolerance, shares, world=world
    ).exp()
    pinned = pin_labelled(q, known)
    assigned = (pinned if parts.assignment_of_labelled == "label" else q).argmax(dim=1)
    count = candidates_per_class(labels, old, cosine.shape[1], parts.gamma)
    if parts.candidates == "calibrated":
        prototypes = calibrated_prototypes(cls, pinned, count, world=world)
    elif parts.candidates == "prototypes":
        prototypes = calibrated_prototypes(cls, pin_labelled(log_p.exp(), known), count, world=world)
    else:
        prototypes = None
    wanted = Wanted(parts.candidates, count, parts.candidate_temperature, parts.search)
    candidates = select_candidates(Scores(cls, log_p, q, prototypes), labels, old, wanted, world)
    predicted, assigned = cosine.argmax(dim=1), torch.where(known >= 0, assigned, q.argmax(dim=1))
    return Assignment(world.all_gather(predicted), world.all_gather(assigned), candidates)


@torch.no_grad()
def filtered_patches(
    model: DiscoveryModel,
    look: Look,
    projection: Projection | None,
    rows: NDArray[np.int64],
    attention: Tensor,
    use_filter: bool,
) -> tuple[Tensor, Tensor]:
    """Patches of ``rows`` with at least their image's mean attention, as mixtures see them.

    Returns:
        patches [M, d] in row order, and how many each row gave [len(rows)].
    """
    store, device = look.store, look.device
    kept, counts = [], []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        seen = model.mixture_patches(store.read(part, device))
        points = project(projection, seen) if projection is not None else seen
        attended = attention[torch.from_numpy(part).to(attention.device)]
        mask = attention_filter(attended) if use_filter else torch.ones_like(attended, dtype=torch.bool)
        kept.append(points[mask])
        counts.append(mask.sum(dim=1))
    if not kept:
        info = model.backbone.info
        raw = info.dim if model.learned_patches else info.trunk_dim
        dims = projection.dims if projection is not None else raw
        return torch.empty(0, dims, device=device), torch.empty(0, dtype=torch.long, device=device)
    return torch.cat(kept), torch.cat(counts)


@torch.no_grad()
def refit_bank(
    model: DiscoveryModel,
    before: PartModel,
    candidates: Candidates,
    attention: Tensor,
    settings: Settings,
    look: Look,
) -> tuple[GMMBank, float, float]:
    """Fit every class's mixture on its candidates, from the bank ``before``, slots aligned to the shared mixture.

    Returns:
        the new bank, the mean log-likelihood a patch (0 for k-means), and the seconds that EM and alignment took.
    """
    parts, bank, device, world = settings.parts, before.bank, look.device, look.world
    order = torch.argsort(candidates.classes, stable=True)
    mine = share_of_classes(candidates.classes, bank.mu.shape[0], world)
    order = order[torch.isin(candidates.classes[order], torch.tensor(mine, device=order.device))]
    rows = candidates.rows[order].cpu().numpy()
    classes = candidates.classes[order].to(device) - mine.start
    start = Mixture(*(value[mine.start : mine.stop] for value in (bank.log_pi, bank.mu, bank.var)))
    patches, per_row = filtered_patches(
        model, look, before.projection, rows, attention, parts.attention_filter
    )
    began = time.perf_counter()
    sizes = torch.zeros(len(mine), dtype=torch.long, device=device).index_add_(0, classes, per_row)
    cold = not bool(bank.fitted.any())
    floor = parts.variance_floor * float(bank.shared.var.mean())
    if parts.mixtures == "kmeans":
        fit = fit_hard(patches, sizes, start)
    else:
        result = fit_mixtures(
            patches,
            sizes,
            start,
            iterations=parts.em_iterations if cold else parts.em_iterations_warm,
            tolerance=parts.em_tolerance,
            variance_floor=floor,
            prior=bank.shared if parts.prior_strength > 0 else None,
            prior_strength=parts.prior_strength,
        )
        fit = result.mixture
    fitted = sizes >= parts.min_patches
    mixture = permute(fit, align_slots(fit, bank.shared.mu))
    keep, shared = fitted.view(-1, 1), bank.shared
    made = (
        torch.where(keep, mixture.log_pi, shared.log_pi),
        torch.where(keep[..., None], mixture.mu, shared.mu),
        torch.where(keep[..., None], mixture.var, shared.var),
        fitted,
    )
    reached = torch.zeros(2, dtype=torch.float64, device=device)
    if parts.mixtures != "kmeans":
        last = (result.iterations_run.clamp_min(1) - 1).view(1, -1)
        found = result.log_likelihood.gather(0, last)[0].nan_to_num()
        weights = torch.where(fitted, sizes, 0).cpu().to(found.dtype)
        reached = torch.stack([(found * weights).sum(), weights.sum()]).to(device)
    took = time.perf_counter() - began
    log_pi, mu, var, fitted = (world.all_gather(value) for value in made)
    reached = world.all_reduce(reached)
    return GMMBank(log_pi, mu, var, shared, fitted), float(reached[0] / reached[1].clamp_min(1)), took


def share_of_classes(classes: Tensor, total: int, world: Ranks) -> range:
    """This rank's contiguous share of ``total`` classes, with about its share of their images.

    Args:
        classes: [M] class of every candidate.
    """
    if world.size == 1:
        return range(total)
    images = torch.bincount(classes.cpu(), minlength=total).cumsum(0)
    wanted = torch.arange(1, world.size) * len(classes) / world.size
    bounds = [0, *torch.searchsorted(images.double(), wanted.double(), right=True).tolist(), total]
    return range(bounds[world.rank], bounds[world.rank + 1])
