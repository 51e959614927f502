"""EVA-02 and DINOv3 compute what timm computes, and go all the way to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.numpy import load_file
from tiny import TINY, write_photos
from torch import nn

from partgcd.backbone.families import FAMILIES
from partgcd.backbone.load import Backbone, Named, assemble, load_backbone
from partgcd.backbone.rotary import check_rotary
from partgcd.backbone.rows import rows_of
from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.export.export import export_run
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

SIZE = 64
SMALL: dict[str, Any] = {"img_size": SIZE, "depth": 3, "embed_dim": 48, "num_heads": 3, "num_classes": 0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 56}),
    "dinov3 with registers": ("vit_small_patch16_dinov3", {}),
    "dinov3 with qkv bias": ("vit_small_patch16_dinov3_qkvb", {}),
    "layer scale and gate-less swiglu": ("vit_small_plus_patch16_dinov3", {}),
}


def small(variant: str) -> tuple[Any, int]:
    name, more = VARIANTS[variant]
    options = {**SMALL, **more}
    torch.manual_seed(3)
    model = timm.create_model(name, **options)
    for name_of, parameter in model.named_parameters():
        if parameter.ndim == 1 or parameter.shape[0] == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
        elif (
            ".attn.q" in name_of or ".attn.k" in name_of
        ):  # else attention is even, and places make no difference
            parameter.data.mul_(20)
    return model.eval(), int(options["img_size"])


def built(variant: str) -> tuple[Backbone, Any]:
    model, size = small(variant)
    return assemble(model, FAMILIES["eva"], Named("tiny", "none", "random"), size), model


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_trunk_and_block_are_timms_own(variant: str) -> None:
    backbone, model = built(variant)
    size = backbone.info.image_size
    pixels = torch.randint(
        0, 256, (2, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (backbone.info.mean, backbone.info.std))
    wanted = model.forward_features((pixels.float() / 255 - mean) / std)
    if isinstance(model.norm, nn.Identity):
        wanted = model.fc_norm(wanted)
    tokens = backbone.trunk(pixels)
    out = backbone.block(tokens)
    prefix = model.num_prefix_tokens
    assert torch.allclose(out.cls, wanted[:, 0], atol=1e-4)
    assert torch.allclose(out.patches, wanted[:, prefix:], atol=1e-4)
    assert out.attention.shape == (2, backbone.info.grid[0] * backbone.info.grid[1])
    assert (out.attention >= 0).all() and (out.attention.sum(dim=1) <= 1 + 1e-5).all()
    cls, attention = backbone.class_token(tokens)
    assert torch.equal(cls, out.cls) and torch.equal(attention, out.attention)
    assert backbone.frozen_patches(tokens).shape == (2, out.attention.shape[1], 48)


@torch.no_grad()
def test_patches_know_their_place() -> None:
    """Without the rotation the last block would not tell where a patch is."""
    backbone, _ = built("dinov3 with registers")
    pixels = torch.randint(
        0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    tokens = backbone.trunk(pixels)
    prefix = tokens.shape[1] - backbone.info.grid[0] * backbone.info.grid[1]
    swapped = tokens.clone()
    swapped[:, [prefix, -1]] = swapped[:, [-1, prefix]]
    one, other = backbone.block(tokens), backbone.block(swapped)
    assert not torch.allclose(one.patches[:, 0], other.patches[:, -1], atol=1e-4)


def test_what_can_not_be_is_said() -> None:
    backbone, _ = built("eva02")
    assert not backbone.picks_rows
    with pytest.raises(ValueError, match="single patches"):
        backbone.patches_at(torch.zeros(1, 17, 48), rows_of(torch.ones(1, 16, dtype=torch.bool)))
    post = timm.create_model("eva02_tiny_patch14_224", depth=2, use_post_norm=True, num_classes=0)
    with pytest.raises(UserError, match="blocks of its own kind"):
        check_rotary(post, "post")
    random = BackboneSettings(name="vit_small_patch16_dinov3", random_weights=True)
    with pytest.raises(UserError, match="not a multiple of the 16 px patches"):
        load_backbone(random, 50, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "vit_tiny_patch16_dinov3_qkvb"])
def test_a_run_goes_all_the_way_to_a_bundle(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    size = 56 if "14" in name else 64
    for kind, label in enumerate(("ash", "birch")):
        write_photos(tmp_path / "photos" / label, {kind: 6})
    write_photos(tmp_path / "photos" / "unlabelled", {0: 4, 1: 4, 2: 4}, 100)
    more = [f"backbone.name={name}", f"data.image_size={size}", "parts.min_patches=5"]
    settings = load_settings(assignments=[*TINY, *more])
    run = RunFolder.create(
        tmp_path / "run", settings, tmp_path / "photos", Task(tmp_path / "photos").request()
    )
    discover(run, settings, SoloWorld(run, torch.device("cpu")))
    made = export_run(run, tmp_path / "bundle")
    assert made.manifest.parts == 3 and made.manifest.parity.largest_difference < 1e-4
    if "eva" in name:
        assert made.manifest.agreement == 1.0
    else:
        # Untrained, DINOv3's layers add a hundred thousandth each: all pictures are nearly alike, and half-precision
        # tokens decide between them.
        answers = load_file(made.path / "parity.safetensors")
        assert float(np.ptp(answers["expected.fused"], axis=0).max()) < 0.05
