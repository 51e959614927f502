"""The cut convolutional network computes what timm computes, behind the transformer's interface."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from partgcd.backbone import conv
from partgcd.backbone.load import Backbone, Named, assemble

SIZE = 96
# name -> (image cells a trunk cell spans, does a norm follow the pooling)
FAMILIES = {
    "test_resnet": (16, False),
    "test_efficientnet": (16, False),
    "mobilenetv3_small_050": (16, False),
    "test_convnext": (16, True),
}


def model_of(name: str) -> Any:
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=0)
    for layer in model.modules():  # statistics that batch statistics would not reproduce
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.1, 0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return model.eval()


def backbone_of(model: Any, size: int = SIZE) -> Backbone:
    return assemble(model, conv.FAMILY, Named("tiny", "none", "random"), size)


def pixels(size: int = SIZE) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("name", FAMILIES)
def test_cls_is_the_pooled_output_of_timms_features(name: str) -> None:
    cell, norm_after_pooling = FAMILIES[name]
    model = model_of(name)
    backbone = backbone_of(model)
    images = pixels()
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        wanted = model.forward_features((images / 255 - mean) / std).mean(dim=(2, 3))
        if norm_after_pooling:
            wanted = model.head.norm(wanted[:, :, None, None])[:, :, 0, 0]
        out = backbone.block(backbone.trunk(images))
    torch.testing.assert_close(out.cls, wanted, atol=1e-4, rtol=1e-4)
    side = SIZE // cell
    assert backbone.info.grid == (side, side)
    assert out.patches.shape == (2, side * side, backbone.info.dim)
    assert out.attention.shape == (2, side * side)


@pytest.mark.parametrize("name", FAMILIES)
def test_class_token_equals_the_blocks(name: str) -> None:
    backbone = backbone_of(model_of(name))
    tokens = backbone.trunk(pixels())
    cls, attention = backbone.class_token(tokens)
    out = backbone.block(tokens)
    torch.testing.assert_close(cls, out.cls)
    torch.testing.assert_close(attention, out.attention)
    assert tokens.shape[1:] == (out.patches.shape[1], backbone.info.trunk_dim)
    assert torch.equal(backbone.frozen_patches(tokens), tokens)
    assert not backbone.picks_rows, "a convolution computes all patches or none"


def test_attention_is_the_share_of_energy() -> None:
    backbone = backbone_of(model_of("test_resnet"))
    grid = torch.zeros(1, 512, 6, 6)
    grid[0, :, 1, 4] = 2.0
    grid[0, :, 5, 0] = 1.0
    energy = backbone.layers._energy(grid).reshape(6, 6)  # type: ignore[operator]
    assert energy[1, 4].item() == pytest.approx(0.8) and energy[5, 0].item() == pytest.approx(0.2)
    assert torch.isfinite(backbone.layers._energy(torch.zeros(1, 512, 6, 6))).all()  # type: ignore[operator]


def test_tokens_are_cells_row_by_row() -> None:
    backbone = backbone_of(model_of("test_resnet"))
    images = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)
    quiet = backbone.trunk(images)
    images[0, :, :8, -8:] = 255  # top right corner
    changed = (backbone.trunk(images) - quiet).norm(dim=-1).reshape(backbone.info.grid)
    assert changed.argmax().item() == backbone.info.grid[1] - 1


def test_sizes_that_strides_do_not_divide_work() -> None:
    backbone = backbone_of(model_of("test_efficientnet"), 90)
    out = backbone.block(backbone.trunk(pixels(90)))
    assert out.patches.shape[1] == backbone.info.grid[0] * backbone.info.grid[1]


@pytest.mark.parametrize("name, exact", [("test_efficientnet", True), ("test_resnet", False)])
def test_on_a_processor_a_stage_with_grouped_convolutions_stays_in_float32(name: str, exact: bool) -> None:
    """Their bfloat16 gradient takes several times as long; dense stages are faster for it."""
    backbone = backbone_of(model_of(name))
    tokens = backbone.trunk(pixels())
    wanted = backbone.block(tokens).patches
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = backbone.block(tokens).patches
    assert torch.equal(found, wanted) == exact


def test_bfloat16_autocast_gives_float32_near_float32() -> None:
    backbone = backbone_of(model_of("test_resnet"))
    tokens = backbone.trunk(pixels())
    wanted = backbone.block(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = backbone.block(tokens)
    assert all(value.dtype == torch.float32 for value in out)
    torch.testing.assert_close(out.attention, wanted.attention, atol=0.01, rtol=0.1)
    torch.testing.assert_close(out.cls, wanted.cls, atol=0.05, rtol=0.1)


def test_batch_statistics_are_never_used_or_changed() -> None:
    backbone = backbone_of(model_of("test_resnet"))
    before = {name: value.clone() for name, value in backbone.named_buffers()}
    tokens = backbone.trunk(pixels())
    backbone.train()
    backbone.block(tokens).cls.sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in backbone.named_buffers())
