"""`load_backbone`: names, weights, what trains, and what is said when something is missing."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from partgcd.backbone.load import Backbone, load_backbone
from partgcd.backbone.weights import weights_status
from partgcd.config.errors import UserError
from partgcd.config.tree import BackboneSettings


def random_backbone(name: str = "test_vit", size: int = 96) -> Backbone:
    return load_backbone(BackboneSettings(name=name, random_weights=True), size, "cpu")


def pixels(size: int = 96) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "size", "grid", "dims"),
    [("test_vit", 160, (10, 10), (64, 64)), ("test_resnet", 96, (6, 6), (96, 192))],
)
def test_info_describes_the_backbone(
    name: str, size: int, grid: tuple[int, int], dims: tuple[int, int]
) -> None:
    info = random_backbone(name, size).info
    assert (info.name, info.image_size, info.grid) == (name, size, grid)
    assert (info.dim, info.trunk_dim) == dims
    assert len(info.weights_digest) == 64 and "random" in info.lineage


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_only_the_last_block_trains(name: str) -> None:
    backbone = random_backbone(name)
    before = {key: value.clone() for key, value in backbone.named_parameters()}
    tokens = backbone.trunk(pixels())
    assert not tokens.requires_grad
    optimiser = torch.optim.SGD((p for p in backbone.parameters() if p.requires_grad), lr=0.5)
    out = backbone.block(tokens)
    (out.cls.square().sum() + out.patches.square().sum()).backward()
    optimiser.step()
    changed = {key for key, value in backbone.named_parameters() if not torch.equal(value, before[key])}
    inside = {id(parameter) for parameter in backbone.trainable.parameters()}
    assert changed
    assert all(id(parameter) in inside for key, parameter in backbone.named_parameters() if key in changed)
    assert {id(p) for p in backbone.parameters() if p.requires_grad} == inside


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_train_and_eval_change_nothing(name: str) -> None:
    backbone = random_backbone(name)
    images = pixels()
    first = backbone.block(backbone.trunk(images)).cls
    torch.nn.ModuleDict({"inner": backbone}).train()
    assert torch.equal(backbone.block(backbone.trunk(images)).cls, first)
    assert not any(module.training for module in backbone.modules())


def test_bytes_and_floats_are_the_same_pixels() -> None:
    backbone = random_backbone()
    images = pixels()
    assert torch.equal(backbone.trunk(images), backbone.trunk(images.float()))


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_trained_block_survives_a_file(tmp_path: Path, name: str) -> None:
    trained, fresh = random_backbone(name), random_backbone(name)
    with torch.no_grad():
        for parameter in trained.trainable.parameters():
            parameter.add_(0.1)
    tokens = trained.trunk(pixels())
    assert not torch.equal(trained.block(tokens).cls, fresh.block(tokens).cls)
    save_file(trained.trainable_state(), tmp_path / "block.safetensors")
    fresh.load_trainable_state(load_file(tmp_path / "block.safetensors"))
    assert torch.equal(trained.block(tokens).cls, fresh.block(tokens).cls)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_every_tensor_is_in_the_state_dict_once(name: str) -> None:
    state = random_backbone(name).state_dict()
    assert len({value.data_ptr() for value in state.values()}) == len(state)


def test_a_block_of_another_backbone_is_refused() -> None:
    with pytest.raises(UserError, match="does not fit test_vit: 12 of 12"):
        random_backbone().load_trainable_state(random_backbone("test_resnet").trainable_state())


def test_random_weights_warn_repeat_and_leave_the_seed_alone(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="partgcd"):
        first = random_backbone()
    assert "RANDOM" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert random_backbone().info.weights_digest == first.info.weights_digest


def test_a_weights_file_is_used(tmp_path: Path) -> None:
    torch.manual_seed(9)
    source: Any = timm.create_model("test_vit", num_classes=7)
    file = tmp_path / "mine.pth"
    torch.save({"model": {f"module.{k}": v for k, v in source.state_dict().items()}}, file)
    backbone = load_backbone(BackboneSettings(name="test_vit", weights=file), 96, "cpu")
    assert torch.equal(backbone.trainable_state()["mlp.fc1.weight"], source.blocks[-1].mlp.fc1.weight)
    assert "mine.pth" in backbone.info.lineage


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_bsae_patch16_224", "did you mean vit_base_patch16_224"),
        ("vit_base_patch16_224.dina", "timm knows no weights"),
        ("swin_tiny_patch4_window7_224", "family 'swin_transformer': supported are .*ResNet, ConvNeXt"),
        ("test_vit2", "no class token: supported are"),
        ("offline/resnet", "choose from offline/vit-small"),
    ],
)
def test_names_that_do_not_work_say_what_does(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        random_backbone(name)
    assert "\n" not in str(error.value)


def test_image_size_is_checked_before_weights_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"14 px patches of offline/vit-small: use 140 or 154"):
        load_backbone(BackboneSettings(name="offline/vit-small"), 150, "cpu")


def test_auto_on_a_cpu_asks_for_the_offline_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="partgcd weights fetch offline/vit-small"):
        load_backbone(BackboneSettings(), 154, "cpu")


def test_file_and_random_weights_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one of the two"):
        load_backbone(
            BackboneSettings(name="test_vit", weights=tmp_path / "a.pth", random_weights=True), 96, "cpu"
        )


@pytest.mark.parametrize("offline", [True, False])
def test_unreachable_hub_names_three_ways_out_quickly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offline: bool
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    start = time.perf_counter()
    with pytest.raises(UserError) as error:
        load_backbone(BackboneSettings(name="test_vit"), 96, "cpu")
    message = str(error.value)
    assert "\n" not in message and error.value.code == 1
    assert all(way in message for way in ("--weights FILE", "partgcd weights fetch", "--random-weights"))
    assert time.perf_counter() - start < 8
    assert offline == constants.HF_HUB_OFFLINE


def test_weights_in_the_hubs_cache_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    torch.manual_seed(11)
    source: Any = timm.create_model("test_vit")
    repository = tmp_path / "models--timm--test_vit.r160_in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(source.state_dict(), repository / "snapshots" / ("0" * 40) / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    backbone = load_backbone(BackboneSettings(name="test_vit"), 96, "cpu")
    assert torch.equal(backbone.trainable_state()["mlp.fc1.weight"], source.blocks[-1].mlp.fc1.weight)
    assert "ImageNet-1k labels" in backbone.info.lineage and backbone.info.licence == "apache-2.0"


def test_importing_the_room_does_not_import_the_hub_or_timm() -> None:
    code = (
        "import sys, partgcd.backbone.load, partgcd.backbone.convert;"
        "print([m for m in ('timm', 'huggingface_hub', 'onnx') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_real_offline_vit_leaves_its_damaged_block_out() -> None:
    if weights_status("offline/vit-small") is None:
        pytest.skip("offline/vit-small is not in the cache: partgcd weights fetch offline/vit-small")
    backbone = load_backbone(BackboneSettings(name="offline/vit-small"), 70, "cpu")
    assert backbone.info.grid == (5, 5) and backbone.info.dim == 384
    names = {key.split("blocks.")[1].split(".")[0] for key in backbone.state_dict() if "blocks." in key}
    assert names == {str(i) for i in range(11)}
    images = pixels(70)
    tokens = backbone.trunk(images)
    assert torch.allclose(backbone.class_token(tokens)[0], backbone.block(tokens).cls, atol=1e-4)
