"""The three heads: cosine prototypes and projector, shared by both branches, and the part adapter.

Letters: B images, D dimensions of a feature, C classes, K parts. Nothing here reads or moves torch's global
random state: all initial weights come from the generator that is passed.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INITIAL_STD = 0.02  # of the MLPs' weights, as DINO's head


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with zero bias and normal weights of std 0.02, cut at two units as DINO cuts them."""
    # Built without storage: nn.Linear's own initialisation would draw from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.trunc_normal_(layer.weight, std=INITIAL_STD, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Projector(nn.Module):
    """MLP D-hidden-hidden-out with GELU and no batch norm, into the contrastive space.

    Its output is not normalised; the losses do that.

    Shape: [..., D] -> [..., out].
    """

    def __init__(self, dim: int, hidden: int, out: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _linear(dim, hidden, generator),
            nn.GELU(),
            _linear(hidden, hidden, generator),
            nn.GELU(),
            _linear(hidden, out, generator),
        )

    def forward(self, features: Tensor) -> Tensor:
        projected: Tensor = self.layers(features)
        return projected


class Prototypes(nn.Module):
    """Cosine classifier W [C, D]: no bias, stored raw and normalised at use, so of unit norm by construction.

    Rows start uniform in +-1/sqrt(D), of norm about 0.58 whatever D is. The norm matters although only the
    direction is used: the step that a direction takes is the learning rate over the squared norm, and this is
    where the baseline's weight-normalised layer starts.
    """

    def __init__(self, classes: int, dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dim)
        self.weight = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound, generator=generator))

    def unit(self) -> Tensor:
        """The prototypes with unit norm, [C, D] float32."""
        return F.normalize(self.weight, dim=-1)

    def cosine(self, features: Tensor) -> Tensor:
        """W^T f with both sides normalised, in [-1, 1]; no temperature.

        Always float32 (float64 where the features are): a cosine rounded to bfloat16 is off by up to 0.004,
        which the temperatures turn into 0.1 of a logit.

        Shape: [..., D] -> [..., C].
        """
        kind = features.device.type
        # Entered only where needed: the exporters can't trace an autocast region.
        casting = torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False) if casting else nullcontext():
            wide = features if features.dtype == torch.float64 else features.float()
            return F.normalize(wide, dim=-1) @ self.unit().to(wide.dtype).T

    def forward(self, features: Tensor) -> Tensor:
        """The same as `cosine`."""
        return self.cosine(features)


class PartAdapter(nn.Module):
    """Aggregates the concatenated part features into h^part (the input of Eq. 12).

    An MLP (K*D)-hidden-D with GELU, as in the paper, beside a linear path that `start_linear` can set so that
    the feature is useful before the first step; the MLP's last layer then starts at zero.
    Slot k of its input must mean the same part in every class and epoch.

    Shape: [..., K, D] -> [..., D].
    """

    def __init__(self, parts: int, dim: int, hidden: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.parts = parts
        self.layers = nn.Sequential(
            _linear(parts * dim, hidden, generator), nn.GELU(), _linear(hidden, dim, generator)
        )
        self.linear: nn.Linear | None = None

    def start_linear(self, weight: Tensor, bias: Tensor) -> None:
        """Add the linear path: ``weight`` [D, D] of the mean part, shared out over the slots, and ``bias`` [D]."""
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        path = nn.Linear(weight.shape[1] * self.parts, weight.shape[0], device="meta").to_empty(
            device=weight.device
        )
        with torch.no_grad():
            path.weight.copy_((weight / self.parts).repeat(1, self.parts))
            path.bias.copy_(bias)
            last.weight.zero_()
        self.linear = path

    def forward(self, parts: Tensor) -> Tensor:
        joined = parts.flatten(-2)
        enhanced: Tensor = self.layers(joined)
        return enhanced if self.linear is None else enhanced + self.linear(joined)
