"""k-means on frozen features, plain and semi-supervised: what the backbone alone knows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from partgcd.cluster.metrics import match
from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.discovery.outputs import Answers
from partgcd.discovery.refresh import Features, compute_features
from partgcd.discovery.setup import Ground, decide_classes, ground, stopping_ticker
from partgcd.model.module import DiscoveryModel
from partgcd.run.world import World


def kmeans(settings: Settings, catalog: Catalog, world: World) -> Answers:
    """Cluster the untrained class tokens of all images; clusters get the labels they agree with most.

    Labels name clusters afterwards and take no part in the clustering (Vaze et al. 2022, the plain k-means row).
    """
    base, features, classes = _untrained(settings, catalog, world)
    cls = features.cls.cpu().numpy().astype(np.float32)
    world.progress("k-means", 0, 1)
    found = KMeans(classes, n_init=10, random_state=settings.seed).fit(cls)
    world.progress("k-means", 1, 1)
    order = _label_order(catalog, found.labels_.astype(np.int64), classes)
    centres = found.cluster_centers_[order].astype(np.float32)
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    place = np.empty(classes, dtype=np.int64)
    place[order] = np.arange(classes)
    return _answers(base, features, centres, place[found.labels_], settings)


def gcd(settings: Settings, catalog: Catalog, world: World) -> Answers:
    """Semi-supervised k-means of the untrained class tokens, labelled images held to their class.

    The assignment step of Vaze et al. 2022, on frozen features: their contrastive fine-tuning is left out.
    """
    base, features, classes = _untrained(settings, catalog, world)
    cls = features.cls.cpu().numpy().astype(np.float32)
    world.progress("k-means", 0, 1)
    centres, clusters = semi_kmeans(
        cls, catalog.labels, len(catalog.label_names), classes, settings.seed, starts=10, iterations=200
    )
    world.progress("k-means", 1, 1)
    return _answers(base, features, centres, clusters, settings)


def _untrained(settings: Settings, catalog: Catalog, world: World) -> tuple[Ground, Features, int]:
    base = ground(settings, catalog, world)
    probe = DiscoveryModel(base.backbone, 2, None, settings).to(world.device)
    tick = stopping_ticker(world, "features")
    features = compute_features(probe, base.evaluation, world.device, base.autocast, tick, world)
    return base, features, decide_classes(settings, catalog, features, world)


def _answers(
    base: Ground,
    features: Features,
    centres: NDArray[np.float32],
    chosen: NDArray[np.int64],
    settings: Settings,
) -> Answers:
    """Answers of N images given unit-norm centres [C, D] and each image's cluster [N]."""
    cls = features.cls.cpu().numpy().astype(np.float32)
    cosine = torch.from_numpy(cls @ centres.T)
    fused = (cosine / settings.loss.student_temperature).softmax(dim=1).numpy()
    # The answer is the clustering's own; the softmax above only grades how sure it is.
    rows = np.arange(len(cls))
    swap = fused.argmax(axis=1)
    fused[rows, chosen], fused[rows, swap] = fused[rows, swap].copy(), fused[rows, chosen].copy()
    return Answers(
        fused,
        None,
        fused,
        cls,
        None,
        features.attention.cpu().numpy(),
        None,
        base.backbone.info.grid,
        centres,
    )


def _label_order(catalog: Catalog, clusters: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Cluster index for each class index: old classes take the clusters their labelled images match."""
    old = len(catalog.label_names)
    order = np.full(classes, -1, dtype=np.int64)
    known = catalog.labelled
    if known.any():
        for cluster, label in match(catalog.labels[known], clusters[known]).items():
            if label < old:
                order[label] = cluster
    rest = [cluster for cluster in range(classes) if cluster not in set(order.tolist())]
    order[order < 0] = rest
    return order
