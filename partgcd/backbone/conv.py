"""Convolutional networks: frozen stages, the last stage, and its energy as the attention."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partgcd.backbone.layers import BlockOut, Family
from partgcd.backbone.rows import Rows


class ConvLayers(nn.Module):
    """A timm convolutional network cut before its last stage that lowers the resolution.

    Tokens [B, P, C] are the cells of that stage's input grid, row by row; P = gh * gw. The stage's own output
    grid is coarser: its cells are interpolated back to P patches. Batch norms always use their stored
    statistics.
    """

    picks_rows = False

    def __init__(self, model: Any, image_size: int) -> None:
        super().__init__()
        # Measured on two CPU cores: 1.45 times the speed of the default layout.
        model = model.to(memory_format=torch.channels_last)
        stem, stages, tail = _pieces(model)
        with torch.no_grad():
            x = torch.zeros(1, 3, image_size, image_size)
            for layer in stem:
                x = layer(x)
            inputs = []
            for stage in stages:
                inputs.append(x)
                x = stage(x)
        areas = [value[0, 0].numel() for value in [*inputs, x]]
        cut = max(i for i in range(len(stages)) if areas[i + 1] < areas[i] or i == 0)
        self.frozen = nn.Sequential(*stem, *stages[:cut])
        self.last = nn.Sequential(*stages[cut:], *tail)
        # ConvNeXt normalises after pooling, its few older kin before; all other families not at all.
        self.grid_norm: Any = getattr(model, "norm_pre", nn.Identity())
        self.pooled_norm: Any = getattr(getattr(model, "head", None), "norm", nn.Identity())
        self.grid: tuple[int, int] = (inputs[cut].shape[2], inputs[cut].shape[3])
        self.trunk_dim = int(inputs[cut].shape[1])
        self._grouped = any(isinstance(m, nn.Conv2d) and m.groups > 1 for m in self.last.modules())
        with torch.no_grad():
            self.dim = int(self.last(inputs[cut]).shape[1])

    def trunk(self, pixels: Tensor) -> Tensor:
        """Input grid of the last stage as tokens [B, P, C]. ``pixels``: normalised, [B, 3, S, S]."""
        x: Tensor = self.frozen(pixels.contiguous(memory_format=torch.channels_last))
        return x.flatten(2).transpose(1, 2)

    def frozen_patches(self, tokens: Tensor) -> Tensor:
        """All of ``tokens``: a convolutional network has no prefix."""
        return tokens

    def block(self, tokens: Tensor) -> BlockOut:
        """Last stage; patches are interpolated (bilinear) to the input grid."""
        grid, normed = self._stage(tokens)
        patches = self._upsample(self.pooled_norm(normed)).flatten(2).transpose(1, 2)
        return BlockOut(self._pool(normed), patches, self._energy(grid))

    def class_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled feature [B, D] and energy [B, P] of ``block``, without the interpolated patches."""
        grid, normed = self._stage(tokens)
        return self._pool(normed), self._energy(grid)

    def patches_at(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Not to be had: a convolution sees neighbours."""
        raise ValueError("a convolutional network can't compute single patches")

    def _stage(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        # The transposed view of row-major cells is exactly a channels-last image.
        image = tokens.reshape(tokens.shape[0], *self.grid, -1).permute(0, 3, 1, 2)
        # A processor has fast bfloat16 code for dense convolutions alone: the gradient of grouped ones took
        # five times as long as in float32, and a training step of EfficientNet-Lite0 two and a half times.
        exact = self._grouped and image.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False) if exact else nullcontext():
            grid: Tensor = self.last(image)
        return grid, self.grid_norm(grid)

    def _pool(self, grid: Tensor) -> Tensor:
        pooled: Tensor = self.pooled_norm(grid.float().mean(dim=(2, 3), keepdim=True))
        return pooled[:, :, 0, 0]

    def _upsample(self, grid: Tensor) -> Tensor:
        return F.interpolate(grid, size=self.grid, mode="bilinear", align_corners=False)

    def _energy(self, grid: Tensor) -> Tensor:
        """Mean squared activation of each cell, interpolated, as shares of one: [B, P]."""
        # Before any norm: a layer norm gives every cell the same energy.
        energy = self._upsample(grid.float().square().mean(dim=1, keepdim=True)).flatten(1)
        tiny = torch.finfo(torch.float32).tiny
        return (energy + tiny) / (energy + tiny).sum(dim=1, keepdim=True)


def _pieces(model: Any) -> tuple[list[nn.Module], list[nn.Module], list[nn.Module]]:
    """Stem, stages, and what follows them on the grid, in the order of timm's ``forward_features``."""
    if hasattr(model, "layer4"):  # ResNet
        stem = [model.conv1, model.bn1, model.act1, model.maxpool]
        return stem, [model.layer1, model.layer2, model.layer3, model.layer4], []
    if hasattr(model, "stages"):  # ConvNeXt
        return [model.stem], list(model.stages), []
    # EfficientNet, MobileNetV2: the head convolution works on the grid. MobileNetV3 and later run theirs on
    # the pooled vector, so it is no part of the patches and left out.
    tail = [model.conv_head, model.bn2] if hasattr(model, "bn2") else []
    return [model.conv_stem, model.bn1], list(model.blocks), tail


FAMILY = Family("conv", ConvLayers)
