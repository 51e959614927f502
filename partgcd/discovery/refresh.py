"""Once an epoch: who looks like which class, which images speak for a new one, and what its parts are.

All from stored trunk tokens: features and attention cost the last block's class row alone, mixtures are
fitted on frozen patches that never change.
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
from partgcd.config.tree import Settings
from partgcd.discovery.candidates import Candidates, candidates_per_class, select_candidates
from partgcd.discovery.predict import PartModel, predict
from partgcd.discovery.prototypes import calibrated_prototypes
from partgcd.discovery.sinkhorn import pin_labelled, sinkhorn
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.em import fit_mixtures
from partgcd.parts.hard import fit_hard
from partgcd.parts.maps import attention_filter
from partgcd.parts.projection import Projection, project
from partgcd.parts.slots import align_slots, permute
from partgcd.run.device import Autocast

BATCH = 256
"""Images a forward pass of the last block; fixed, so that resumed runs see the same batches."""


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
def compute_features(
    model: DiscoveryModel,
    store: TokenStore,
    device: torch.device,
    autocast: Autocast,
    tick: Callable[[int, int], None],
) -> Features:
    """Class tokens and class attention of the evaluation view of every image."""
    cls, attention = [], []
    for start in range(0, store.rows, BATCH):
        tick(start, store.rows)
        rows = np.arange(start, min(start + BATCH, store.rows))
        tokens = store.read(rows, device)
        with autocast():
            out = model(tokens, None)
        cls.append(torch.nn.functional.normalize(out.cls.float(), dim=1))
        attention.append(out.attention.float())
    tick(store.rows, store.rows)
    return Features(torch.cat(cls), torch.cat(attention))


@torch.no_grad()
def compute_answers(
    model: DiscoveryModel,
    parts: PartModel | None,
    store: TokenStore,
    settings: Settings,
    device: torch.device,
    autocast: Autocast,
    tick: Callable[[int, int], None],
) -> tuple[Tensor, Tensor | None]:
    """What `predict` says of the evaluation view of every image.

    Returns:
        fused probabilities [N, C], and part-enhanced features [N, D] with unit norm (None without parts).
    """
    fused, feature = [], []
    for start in range(0, store.rows, BATCH):
        tick(start, store.rows)
        tokens = store.read(np.arange(start, min(start + BATCH, store.rows)), device)
        with autocast():
            found = predict(model, parts, tokens, settings.parts, settings.discovery)
        fused.append(found.fused.float())
        if found.feature is not None:
            feature.append(torch.nn.functional.normalize(found.feature.float(), dim=1))
    tick(store.rows, store.rows)
    return torch.cat(fused), torch.cat(feature) if feature else None


@torch.no_grad()
def assign(
    model: DiscoveryModel, features: Features, labels: Tensor, old: int, settings: Settings
) -> Assignment:
    """Predictions, Sinkhorn-adjusted assignments and candidates (Eqs. 4 to 6).

    Args:
        labels: [N] label index, -1 for none.
        old: number of labelled classes; classes at and above it are sought among unlabelled images.
    """
    discovery, parts = settings.discovery, settings.parts
    cosine = model.prototypes(features.cls)
    log_p = (cosine / discovery.sinkhorn_temperature).log_softmax(dim=1)
    q = sinkhorn(log_p, discovery.sinkhorn_iterations, discovery.sinkhorn_tolerance).exp()
    known = labels >= 0
    pinned = pin_labelled(q, labels)
    assigned = (pinned if parts.assignment_of_labelled == "label" else q).argmax(dim=1)
    count = candidates_per_class(labels, old, cosine.shape[1], parts.gamma)
    if parts.candidates == "calibrated":
        prototypes = calibrated_prototypes(features.cls, pinned, count)
    elif parts.candidates == "prototypes":
        prototypes = calibrated_prototypes(features.cls, pin_labelled(log_p.exp(), labels), count)
    else:
        prototypes = None
    candidates = select_candidates(
        mode=parts.candidates,
        features=features.cls,
        log_p=log_p,
        q=q,
        prototypes=prototypes,
        labels=labels,
        old=old,
        count=count,
        temperature=parts.candidate_temperature,
        search=parts.search,
    )
    predicted = cosine.argmax(dim=1)
    return Assignment(predicted, torch.where(known, assigned, q.argmax(dim=1)), candidates)


@torch.no_grad()
def filtered_patches(
    model: DiscoveryModel,
    store: TokenStore,
    projection: Projection | None,
    rows: NDArray[np.int64],
    attention: Tensor,
    use_filter: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Frozen patches of ``rows`` with at least their image's mean attention, as mixtures see them.

    Returns:
        patches [M, d] in row order, and how many each row gave [len(rows)].
    """
    kept, counts = [], []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        frozen = model.backbone.frozen_patches(store.read(part, device))
        points = project(projection, frozen) if projection is not None else frozen
        attended = attention[torch.from_numpy(part).to(attention.device)]
        mask = attention_filter(attended) if use_filter else torch.ones_like(attended, dtype=torch.bool)
        kept.append(points[mask])
        counts.append(mask.sum(dim=1))
    return torch.cat(kept), torch.cat(counts)


@torch.no_grad()
def refit_bank(
    model: DiscoveryModel,
    store: TokenStore,
    projection: Projection,
    bank: GMMBank,
    candidates: Candidates,
    attention: Tensor,
    settings: Settings,
    device: torch.device,
) -> tuple[GMMBank, float, float]:
    """Fit every class's mixture on its candidates, from the last bank, slots aligned to the shared mixture.

    Returns:
        the new bank, the mean log-likelihood a patch (0 for k-means), and the seconds that EM and alignment took.
    """
    parts = settings.parts
    order = torch.argsort(candidates.classes, stable=True)
    rows = candidates.rows[order].cpu().numpy()
    classes = candidates.classes[order].to(device)
    patches, per_row = filtered_patches(
        model, store, projection, rows, attention, parts.attention_filter, device
    )
    began = time.perf_counter()
    total = bank.mu.shape[0]
    sizes = torch.zeros(total, dtype=torch.long, device=device).index_add_(0, classes, per_row)
    cold = not bool(bank.fitted.any())
    floor = parts.variance_floor * float(bank.shared.var.mean())
    mean = 0.0
    if parts.mixtures == "kmeans":
        fit = fit_hard(patches, sizes, bank.mixture)
    else:
        result = fit_mixtures(
            patches,
            sizes,
            bank.mixture,
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
    new = GMMBank(
        torch.where(keep, mixture.log_pi, shared.log_pi),
        torch.where(keep[..., None], mixture.mu, shared.mu),
        torch.where(keep[..., None], mixture.var, shared.var),
        shared,
        fitted,
    )
    if parts.mixtures != "kmeans":
        last = (result.iterations_run.clamp_min(1) - 1).view(1, -1)
        reached = result.log_likelihood.gather(0, last)[0].nan_to_num()
        weights = torch.where(fitted, sizes, 0).cpu().to(reached.dtype)
        mean = float((reached * weights).sum() / weights.sum().clamp_min(1))
    return new, mean, time.perf_counter() - began
