"""The GMM bank: the part mixtures of all classes, and the one they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from partgcd.parts.exact import exact_products
from partgcd.parts.mixture import Mixture, log_joint

_FIELDS = ("log_pi", "mu", "var")


@dataclass(frozen=True)
class GMMBank:
    """xi^c of every class.

    Attributes:
        log_pi: [C, K] log weights.
        mu: [C, K, d] means.
        var: [C, K, d] diagonal variances.
        shared: [K], the mixture of all patches; slot k means the same part in it and in every class.
        fitted: [C] bool; a class that is not fitted (too few patches) holds the shared mixture.
    """

    log_pi: Tensor
    mu: Tensor
    var: Tensor
    shared: Mixture
    fitted: Tensor

    @classmethod
    def all_shared(cls, shared: Mixture, classes: int) -> GMMBank:
        """The bank before any class is fitted: each of ``classes`` classes holds the shared mixture [K]."""
        start = shared.repeat(classes)
        fitted = torch.zeros(classes, dtype=torch.bool, device=start.mu.device)
        return cls(start.log_pi, start.mu, start.var, shared, fitted)

    @property
    def mixture(self) -> Mixture:
        """The class mixtures [C, K] without the shared one."""
        return Mixture(self.log_pi, self.mu, self.var)

    def select(self, classes: Tensor) -> GMMBank:
        """The bank of the given classes, in their order, repeats allowed. Shape: classes [B] -> C = B."""
        return GMMBank(
            self.log_pi[classes], self.mu[classes], self.var[classes], self.shared, self.fitted[classes]
        )

    def to(self, device: torch.device | str) -> GMMBank:
        """The same bank on another device."""
        m = self.mixture.to(device)
        return GMMBank(m.log_pi, m.mu, m.var, self.shared.to(device), self.fitted.to(device))

    def to_tensors(self) -> dict[str, Tensor]:
        """Name to contiguous tensor, as safetensors wants it; `from_tensors` is the inverse."""
        tensors = {name: getattr(self, name) for name in _FIELDS}
        tensors |= {f"shared.{name}": getattr(self.shared, name) for name in _FIELDS}
        tensors["fitted"] = self.fitted
        return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> GMMBank:
        """The bank that `to_tensors` wrote.

        Raises:
            ValueError: a tensor is missing, or the shapes contradict each other.
        """
        names = [*_FIELDS, *(f"shared.{name}" for name in _FIELDS), "fitted"]
        missing = [name for name in names if name not in tensors]
        if missing:
            raise ValueError(f"this is no GMM bank: it lacks {', '.join(missing)}")
        mixture = Mixture(*(tensors[name] for name in _FIELDS))
        shared = Mixture(*(tensors[f"shared.{name}"] for name in _FIELDS))
        fitted = tensors["fitted"].bool()
        if mixture.mu.shape[1:] != shared.mu.shape or fitted.shape != mixture.log_pi.shape[:1]:
            raise ValueError(
                f"the parts of this GMM bank do not fit together: classes {list(mixture.mu.shape)}, "
                f"shared {list(shared.mu.shape)}, fitted {list(fitted.shape)}"
            )
        return cls(mixture.log_pi, mixture.mu, mixture.var, shared, fitted)


def log_likelihood(bank: GMMBank, patches: Tensor, classes: Tensor) -> Tensor:
    """log pi_k + log N(f; mu_k, Sigma_k) of each patch under its image's class (the terms of Eq. 8).

    Shape: patches [B, P, d], classes [B] in 0..C-1 -> [B, P, K], at least float32.
    """
    chosen = bank.select(classes).mixture
    with exact_products(patches.device):
        return log_joint(chosen, patches.to(torch.promote_types(patches.dtype, torch.float32)))
