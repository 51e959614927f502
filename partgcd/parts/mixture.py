"""Mixtures of diagonal Gaussians (Eq. 8) and a seeded start for one."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Mixture:
    """Parameters of one mixture (no leading axis) or of C mixtures (a leading axis C).

    Shape: log_pi [..., K] (log weights, they sum to 1), mu [..., K, d], var [..., K, d] (diagonal, above 0).
    """

    log_pi: Tensor
    mu: Tensor
    var: Tensor

    def __post_init__(self) -> None:
        if self.mu.shape != self.var.shape or self.mu.shape[:-1] != self.log_pi.shape:
            raise ValueError(
                f"a mixture needs log_pi [..., K], mu and var [..., K, d], not {list(self.log_pi.shape)}, "
                f"{list(self.mu.shape)} and {list(self.var.shape)}"
            )

    @property
    def components(self) -> int:
        """K, the number of parts."""
        return self.log_pi.shape[-1]

    @property
    def dims(self) -> int:
        """d, the dimensions of a patch."""
        return self.mu.shape[-1]

    def repeat(self, classes: int) -> Mixture:
        """One mixture [K] given to each of ``classes`` classes: [C, K]."""
        return Mixture(*(t.expand(classes, *t.shape).clone() for t in (self.log_pi, self.mu, self.var)))

    def to(self, device: torch.device | str) -> Mixture:
        """The same mixture on another device."""
        return Mixture(self.log_pi.to(device), self.mu.to(device), self.var.to(device))


def log_joint(mixture: Mixture, patches: Tensor) -> Tensor:
    """log pi_k + log N(f; mu_k, var_k), the terms of Eq. 8, for each image's own mixture.

    Patches and means are first centred on the mean of the mixture's means: the product form below subtracts
    squares, and far from the origin float32 has no digits left for the difference.

    Shape: mixture [B, K], patches [B, P, d] -> [B, P, K].
    """
    centre = mixture.mu.mean(dim=-2, keepdim=True)
    mu = mixture.mu - centre
    x = patches - centre
    precision = mixture.var.reciprocal()
    constant = mixture.log_pi - 0.5 * (
        mixture.dims * LOG_2PI + mixture.var.log().sum(-1) + (mu.square() * precision).sum(-1)
    )
    linear = x @ (mu * precision).transpose(-1, -2)
    quadratic = x.square() @ (-0.5 * precision).transpose(-1, -2)
    return quadratic + linear + constant.unsqueeze(-2)


def sample_rows(count: int, limit: int, seed: int) -> NDArray[np.int64]:
    """Sorted indices of at most ``limit`` of ``count`` rows, drawn without replacement; all if they fit."""
    if count <= limit:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, size=limit, replace=False)).astype(np.int64)


def kmeans(
    points: NDArray[np.floating], clusters: int, seed: int, iterations: int = 50
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """k-means with one seeded k-means++ start.

    The points are clustered in float64: scikit-learn's threads add up centres in any order, and in float32
    the last bits of a run would depend on it.

    Shape: points [n, d], n >= clusters -> centres [clusters, d], label of each point [n].
    """
    model = KMeans(clusters, n_init=1, max_iter=iterations, random_state=seed)
    with warnings.catch_warnings():  # fewer distinct points than clusters: then some clusters stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = model.fit_predict(np.ascontiguousarray(points, dtype=np.float64))
    return np.asarray(model.cluster_centers_, dtype=np.float64), np.asarray(labels, dtype=np.int64)


def hard_mixture(patches: Tensor, labels: Tensor, components: int, variance_floor: Tensor | float) -> Mixture:
    """The mixture whose components are the given clusters: their shares, means and variances.

    Shape: patches [n, d], labels [n] in 0..K-1 -> Mixture [K]. A cluster without patches gets the mean and
    the variance of all patches and the weight of half a patch.
    """
    x = patches.double()
    member = torch.nn.functional.one_hot(labels.long(), components).to(x)
    count = member.sum(0)
    centre = x.mean(0)
    x = x - centre
    share = member / count.clamp_min(1.0)
    mu = share.T @ x
    var = share.T @ x.square() - mu.square()
    empty = (count == 0).unsqueeze(1)
    mu = torch.where(empty, torch.zeros_like(mu), mu) + centre
    var = torch.where(empty, x.square().mean(0).expand_as(var), var)
    var = torch.maximum(var, torch.as_tensor(variance_floor, dtype=x.dtype, device=x.device))
    weight = count.clamp_min(0.5)
    log_pi = (weight / weight.sum()).log()
    dtype = torch.promote_types(patches.dtype, torch.float32)
    return Mixture(log_pi.to(dtype), mu.to(dtype), var.to(dtype))


def initial_mixture(
    patches: Tensor, components: int, seed: int, variance_floor: Tensor | float, sample: int = 20_000
) -> Mixture:
    """A start for the mixture of all patches: k-means on at most ``sample`` of them.

    Shape: patches [M, d], variance_floor scalar or [d] (above 0) -> Mixture [K] on the patches' device.

    Raises:
        ValueError: there are fewer patches than components.
    """
    if len(patches) < components:
        raise ValueError(f"{len(patches)} patches cannot start a mixture of {components} parts")
    rows = torch.from_numpy(sample_rows(len(patches), sample, seed)).to(patches.device)
    some = patches.detach()[rows]
    _, labels = kmeans(some.cpu().double().numpy(), components, seed)
    return hard_mixture(some, torch.from_numpy(labels).to(some.device), components, variance_floor)
