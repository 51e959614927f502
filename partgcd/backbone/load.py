"""A backbone's name in the settings becomes a frozen trunk and one trainable block, with weights in them."""

from __future__ import annotations

import difflib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from partgcd.backbone import hub
from partgcd.backbone.families import FAMILIES
from partgcd.backbone.known import (
    OFFLINE,
    SUPPORTED,
    BackboneInfo,
    OfflineBackbone,
    lineage_of_tag,
    offline_backbone,
    resolve_name,
)
from partgcd.backbone.layers import BlockOut, Family, Layers
from partgcd.backbone.rows import Rows
from partgcd.backbone.vit import check_image_size
from partgcd.backbone.weights import fit_weights, offline_tensors, read_weights, tensors_digest
from partgcd.config.errors import UserError
from partgcd.config.tree import BackboneSettings

__all__ = ["Backbone", "BackboneInfo", "BlockOut", "assemble", "load_backbone"]

logger = logging.getLogger("partgcd")


class Backbone(nn.Module):
    """A frozen trunk and one trainable block: one interface for transformers and convolutional networks.

    Shapes: B images of S x S pixels, T tokens of Dt numbers (prefix and patches), P patches, D numbers out.
    Always in evaluation mode, whatever ``train()`` is told: no dropout, no batch statistics. Outputs are
    float32, under autocast too.
    """

    _scale: Tensor
    _shift: Tensor

    def __init__(self, layers: Layers, info: BackboneInfo) -> None:
        super().__init__()
        self.layers = layers
        self.info = info
        self.layers.requires_grad_(False)
        self.trainable.requires_grad_(True)
        mean, std = torch.tensor(info.mean), torch.tensor(info.std)
        self.register_buffer("_scale", (1 / (255 * std)).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("_shift", (-mean / std).view(1, 3, 1, 1), persistent=False)
        self.eval()

    @property
    def trainable(self) -> nn.Module:
        """The last block (or stage); only its parameters require gradients."""
        last: nn.Module = self.layers.last
        return last

    def trunk(self, pixels: Tensor) -> Tensor:
        """Tokens [B, T, Dt] of ``pixels`` [B, 3, S, S], uint8 or float in 0..255, on the backbone's device.

        Normalises inside; never records gradients.
        """
        with torch.no_grad():
            return self.layers.trunk(pixels.float() * self._scale + self._shift).float()

    def frozen_patches(self, tokens: Tensor) -> Tensor:
        """Frozen patch tokens [B, P, Dt]: the trunk's output without its prefix, before any normalisation."""
        return self.layers.frozen_patches(tokens.float())

    def block(self, tokens: Tensor) -> BlockOut:
        """Trainable block and frozen final norm on all rows of ``tokens`` [B, T, Dt], any float type."""
        out = self.layers.block(tokens.float())
        return BlockOut(out.cls.float(), out.patches.float(), out.attention.float())

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``cls`` [B, D], ``attention`` [B, P] of ``block``, up to rounding, for a fraction of its cost."""
        cls, attention = self.layers.class_token(tokens.float())
        return cls.float(), attention.float()

    @property
    def picks_rows(self) -> bool:
        """Whether single patches can be computed without the others: transformers can, convolutions can't."""
        return self.layers.picks_rows

    def patches_at(self, tokens: Tensor, rows: Rows) -> Tensor:
        """``patches`` of ``block`` at ``rows`` alone, [B, R, D], up to rounding. Only where ``picks_rows``."""
        if not self.picks_rows:
            raise ValueError(f"{self.info.name} can't compute single patches")
        return self.layers.patches_at(tokens.float(), rows).float()

    def trainable_state(self) -> dict[str, Tensor]:
        """The trainable parameters by name, contiguous: all that training can change in a backbone.

        They may share memory with it: clone what has to outlive the next step.
        """
        return {name: value.detach().contiguous() for name, value in self.trainable.named_parameters()}

    def load_trainable_state(self, state: dict[str, Tensor]) -> None:
        """Copy what ``trainable_state`` gave into the block. Raises UserError when it does not fit."""
        own = dict(self.trainable.named_parameters())
        wrong = [k for k in own if k not in state or state[k].shape != own[k].shape]
        unexpected = [k for k in state if k not in own]
        if wrong or unexpected:
            raise UserError(
                f"this trained block does not fit {self.info.name}: {len(wrong)} of {len(own)} tensors are "
                f"missing or have another shape, {len(unexpected)} more are unexpected "
                f"(first: {(wrong + unexpected)[0]})"
            )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state[name])

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode; the signature is torch's."""
        super().train(False)
        return self


