"""k-means on frozen features: what the backbone alone knows (the plain k-means row of Vaze et al. 2022)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from partgcd.cluster.metrics import match
from partgcd.methods.method import Clusters, Method, Points


def cluster(points: Points, classes: int, seed: int) -> Clusters:
    """Labels name clusters afterwards and take no part in the clustering."""
    fitted = KMeans(classes, n_init=10, random_state=seed).fit(points.features)
    order = _label_order(points, fitted.labels_.astype(np.int64), classes)
    centres = fitted.cluster_centers_[order].astype(np.float32)
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    place = np.empty(classes, dtype=np.int64)
    place[order] = np.arange(classes)
    return Clusters(centres, place[fitted.labels_])


def _label_order(points: Points, clusters: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Cluster index for each class index: old classes take the clusters their labelled images match."""
    order = np.full(classes, -1, dtype=np.int64)
    known = points.labels >= 0
    if known.any():
        for cluster, label in match(points.labels[known], clusters[known]).items():
            if label < points.old:
                order[label] = cluster
    rest = [cluster for cluster in range(classes) if cluster not in set(order.tolist())]
    order[order < 0] = rest
    return order


METHOD = Method("kmeans", "plain k-means of frozen features; labels only name its clusters", cluster=cluster)
