"""The assignment step of Vaze et al. 2022 on frozen features; their contrastive fine-tuning is left out."""

from __future__ import annotations

from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.methods.method import Clusters, Method, Points


def cluster(points: Points, classes: int, seed: int) -> Clusters:
    """Semi-supervised k-means: labelled images are held to their class."""
    return Clusters(
        *semi_kmeans(points.features, points.labels, points.old, classes, seed, starts=10, iterations=200)
    )


METHOD = Method("gcd", "semi-supervised k-means of frozen features (Vaze 2022)", cluster=cluster)
