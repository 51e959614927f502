"""k-means on frozen features: what the backbone alone knows (the plain k-means row of Vaze et al. 2022)."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

from partgcd.cluster.metrics import cluster_of_class
from partgcd.methods.method import Clusters, Method, Points


def cluster(points: Points, classes: int, seed: int) -> Clusters:
    """Labels name clusters afterwards and take no part in the clustering."""
    fitted = KMeans(classes, n_init=10, random_state=seed).fit(points.features)
    order = cluster_of_class(points.labels, fitted.labels_.astype(np.int64), points.old, classes)
    centres = fitted.cluster_centers_[order].astype(np.float32)
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    place = np.empty(classes, dtype=np.int64)
    place[order] = np.arange(classes)
    return Clusters(centres, place[fitted.labels_])


METHOD = Method("kmeans", "plain k-means of frozen features; labels only name its clusters", cluster=cluster)
