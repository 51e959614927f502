"""What is trained: the backbone's last block, projector, prototypes, and the part adapter."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from partgcd.backbone.load import Backbone, BlockOut
from partgcd.config.tree import Settings
from partgcd.model.heads import PartAdapter, Projector, Prototypes
from partgcd.parts.maps import part_features


class Outputs(NamedTuple):
    """One forward pass over B views.

    Attributes:
        cls: [B, D] class token.
        attention: [B, P] class attention.
        part: [B, D] part-enhanced feature h^part, None without parts.
        parts: [B, K, D] part features v, None without parts.
    """

    cls: Tensor
    attention: Tensor
    part: Tensor | None
    parts: Tensor | None


class DiscoveryModel(nn.Module):
    """Trainable block and heads; global and part branch share prototypes and projector (Eq. 14, Alg. 1)."""

    def __init__(self, backbone: Backbone, classes: int, parts: int | None, settings: Settings) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(settings.seed)
        dim = backbone.info.dim
        self.backbone = backbone
        self.projector = Projector(
            dim, settings.loss.projector_hidden, settings.loss.projector_out, generator
        )
        self.prototypes = Prototypes(classes, dim, generator)
        self.adapter = (
            PartAdapter(parts, dim, settings.parts.adapter_hidden or dim, generator)
            if parts is not None
            else None
        )
        self.part_prototypes: Prototypes | None = None
        self.mean_of_parts = settings.parts.adapter == "mean"
        self.foreground_pooling = settings.parts.foreground_pooling
        self.normalise_parts = settings.parts.normalise_parts
        self.learned_patches = settings.parts.patches == "learned"

    def forward(self, tokens: Tensor, maps: Tensor | None) -> Outputs:
        """Features of trunk tokens [B, T, Dt], pooled by part maps [B, P, K] if there are any.

        Without maps only the class-token row of the last block is computed.
        """
        if maps is None or self.adapter is None:
            cls, attention = self.backbone.class_token(tokens)
            return Outputs(cls, attention, None, None)
        out = self.backbone.block(tokens)
        part, parts = self.part_branch(out, maps)
        return Outputs(out.cls, out.attention, part, parts)

    @torch.no_grad()
    def mixture_patches(self, tokens: Tensor, out: BlockOut | None = None) -> Tensor:
        """What mixtures see of trunk tokens [B, T, Dt]: [B, P, Dt] frozen patches, or [B, P, D] learned ones.

        Args:
            out: the block's output, where it is at hand.
        """
        if self.learned_patches:
            return (out or self.backbone.block(tokens)).patches.detach()
        return self.backbone.frozen_patches(tokens)

    def part_branch(self, out: BlockOut, maps: Tensor) -> tuple[Tensor, Tensor]:
        """h^part [B, D] and part features v [B, K, D] (Eq. 10) of a block's output under maps [B, P, K]."""
        if self.adapter is None:
            raise ValueError("this model was built without parts")
        weight = self.pooling_weight(out.attention)
        parts = part_features(maps, out.patches, weight, normalise=self.normalise_parts)
        return (parts.mean(dim=1) if self.mean_of_parts else self.adapter(parts)), parts

    def part_cosine(self, feature: Tensor) -> Tensor:
        """Cosines [B, C] of part-enhanced features [B, D] with the part head's prototypes.

        They are the class head's own (Eq. 14) until `start_part_prototypes` gave the part head its own.
        """
        cosine: Tensor = (self.part_prototypes or self.prototypes)(feature)
        return cosine

    def start_part_prototypes(self, weight: Tensor) -> None:
        """Give the part head prototypes ``weight`` [C, D] of its own."""
        classes, dim = weight.shape
        # With a generator of its own: torch's random state decides later steps of other runs.
        own = Prototypes(classes, dim, torch.Generator().manual_seed(0))
        with torch.no_grad():
            own.weight.copy_(weight)
        self.part_prototypes = own.to(weight.device)

    def pooling_weight(self, attention: Tensor) -> Tensor | None:
        """Foreground weights [B, P] of Eq. 10 from class attention [B, P]; None pools all patches alike."""
        if not self.foreground_pooling:
            return None
        return (attention >= attention.mean(dim=1, keepdim=True)).to(attention.dtype)

    def trainable_state(self) -> dict[str, Tensor]:
        """Every trained tensor by name; the frozen trunk is not among them."""
        return {name: value.detach() for name, value in self.named_parameters() if value.requires_grad}

    def load_trainable_state(self, tensors: dict[str, Tensor]) -> None:
        """Copy back what `trainable_state` gave. Names and shapes must agree exactly."""
        own = {name: value for name, value in self.named_parameters() if value.requires_grad}
        if own.keys() != tensors.keys():
            raise ValueError(f"trained tensors differ: {sorted(own.keys() ^ tensors.keys())[:6]}")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tensors[name])


def restored(
    backbone: Backbone, tensors: dict[str, Tensor], parts: int | None, settings: Settings
) -> DiscoveryModel:
    """The model whose `trainable_state` was ``tensors``, with K = ``parts`` parts (None: without)."""
    classes, dim = tensors["prototypes.weight"].shape
    model = DiscoveryModel(backbone, classes, parts, settings)
    if model.adapter is not None and "adapter.linear.weight" in tensors:
        model.adapter.start_linear(torch.zeros(dim, dim), torch.zeros(dim))  # its values come below
    if "part_prototypes.weight" in tensors:
        model.start_part_prototypes(tensors["part_prototypes.weight"])
    model.load_trainable_state(tensors)
    return model
