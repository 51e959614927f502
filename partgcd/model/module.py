"""What is trained: the backbone's last block, projector, prototypes, and the part adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from partgcd.backbone.load import Backbone
from partgcd.backbone.rows import rows_of
from partgcd.config.tree import Settings
from partgcd.model.heads import PartAdapter, Projector, Prototypes
from partgcd.parts.maps import foreground_weight, part_features


class Outputs(NamedTuple):
    """One forward pass over B views.

    Attributes:
        cls: [B, D] class token.
        attention: [B, P] class attention.
        part: [B, D] part-enhanced feature h^part, None without parts.
        parts: [B, K, D] part features v, None without parts.
        weight: [B, P] how much each patch counts in v, None where all count alike.
    """

    cls: Tensor
    attention: Tensor
    part: Tensor | None
    parts: Tensor | None
    weight: Tensor | None = None


_MANY_PATCHES = 100
_IN_FILES = {"logit_adjustment": "lean"}
"""Names of tensors in files, where they are others."""
"""Patches of a picture from which on its background is left out: of pictures of 64 it took 15 points along."""


class DiscoveryModel(nn.Module):
    """Trainable block and heads; global and part branch share prototypes and projector (Eq. 14, Alg. 1)."""

    logit_adjustment: nn.Parameter | None

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
        self.register_parameter("logit_adjustment", None)
        self.mean_of_parts = settings.parts.adapter == "mean"
        foreground = settings.parts.foreground_pooling
        rows, columns = backbone.info.grid
        self.foreground_pooling = rows * columns >= _MANY_PATCHES if foreground == "auto" else foreground
        self.normalise_parts = settings.parts.normalise_parts
        self.learned_patches = settings.parts.patches == "learned"

    def forward(self, tokens: Tensor, maps: Tensor | None) -> Outputs:
        """Features of trunk tokens [B, T, Dt], pooled by part maps [B, P, K] if there are any.

        Without maps only the class-token row of the last block is computed.
        """
        if maps is None or self.adapter is None:
            cls, attention = self.backbone.class_token(tokens)
            return Outputs(cls, attention, None, None)
        cls, attention, patches = self.block(tokens)
        weight = self.pooling_weight(attention)
        part, parts = self.part_branch(tokens, weight, maps, patches)
        return Outputs(cls, attention, part, parts, weight)

    @torch.no_grad()
    def mixture_patches(self, tokens: Tensor, patches: Tensor | None = None) -> Tensor:
        """What mixtures see of trunk tokens [B, T, Dt]: [B, P, Dt] frozen patches, or [B, P, D] learned ones.

        Args:
            patches: the block's, where they are at hand.
        """
        if self.learned_patches:
            return (self.backbone.block(tokens).patches if patches is None else patches).detach()
        return self.backbone.frozen_patches(tokens)

    def block(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Class token [B, D], class attention [B, P], and patches [B, P, D], or None where `few_rows` do."""
        if self.few_rows():
            return *self.backbone.class_token(tokens), None
        out = self.backbone.block(tokens)
        return out.cls, out.attention, out.patches

    def few_rows(self) -> bool:
        """Whether parts are pooled over so few patches that the block need not compute the others.

        A graph for export computes all: how many patches count is decided while it runs.
        """
        some = self.foreground_pooling and not self.learned_patches
        return some and self.backbone.picks_rows and not torch.compiler.is_exporting()

    def pooling_weight(self, attention: Tensor) -> Tensor | None:
        """How much each patch counts in Eq. 10, [B, P], from class attention [B, P]; None: all alike."""
        return foreground_weight(attention) if self.foreground_pooling else None

    def part_branch(
        self, tokens: Tensor, weight: Tensor | None, maps: Tensor, patches: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """h^part [B, D] and part features v [B, K, D] (Eq. 10) of trunk tokens [B, T, Dt].

        Args:
            weight: [B, P] of `pooling_weight`.
            maps: part maps [B, P, K].
            patches: the trained block's [B, P, D]; None (with `few_rows`) has those computed that count.
        """
        if self.adapter is None:
            raise ValueError("this model was built without parts")
        if patches is None:
            assert weight is not None
            rows = rows_of(weight > 0)
            patches, maps, weight = self.backbone.patches_at(tokens, rows), rows.of(maps), rows.of(weight)
        parts = part_features(maps, patches, weight, normalise=self.normalise_parts)
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

    def set_logit_adjustment(self, values: Tensor) -> None:
        """Have every answer adjusted: ``values`` [C] are added to the logits of both heads. No loss sees them."""
        self.logit_adjustment = nn.Parameter(values)

    def logits(self, cosine: Tensor, temperature: float) -> Tensor:
        """What either head answers with, [B, C], from its cosines [B, C]."""
        found = cosine / temperature
        return found if self.logit_adjustment is None else found + self.logit_adjustment

    def trainable_state(self) -> dict[str, Tensor]:
        """Every tensor that is not of the frozen trunk, by name."""
        return {name: value.detach() for name, value in self._trained()}

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, value in self.named_parameters():
            if value.requires_grad:
                yield _IN_FILES.get(name, name), value

    def load_trainable_state(self, tensors: dict[str, Tensor]) -> None:
        """Copy back what `trainable_state` gave. Names and shapes must agree exactly."""
        own = dict(self._trained())
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
    if _IN_FILES["logit_adjustment"] in tensors:
        model.set_logit_adjustment(torch.zeros(classes))
    model.load_trainable_state(tensors)
    return model
