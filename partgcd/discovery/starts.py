"""Where trained heads start when they do not start at random: from what the untrained backbone knows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from partgcd.cluster.novel_samples import Expected, cluster_novel_samples, nearest_class
from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import BATCH, Features, Look
from partgcd.model.module import DiscoveryModel
from partgcd.run.world import ALONE, Ranks, share_of

_MIXTURE_STEPS = 20
"""Of EM in the last clustering."""

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


def refit_clusters(
    features: Tensor,
    labels: Tensor,
    predicted: Tensor,
    old: int,
    classes: int,
    seed: int,
    expected: Expected | None = None,
) -> Tensor:
    """Clusters [N] of what was learned so far, by semi-supervised k-means or, where numbers are known, by those.

    Clusters take the index of the class whose images they share most of, so that a class stays the class it
    was, mixture included.

    Args:
        features: [N, F], of any norm.
        labels: [N] label index, -1 for none.
        predicted: [N] the class head's answer.
        old: number of labelled classes.
        seed: of the clustering.
        expected: sizes of known classes and the number of images of others, where training goes on.
    """
    unit = torch.nn.functional.normalize(features, dim=1).cpu().numpy()
    own = labels.cpu().numpy()
    if expected is None:
        _, found = semi_kmeans(unit, own, old, classes, seed, starts=3)
    else:
        found = cluster_novel_samples(unit, own, nearest_class(unit, own, old), expected, old, classes, seed)
    before = torch.where(labels >= 0, labels, predicted).cpu().numpy()
    return torch.from_numpy(_keep_index(found, before, old, classes)).to(labels.device)


@torch.no_grad()
def settle_clusters(
    features: Tensor,
    labels: Tensor,
    probabilities: Tensor,
    temperature: float,
    world: Ranks = ALONE,
    shares: Tensor | None = None,
) -> Tensor:
    """Clusters [N] near the answers so far: a mixture on the unit sphere, labelled images held to their class.

    EM for von Mises-Fisher components of one concentration, 1 / temperature, with shares of their own (Banerjee
    et al. 2005), from the heads' probabilities. Unlike k-means it neither forgets what training found nor
    wants classes of one size.

    Args:
        features: [N, F], of any norm.
        labels: [N] label index, -1 for none.
        probabilities: [N, C] where it starts.
        temperature: of the assignment by cosine.
        world: each of its ranks computes on its share of the images; the sums are of all.
        shares: [C] of the unlabelled images, where they are known; None finds them, of all images.
    """
    share = share_of(len(labels), world)
    mine, total = slice(share.start, share.stop), len(labels)
    unit, own = torch.nn.functional.normalize(features[mine], dim=1), labels[mine]
    known = own >= 0
    pinned = torch.nn.functional.one_hot(own[known], probabilities.shape[1]).to(unit)
    q = probabilities[mine].to(unit).clone()
    for _ in range(_MIXTURE_STEPS):
        q[known] = pinned
        sums, mass = q.T @ unit, q.sum(dim=0)
        if world.size > 1:
            joined = world.all_reduce(torch.cat([sums, mass[:, None]], dim=1))
            sums, mass = joined[:, :-1], joined[:, -1]
        centres = torch.nn.functional.normalize(sums, dim=1)
        prior = (mass / total if shares is None else shares.to(unit)).clamp_min(1e-9)
        q = (unit @ centres.T / temperature + prior.log()).softmax(dim=1)
    found = torch.where(known, own, q.argmax(dim=1))
    return world.all_gather(found)


@torch.no_grad()
def set_prototypes(weight: Tensor, features: Tensor, clusters: Tensor, first: int = 0) -> None:
    """Turn prototypes ``weight`` [C, D], from row ``first`` on, to their cluster's mean of ``features`` [N, D].

    The mean norm is kept, because it sets how far a step turns a prototype; an empty cluster's stays.
    """
    sums = torch.zeros_like(weight).index_add_(0, clusters, features.to(weight))
    filled = sums.norm(dim=1) > 0
    filled[:first] = False
    centres = torch.nn.functional.normalize(sums, dim=1) * weight.norm(dim=1).mean()
    weight[filled] = centres[filled]


def _keep_index(
    clusters: NDArray[np.int64], before: NDArray[np.int64], old: int, classes: int
) -> NDArray[np.int64]:
    """``clusters`` [N] with new ones renumbered to overlap most with the classes of ``before`` [N]."""
    both = (clusters >= old) & (before >= old)
    overlap = np.zeros((classes - old, classes - old), dtype=np.int64)
    np.add.at(overlap, (clusters[both] - old, before[both] - old), 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    renumbered = np.arange(classes)
    renumbered[rows + old] = columns + old
    kept: NDArray[np.int64] = renumbered[clusters]
    return kept


@torch.no_grad()
def start_adapter(
    model: DiscoveryModel,
    parts: PartModel,
    settings: Settings,
    look: Look,
) -> None:
    """Set the adapter's linear path to the ridge regression from the mean part feature to the class token.

    The part feature then starts as the class token's best linear guess from parts, so that shared prototypes
    and projector mean something to it from the first step.
    """
    assert model.adapter is not None

    store, device, autocast, _, world = look
    total, share = store.rows, share_of(store.rows, world, BATCH)
    dim = model.backbone.info.dim
    means = [torch.empty(0, dim, dtype=torch.float64, device=device)]
    targets = [means[0]]
    for start in range(share.start, share.stop, BATCH):
        rows = np.arange(start, min(start + BATCH, share.stop))
        tokens = store.read(rows, device)
        first = torch.zeros(len(rows), dtype=torch.long, device=device)
        maps = parts.maps(model.mixture_patches(tokens), first, settings.parts.temperature)
        with autocast():
            out = model(tokens, maps)
        assert out.parts is not None
        means.append(out.parts.mean(dim=1).double())
        targets.append(out.cls.double())
    x, y = torch.cat(means), torch.cat(targets)
    mx, my = world.all_reduce(x.sum(dim=0)) / total, world.all_reduce(y.sum(dim=0)) / total
    x, y = x - mx, y - my
    gram = world.all_reduce(x.T @ x)
    gram.diagonal().add_(_RIDGE * float(gram.diagonal().mean()))
    weights = torch.linalg.solve(gram, world.all_reduce(x.T @ y)).T
    model.adapter.start_linear(weights.float(), (my - weights @ mx).float())
