"""Methods that train nothing: a clustering of what the backbone alone knows, answering with its centres."""

from __future__ import annotations

import numpy as np
import torch

from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.discovery.outputs import Answers
from partgcd.discovery.refresh import Features, compute_features
from partgcd.discovery.setup import decide_classes, ground
from partgcd.methods.known import method_of
from partgcd.methods.method import Clusters, Points
from partgcd.model.module import DiscoveryModel
from partgcd.run.world import World


def cluster_untrained(settings: Settings, catalog: Catalog, world: World) -> tuple[DiscoveryModel, Answers]:
    """Cluster the class tokens of all images; the model's prototypes are the centres.

    An image's answer is the clustering's own; a new image gets the nearest centre's class.

    Raises:
        UserError: fewer images than classes.
        Interrupted: a stop was asked for.
    """
    cluster = method_of(settings).cluster
    assert cluster is not None
    base = ground(settings, catalog, world)
    probe = DiscoveryModel(base.backbone, 2, None, settings).to(world.device)
    features = compute_features(probe, base.look(world))
    classes = decide_classes(settings, catalog, features, world)
    cls = features.cls.cpu().numpy().astype(np.float32)
    world.progress("k-means", 0, 1)
    clusters = cluster(Points(cls, catalog.labels, len(catalog.label_names)), classes, settings.seed)
    world.progress("k-means", 1, 1)
    model = DiscoveryModel(base.backbone, classes, None, settings).to(world.device)
    with torch.no_grad():
        model.prototypes.weight.copy_(torch.from_numpy(clusters.centres))
    return model, _answers(features, clusters, base.backbone.info.grid, settings)


def _answers(features: Features, clusters: Clusters, grid: tuple[int, int], settings: Settings) -> Answers:
    """Answers of N images, each surest of the cluster it is in."""
    cls = features.cls.cpu().numpy().astype(np.float32)
    cosine = torch.from_numpy(cls @ clusters.centres.T)
    fused = (cosine / settings.loss.student_temperature).softmax(dim=1).numpy()
    # The answer is the clustering's own; the softmax above only grades how sure it is.
    rows, chosen = np.arange(len(cls)), clusters.clusters
    swap = fused.argmax(axis=1)
    fused[rows, chosen], fused[rows, swap] = fused[rows, swap].copy(), fused[rows, chosen].copy()
    attention = features.attention.cpu().numpy()
    return Answers(fused, None, fused, cls, None, attention, None, grid, clusters.centres)
