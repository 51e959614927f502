"""Which families of timm's models can be backbones. A new one is a file that offers `Layers`, and a line here."""

from __future__ import annotations

from partgcd.backbone import conv, rotary, vit
from partgcd.backbone.layers import Family

FAMILIES: dict[str, Family] = {
    "vision_transformer": vit.FAMILY,
    "deit": vit.FAMILY,
    "eva": rotary.FAMILY,
    "resnet": conv.FAMILY,
    "convnext": conv.FAMILY,
    "efficientnet": conv.FAMILY,
    "mobilenetv3": conv.FAMILY,
}
"""By timm's module of an architecture."""
