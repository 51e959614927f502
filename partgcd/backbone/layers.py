"""What a network has to offer to be a backbone: cut into a frozen trunk and one trainable block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from partgcd.backbone.rows import Rows

Kind = Literal["vit", "conv"]


class BlockOut(NamedTuple):
    """Output of the trainable block: ``cls`` [B, D], ``patches`` [B, P, D], ``attention`` [B, P]; float32.

    ``attention`` is at least 0 and sums to at most 1 over P.
    """

    cls: Tensor
    patches: Tensor
    attention: Tensor


class Layers(Protocol):
    """A network cut before its trainable block.

    Attributes:
        last: the trainable block, a module.
        grid: rows and columns of the P patches.
        dim, trunk_dim: D of what comes out, Dt of the T tokens in between (prefix and patches).
        picks_rows: whether single patches can be computed without the others.
    """

    grid: tuple[int, int]
    dim: int
    trunk_dim: int
    picks_rows: bool

    @property
    def last(self) -> Any: ...

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """As a module's."""

    def trunk(self, pixels: Tensor) -> Tensor:
        """Tokens [B, T, Dt] of normalised ``pixels`` [B, 3, S, S]: the input of the block."""

    def frozen_patches(self, tokens: Tensor) -> Tensor:
        """Patch rows of ``tokens``, [B, P, Dt]."""

    def block(self, tokens: Tensor) -> BlockOut:
        """The block and the final norm on all rows."""

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Class token [B, D] and attention [B, P] of ``block``, at less cost where that can be."""

    def patches_at(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Patches [B, R, D] of ``block`` at ``rows`` alone. Raises ValueError unless ``picks_rows``."""


def final_norm_of(model: Any) -> Any:
    """The norm after a transformer's last block; models that pool patches keep it behind the pooling."""
    from torch import nn

    return model.fc_norm if isinstance(model.norm, nn.Identity) else model.norm


@dataclass(frozen=True)
class Family:
    """How the models of a timm module are driven.

    Attributes:
        kind: 'vit' has prefix tokens and takes the image size, 'conv' has none and takes any.
        build: (model, image size) to layers.
        check: (model without weights, name); raises UserError for one that ``build`` would not compute exactly.
    """

    kind: Kind
    build: Callable[[Any, int], Layers]
    check: Callable[[Any, str], None] | None = None
