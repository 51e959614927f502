"""Graphs of lower precision: int8 for CPUs, half precision for GPUs, and what each costs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.session import runtime

MOST_CHANGED = 0.01
"""Largest share of images whose answer lower precision may change."""

COST_IMAGES = 500
"""Images of the run on which the cost is measured."""

TOLERANCE = 0.02
"""How far probabilities of one low-precision graph may differ from machine to machine."""

# What stays in fp32 at int8: a few rows of this layer's input are far larger than the rest. Of all layers it cost
# the most by far: without it, the error of DINOv2 ViT-S's probabilities fell by a third, the novelty score's to a
# quarter.
_SENSITIVE = "blocks.0.mlp"


def to_int8(made: Any) -> bytes:
    """The fp32 ONNX model with the backbone's matrix products in eight bits, activations quantised as they come.

    Weights use all eight bits; seven cost half as much again in error. CPUs with dot-product instructions (x86 from
    2019 on, ARM) compute it exactly; on older ones sums can overflow, which `partgcd bundle check` shows there.

    Raises:
        UserError: the backbone has no matrix products, because it is convolutional.
    """
    runtime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    weights = {each.name for each in made.graph.initializer}
    names = {node.name for node in made.graph.node if _is_product(node, weights)}
    if not names:
        raise UserError("int8 does nothing for convolutional backbones: export without --int8")
    scaled = _with_scaled_rows(made, names)
    outside = [node.name for node in scaled.graph.node if node.name not in names]
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        target = Path(scratch) / "int8.onnx"
        quantize_dynamic(
            scaled,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=False,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=outside,
        )
        return target.read_bytes()


def to_fp16(made: Any) -> bytes:
    """The fp32 ONNX model with its backbone in half precision; heads, mixtures, inputs and outputs stay fp32."""
    runtime()
    from onnxruntime.transformers.float16 import convert_float_to_float16

    outside = [node.name for node in made.graph.node if not _scope(node)]
    with _quiet():
        converted = convert_float_to_float16(made, keep_io_types=True, node_block_list=outside)
    data: bytes = converted.SerializeToString()
    return data


def changed(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]) -> float:
    """Share of images whose fused class differs between two graphs' outputs."""
    return float((before["fused"].argmax(axis=1) != after["fused"].argmax(axis=1)).mean())


def same_share(threshold: float, before: NDArray[np.floating], after: NDArray[np.floating]) -> float:
    """The threshold with as many of the scores ``after`` above it as ``threshold`` has of ``before``: [N] each."""
    return float(np.quantile(after.astype(np.float64), float((before <= threshold).mean())))


def _is_product(node: Any, weights: set[str]) -> bool:
    """Whether a node multiplies activations of the backbone by weights, and bears eight bits."""
    scope = _scope(node)
    return node.op_type == "MatMul" and bool(scope) and _SENSITIVE not in scope and node.input[1] in weights


def _with_scaled_rows(made: Any, names: set[str]) -> Any:
    """A copy of the model whose products see rows scaled to a largest magnitude of 1, and scale their results back.

    The same numbers but for rounding. Dynamic quantisation has one scale for a whole activation, and a few tokens
    of a transformer are many times larger than the others: unscaled they would leave these few levels.
    """
    from onnx import helper, numpy_helper

    scaled = type(made)()
    scaled.CopyFrom(made)
    last, least = "rows_axis", "rows_least"
    scaled.graph.initializer.extend([
        numpy_helper.from_array(np.array([-1], np.int64), last),
        numpy_helper.from_array(np.array(1e-9, np.float32), least),
    ])  # fmt: skip
    nodes = []
    for node in scaled.graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        size, largest, rows, product, result = (
            f"{node.name}_{what}" for what in ("size", "largest", "rows", "product", "scale")
        )
        own = type(node)()
        own.CopyFrom(node)
        own.input[0], own.output[0] = rows, product
        nodes += [
            helper.make_node("Abs", [node.input[0]], [size], size),
            helper.make_node("ReduceMax", [size, last], [largest], largest, keepdims=1),
            helper.make_node("Max", [largest, least], [result], result),
            helper.make_node("Div", [node.input[0], result], [rows], rows),
            own,
            helper.make_node("Mul", [product, result], [node.output[0]], f"{node.name}_back"),
        ]
    kept = [
        type(node).FromString(node.SerializeToString()) for node in nodes
    ]  # clearing the graph empties nodes
    del scaled.graph.node[:]
    scaled.graph.node.extend(kept)
    return scaled


def _scope(node: Any) -> str:
    """The layer of the backbone that the exporter noted a node to come from; empty for none."""
    noted = " ".join(each.value for each in node.metadata_props if "scope" in each.key)
    return noted if "model.backbone.layers" in noted else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Both converters advise, at length, on what is not done here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
