"""The ONNX graph: uint8 pixels in, answers out, built from the library's own `predict`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel, predict
from partgcd.export.graph_names import INPUT, OPSET, output_names
from partgcd.export.novelty import RatioScale, log_ratio, novelty
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.projection import Projection

_MOST_BYTES = 2_000_000_000
"""A protobuf file ends at 2 GiB, and weights beside the graph would be files that it could point anywhere with."""


class Graph(nn.Module):
    """Everything from pixels to answers as one module: what is exported, and what the export is compared with.

    Shape: pixels [B, 3, S, S] uint8, resized and cropped -> global, part and fused probabilities [B, C], assigned
    [B] (the class whose mixture made the parts), maps [B, P, K], attention [B, P], novelty [B], class token
    [B, D] of unit norm; without parts there are no part and maps.
    """

    def __init__(
        self, model: DiscoveryModel, parts: PartModel | None, settings: Settings, scale: RatioScale | None
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self._bank = _register(self, "bank", parts.bank.to_tensors()) if parts else None
        self._projection = _register(self, "projection", parts.projection.to_tensors()) if parts else None
        self._scale = _register(self, "novelty", scale._asdict()) if scale else None
        self.eval()

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        settings, parts = self.settings, self._parts()
        tokens = self.model.backbone.trunk(pixels)
        found = predict(self.model, parts, tokens, settings.parts, settings.discovery)
        feature = normalize(found.cls.float(), dim=1)
        if parts is None or found.part is None or found.points is None or found.maps is None:
            score = novelty(found.fused, None, None)
            return found.overall, found.fused, found.assigned, found.attention, score, feature
        ratio = log_ratio(
            parts, found.points, found.attention, found.fused.argmax(dim=1), settings.parts.attention_filter
        )
        scale = RatioScale(**self._tensors(self._scale)) if self._scale else None
        score = novelty(found.fused, ratio, scale)
        return (
            found.overall, found.part, found.fused, found.assigned, found.maps, found.attention, score, feature
        )  # fmt: skip

    def _parts(self) -> PartModel | None:
        if self._bank is None or self._projection is None:
            return None
        bank = GMMBank.from_tensors(self._tensors(self._bank))
        return PartModel(bank, Projection.from_tensors(self._tensors(self._projection)))

    def _tensors(self, names: dict[str, str]) -> dict[str, Tensor]:
        return {name: self.get_buffer(buffer) for name, buffer in names.items()}


def _register(module: nn.Module, group: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    """Tensors as buffers, so that they are initialisers with names; {name: buffer}."""
    names = {}
    for name, value in tensors.items():
        names[name] = f"{group}_{name.replace('.', '_')}"
        module.register_buffer(names[name], value)
    return names


def to_onnx(graph: Graph, pixels: Tensor) -> Any:
    """``graph`` as an ONNX model with a dynamic batch. ``pixels``: an example, [2, 3, S, S] uint8.

    Raises:
        UserError: the exporter is not installed, can't express the backbone, or the graph is too large.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"export needs {error.name}: pip install 'partgcd[cpu]' (or 'partgcd[gpu]' on a GPU)", 1
        ) from error
    names = output_names(graph._bank is not None)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (pixels,),
                dynamo=True,
                dynamic_shapes={INPUT: {0: "batch"}},
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(names),
                verbose=False,
            )
    except Exception as error:  # the exporter meets foreign layers with errors of every kind
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{graph.model.backbone.info.name} can't be exported to ONNX ({type(error).__name__}: {reason}): "
            "train with another backbone",
            1,
        ) from error
    assert program is not None
    made = program.model_proto
    if any(_axes(value)[0] != "batch" for value in (*made.graph.input, *made.graph.output)):
        raise UserError(f"the batch of {graph.model.backbone.info.name} can't be left open in ONNX", 1)
    if made.ByteSize() > _MOST_BYTES:
        raise UserError(
            f"{graph.model.backbone.info.name} makes a graph of {made.ByteSize() / 1e9:.1f} GB and ONNX files end "
            "at 2 GB: train with a smaller backbone",
            1,
        )
    return made


def strip(made: Any) -> Any:
    """Drop what the exporter noted on the source code, local paths among it. Changes ``made``."""
    made.ClearField("metadata_props")
    made.ClearField("doc_string")
    made.graph.ClearField("metadata_props")
    for each in (*made.graph.node, *made.graph.value_info, *made.graph.input, *made.graph.output):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    for weights in made.graph.initializer:
        weights.ClearField("metadata_props")
        weights.ClearField("doc_string")
    made.producer_name, made.producer_version = "partgcd", ""
    return made


def _axes(value: Any) -> list[str | int]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks about itself at every level."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