def load_backbone(settings: BackboneSettings, image_size: int, device: torch.device | str) -> Backbone:
    """Build the backbone that ``settings`` name for crops of ``image_size`` pixels and move it to ``device``.

    Raises UserError for an unknown or unsupported name, an image size that the patches do not divide, weights
    that are absent, unreadable or do not fit. Random weights only with ``settings.random_weights``: they are
    drawn from a fixed seed, so that every process and every resumed run has the same.
    """
    device = torch.device(device)
    if settings.random_weights and settings.weights is not None:
        raise UserError("a weights file and random weights were asked for: give one of the two")
    hub.limit_waiting()
    name = resolve_name(settings.name, device.type)
    entry = offline_backbone(name) if name.startswith("offline/") else None
    architecture = entry.architecture if entry else name
    family = _family(architecture, name)
    options: dict[str, Any] = {"depth": entry.blocks} if entry and entry.blocks else {}
    if family.kind == "vit":
        _check_vit(family, architecture, name, image_size, options)
        options["img_size"] = image_size

    model, licence, lineage = _with_weights(settings, name, entry, architecture, options)
    return assemble(model, family, Named(name, licence, lineage, entry), image_size).to(device)


class Named(NamedTuple):
    """What a backbone is called and where it comes from; an entry has preprocessing of its own."""

    name: str
    licence: str
    lineage: str
    entry: OfflineBackbone | None = None


def assemble(model: Any, family: Family, named: Named, image_size: int) -> Backbone:
    """A ``Backbone`` around a timm ``model`` that already has its weights and takes ``image_size`` pixels."""
    model.eval()  # before the convolutional layers run once to learn their shapes
    digest = tensors_digest(model.state_dict())
    layers, entry = family.build(model, image_size), named.entry
    preprocessing = model.pretrained_cfg
    info = BackboneInfo(
        name=named.name,
        kind=family.kind,
        mean=entry.mean if entry else tuple(preprocessing["mean"]),
        std=entry.std if entry else tuple(preprocessing["std"]),
        image_size=image_size,
        grid=layers.grid,
        dim=layers.dim,
        trunk_dim=layers.trunk_dim,
        licence=named.licence,
        lineage=named.lineage,
        weights_digest=digest,
    )
    return Backbone(layers, info)


def _family(architecture: str, name: str) -> Family:
    """How timm's ``architecture`` is driven; UserError for one that timm or this package does not know."""
    import timm

    bare = architecture.split(".")[0]
    if not timm.is_model(bare):
        close = difflib.get_close_matches(bare, [*timm.list_models(), *OFFLINE], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"supported are {SUPPORTED}"
        raise UserError(f"there is no backbone {name!r}: {hint}")
    family = timm.model_entrypoint(bare).__module__.split(".")[-1]
    if family not in FAMILIES:
        raise UserError(f"{name} is of timm's family {family!r}: supported are {SUPPORTED}")
    try:
        timm.models.get_pretrained_cfg(architecture)
    except RuntimeError:
        tags = ", ".join(timm.list_pretrained(f"{bare}.*")) or "none"
        raise UserError(f"timm knows no weights {name!r}: for {bare} it has {tags}") from None
    return FAMILIES[family]


def _check_vit(
    family: Family, architecture: str, name: str, image_size: int, options: dict[str, Any]
) -> None:
    """Refuse what cannot work before looking for weights: a model without memory shows its structure."""
    import timm

    with torch.device("meta"):
        skeleton: Any = timm.create_model(architecture, num_classes=0, **options)
    if family.check is not None:
        family.check(skeleton, name)
    check_image_size(int(skeleton.patch_embed.patch_size[0]), image_size, name)


def _with_weights(
    settings: BackboneSettings,
    name: str,
    entry: OfflineBackbone | None,
    architecture: str,
    options: dict[str, Any],
) -> tuple[Any, str, str]:
    """The timm model with weights in it, their licence and their lineage."""
    if settings.random_weights:
        logger.warning("backbone %s starts from RANDOM weights: its results mean nothing", name)
        return _untrained(architecture, options), "none", "random weights, trained on nothing"
    if settings.weights is not None:
        file = Path(settings.weights).expanduser()
        tensors = read_weights(file)
        model = _untrained(architecture, options)
        fit_weights(model, _leading_blocks(tensors, entry), str(file), name)
        return model, "unknown (user's file)", f"user's file {file.name}, training data not recorded"
    if entry is not None:
        tensors = offline_tensors(name)
        model = _untrained(architecture, options)
        fit_weights(model, _leading_blocks(tensors, entry), "the fetched file", name)
        return model, entry.licence, entry.lineage
    model = hub.load_from_hub(architecture, **options)
    about = model.pretrained_cfg
    lineage = lineage_of_tag(str(about.get("architecture") or name), str(about.get("tag") or ""))
    return model, str(about.get("license") or "not stated"), lineage


def _untrained(architecture: str, options: dict[str, Any]) -> Any:
    import timm

    # The model is drawn on the CPU from a seed of its own, and the caller's random state stays as it was.
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    try:
        return timm.create_model(architecture, pretrained=False, num_classes=0, **options)
    finally:
        torch.set_rng_state(before)


def _leading_blocks(tensors: dict[str, Tensor], entry: OfflineBackbone | None) -> dict[str, Tensor]:
    """Without the transformer blocks that ``entry`` does not use."""
    if entry is None or entry.blocks is None:
        return tensors
    dropped = f"blocks.{entry.blocks}."
    return {key: value for key, value in tensors.items() if not key.startswith(dropped)}
