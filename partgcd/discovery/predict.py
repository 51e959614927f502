"""The answer for an image, from trunk tokens to fused probabilities: one function for every caller."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from partgcd.config.tree import DiscoverySettings, PartSettings
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.maps import part_maps
from partgcd.parts.projection import Projection, project


class PartModel(NamedTuple):
    """What turns a view's frozen patches into part maps."""

    bank: GMMBank
    projection: Projection

    def maps(self, frozen: Tensor, classes: Tensor, temperature: float) -> Tensor:
        """Part attention maps [B, P, K] of frozen patches [B, P, Dt] under each image's class [B] (Eq. 9)."""
        return part_maps(self.bank, project(self.projection, frozen), classes, temperature)


class Prediction(NamedTuple):
    """Answers for B images over C classes.

    Attributes:
        overall: [B, C] class head's probabilities.
        part: [B, C] part head's, None without parts.
        fused: [B, C] mean of both softmaxes of Eq. 14 (their weighted sum, divided by the weights).
        assigned: [B] the class whose mixture made the parts.
        points: [B, P, d] patches as the mixtures see them, None without parts.
        maps: [B, P, K] part attention maps, None without parts.
        cls, feature: [B, D] class token and part-enhanced feature (None without parts).
        attention: [B, P] class attention.
    """

    overall: Tensor
    part: Tensor | None
    fused: Tensor
    assigned: Tensor
    points: Tensor | None
    maps: Tensor | None
    cls: Tensor
    feature: Tensor | None
    attention: Tensor


def predict(
    model: DiscoveryModel,
    parts: PartModel | None,
    tokens: Tensor,
    part_settings: PartSettings,
    discovery: DiscoverySettings,
) -> Prediction:
    """Classify trunk tokens [B, T, Dt].

    The class head chooses a mixture, the mixture gives the parts, and the parts' answer is fused with the
    head's (Eq. 14): nothing here knows which images were trained on.
    """
    temperature = discovery.fusion_temperature
    if parts is None or model.adapter is None:
        cls, attention = model.backbone.class_token(tokens)
        overall = model.logits(model.prototypes(cls.float()), temperature).softmax(dim=1)
        return Prediction(overall, None, overall, overall.argmax(dim=1), None, None, cls, None, attention)
    cls, attention, patches = model.block(tokens)
    cosine = model.prototypes(cls.float())
    assigned = cosine.argmax(dim=1)
    points = project(parts.projection, model.mixture_patches(tokens, patches))
    maps = part_maps(parts.bank, points, assigned, part_settings.temperature)
    feature, _ = model.part_branch(tokens, model.pooling_weight(attention), maps, patches)
    overall = model.logits(cosine, temperature).softmax(dim=1)
    part = model.logits(model.part_cosine(feature.float()), temperature).softmax(dim=1)
    weight = discovery.fusion_part_weight
    fused = (overall + weight * part) / (1.0 + weight)
    return Prediction(overall, part, fused, assigned, points, maps, cls, feature, attention)
