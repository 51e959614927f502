"""The cut transformer computes what timm computes, and its cheap class token is the same one."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from partgcd.backbone.families import FAMILIES
from partgcd.backbone.load import Backbone, Named, assemble
from partgcd.backbone.rows import rows_of
from partgcd.backbone.vit import VitLayers, check_image_size, check_vit
from partgcd.config.errors import UserError

SIZE = 64
TINY: dict[str, Any] = {
    "img_size": SIZE, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 0, "drop_path_rate": 0.2,
    "proj_drop_rate": 0.1, "attn_drop_rate": 0.1,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer scale": {"init_values": 0.3},
    "registers": {"init_values": 0.3, "reg_tokens": 4, "no_embed_class": True},
    "qk norm": {"qk_norm": True},
    "no qkv bias": {"qkv_bias": False},
    "pre norm and attention norm": {"pre_norm": True, "scale_attn_norm": True},
    "norm behind pooling": {"global_pool": "avg", "fc_norm": True},
    "dynamic size": {"dynamic_img_size": True},
}


def tiny(variant: str) -> Any:
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **TINY, **VARIANTS[variant])
    for parameter in model.parameters():  # timm starts biases and some tokens at (nearly) nothing
        if parameter.ndim == 1 or parameter.shape[0] == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model.eval()


def backbone_of(model: Any) -> Backbone:
    return assemble(model, FAMILIES["vision_transformer"], Named("tiny", "none", "random"), SIZE)


def pixels(batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_trunk_and_block_give_timms_own_tokens(variant: str) -> None:
    model = tiny(variant)
    backbone = backbone_of(model)
    images = pixels()
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        wanted = model.fc_norm(model.forward_features((images / 255 - mean) / std))
        out = backbone.block(backbone.trunk(images))
    prefix = model.num_prefix_tokens
    torch.testing.assert_close(out.cls, wanted[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.patches, wanted[:, prefix:], atol=1e-5, rtol=1e-5)
    assert out.patches.shape == (3, 16, 48) and backbone.info.grid == (4, 4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_class_token_equals_the_blocks(variant: str) -> None:
    backbone = backbone_of(tiny(variant))
    tokens = backbone.trunk(pixels())
    cls, attention = backbone.class_token(tokens)
    out = backbone.block(tokens)
    torch.testing.assert_close(cls, out.cls, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention, out.attention, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("variant", ["plain", "registers", "qk norm"])
def test_class_token_has_the_blocks_gradients(variant: str) -> None:
    backbone = backbone_of(tiny(variant))
    tokens = backbone.trunk(pixels())
    parameters = list(backbone.trainable.parameters())
    by_block = torch.autograd.grad(backbone.block(tokens).cls.square().sum(), parameters)
    by_row = torch.autograd.grad(backbone.class_token(tokens)[0].square().sum(), parameters)
    for a, b in zip(by_block, by_row, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_patches_at_some_rows_equal_the_blocks(variant: str, share: float) -> None:
    backbone = backbone_of(tiny(variant))
    tokens = backbone.trunk(pixels())
    chosen = torch.rand(3, 16, generator=torch.Generator().manual_seed(1)) < share
    rows = rows_of(chosen)
    found = backbone.patches_at(tokens, rows)
    assert found.shape == (3, int(chosen.sum(1).max()), 48)
    torch.testing.assert_close(found, rows.of(backbone.block(tokens).patches), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["plain", "registers", "qk norm", "no qkv bias"])
def test_patches_at_some_rows_have_the_blocks_gradients(variant: str) -> None:
    backbone = backbone_of(tiny(variant))
    tokens = backbone.trunk(pixels())
    rows = rows_of(torch.rand(3, 16, generator=torch.Generator().manual_seed(1)) < 0.4)
    parameters = list(backbone.trainable.parameters())
    by_block = torch.autograd.grad(rows.of(backbone.block(tokens).patches).square().sum(), parameters)
    by_rows = torch.autograd.grad(backbone.patches_at(tokens, rows).square().sum(), parameters)
    for a, b in zip(by_block, by_rows, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("variant", ["plain", "registers", "qk norm"])
def test_attention_is_the_class_row_over_patches(variant: str) -> None:
    model = tiny(variant)
    backbone = backbone_of(model)
    tokens = backbone.trunk(pixels())
    attn, prefix = model.blocks[-1].attn, model.num_prefix_tokens
    batch, rows, dim = tokens.shape
    with torch.no_grad():
        qkv = attn.qkv(model.blocks[-1].norm1(tokens)).reshape(batch, rows, 3, 3, dim // 3)
        q, k = attn.q_norm(qkv[:, :, 0]), attn.k_norm(qkv[:, :, 1])
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * (dim // 3) ** -0.5
        wanted = scores.softmax(-1)[:, :, 0, prefix:].mean(1)
        found = backbone.block(tokens).attention
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    assert (found.sum(1) < 1).all()


def test_frozen_patches_are_the_tokens_behind_the_prefix() -> None:
    backbone = backbone_of(tiny("registers"))
    tokens = backbone.trunk(pixels())
    assert tokens.shape == (3, 5 + 16, 48)
    assert torch.equal(backbone.frozen_patches(tokens), tokens[:, 5:])


def test_half_tokens_come_back_as_float32_results() -> None:
    backbone = backbone_of(tiny("layer scale"))
    tokens = backbone.trunk(pixels())
    assert all(value.dtype == torch.float32 for value in backbone.block(tokens.half()))
    torch.testing.assert_close(
        backbone.block(tokens.half()).cls, backbone.block(tokens).cls, atol=0.02, rtol=0.02
    )


@pytest.mark.parametrize("variant", ["plain", "registers", "qk norm"])
def test_bfloat16_autocast_stays_near_float32(variant: str) -> None:
    backbone = backbone_of(tiny(variant))
    tokens = backbone.trunk(pixels())
    wanted = backbone.block(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = backbone.block(backbone.trunk(pixels()))
        rows = [backbone.block(tokens), backbone.class_token(tokens)]
        some = rows_of(torch.arange(16).expand(3, 16) % 3 == 0)
        few = backbone.patches_at(tokens, some)
    assert out.attention.dtype == out.cls.dtype == torch.float32
    torch.testing.assert_close(few, some.of(wanted.patches), atol=0.1, rtol=0.05)
    for cls, attention in ((rows[0].cls, rows[0].attention), rows[1]):  # type: ignore[attr-defined]
        torch.testing.assert_close(cls, wanted.cls, atol=0.1, rtol=0.05)
        torch.testing.assert_close(attention, wanted.attention, atol=0.01, rtol=0.1)
    rows[1][0].sum().backward()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("test_vit2", "no class token"), ("vit_small_patch16_18x2_224", "blocks of its own")],
)
def test_unsupported_transformers_are_refused_with_the_supported_ones(name: str, reason: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    with pytest.raises(UserError, match=f"{reason}.*supported are"):
        check_vit(model, name)


@pytest.mark.parametrize(
    ("patch", "size", "advice"),
    [(14, 150, "use 140 or 154"), (16, 100, "use 96 or 112"), (32, 33, "use 32 or 64")],
)
def test_image_size_error_names_the_nearest_sizes(patch: int, size: int, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        check_image_size(patch, size, "some_vit")


def test_layers_keep_the_dimensions_of_the_model() -> None:
    layers = VitLayers(tiny("registers"))
    assert (layers.prefix, layers.grid, layers.dim, layers.trunk_dim) == (5, (4, 4), 48, 48)
