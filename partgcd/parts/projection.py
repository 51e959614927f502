"""What frozen patches go through before the mixtures: layer norm, L2 norm and, optionally, PCA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from partgcd.parts.exact import exact_products
from partgcd.parts.mixture import sample_rows


@dataclass(frozen=True)
class Projection:
    """mean [Dt] and orthonormal basis [Dt, d] of a PCA; d = 0 keeps all Dt dimensions as they are."""

    mean: Tensor
    basis: Tensor

    @property
    def dims(self) -> int:
        """Dimensions of a projected patch."""
        return self.basis.shape[1] or self.mean.shape[0]

    def to(self, device: torch.device | str) -> Projection:
        """The same projection on another device."""
        return Projection(self.mean.to(device), self.basis.to(device))

    def to_tensors(self) -> dict[str, Tensor]:
        """Name to contiguous tensor, as safetensors wants it; `from_tensors` is the inverse."""
        return {"mean": self.mean.contiguous(), "basis": self.basis.contiguous()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Projection:
        """The projection that `to_tensors` wrote.

        Raises:
            ValueError: a tensor is missing, or the shapes contradict each other.
        """
        missing = [name for name in ("mean", "basis") if name not in tensors]
        if missing:
            raise ValueError(f"this is no patch projection: it lacks {', '.join(missing)}")
        mean, basis = tensors["mean"], tensors["basis"]
        if mean.dim() != 1 or basis.dim() != 2 or len(mean) != len(basis):
            raise ValueError(f"mean {list(mean.shape)} and basis {list(basis.shape)} are no patch projection")
        return cls(mean, basis)


def standardise(frozen: Tensor) -> Tensor:
    """Layer norm without scale and shift, then unit length. Shape: [..., Dt], at least float32."""
    x = frozen.to(torch.promote_types(frozen.dtype, torch.float32))
    x = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return torch.nn.functional.normalize(x, dim=-1)


@torch.no_grad()
def fit_projection(patches: Tensor, dims: int, seed: int, sample: int = 50_000) -> Projection:
    """The PCA of raw frozen patches after `standardise`.

    The covariance and its eigenvectors are computed in float64 on the CPU; of each eigenvector, the entry of
    largest magnitude is made positive, so that equal patches give equal bases.

    Args:
        patches: [M, Dt], raw.
        dims: dimensions kept, at most Dt and M - 1 of them; 0 is no PCA.
        seed: draws the ``sample`` patches that are looked at when there are more.

    Raises:
        ValueError: dims is negative, or there are fewer than two patches.
    """
    m, width = patches.shape
    if dims < 0:
        raise ValueError(f"dims is {dims}: 0 (no PCA) or more")
    if dims == 0:
        return Projection(
            torch.zeros(width, device=patches.device), torch.zeros(width, 0, device=patches.device)
        )
    if m < 2:
        raise ValueError(f"a projection needs at least 2 patches, not {m}")
    rows = torch.from_numpy(sample_rows(m, sample, seed)).to(patches.device)
    x = standardise(patches[rows]).cpu().double()
    mean = x.mean(0)
    x -= mean
    _, vectors = torch.linalg.eigh(x.T @ x)
    basis = vectors.flip(1)[:, : min(dims, width, m - 1)]
    largest = basis.abs().argmax(0, keepdim=True)
    basis = basis * basis.gather(0, largest).sign()
    return Projection(mean.float().to(patches.device), basis.float().contiguous().to(patches.device))


def project(projection: Projection, frozen: Tensor) -> Tensor:
    """Frozen patches as the mixtures see them. Shape: raw [B, P, Dt] (or [..., Dt]) -> [B, P, d]."""
    x = standardise(frozen)
    if projection.basis.shape[1] == 0:
        return x
    with exact_products(x.device):
        return (x - projection.mean.to(x.dtype)) @ projection.basis.to(x.dtype)
