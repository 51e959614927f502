"""Graphs of lower precision: int8 for CPUs, half precision for GPUs, and what each costs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The fp32 ONNX model with the backbone's matrix products in eight bits: weights once, activations as they come.

    A weight has the scale of its column, an activation that of its row, which is one token: dynamic quantisation
    with one scale for all rows would leave few levels to most of them, because a few tokens of a transformer are
    many times larger than the others, and an image's answer would depend on the images beside it in the batch.
    Weights use all eight bits; CPUs with dot-product instructions (x86 from 2019 on, ARM) compute that exactly, on
    older ones sums can overflow, which `partgcd bundle check` shows there.

    Raises:
        UserError: the backbone has no matrix products, because it is convolutional.
    """
    from onnx import numpy_helper

    weights = {each.name: each for each in made.graph.initializer}
    names = {node.name for node in made.graph.node if _is_product(node, set(weights))}
    if not names:
        raise UserError("int8 does nothing for convolutional backbones: export without --int8")
    lowered = type(made)()
    lowered.CopyFrom(made)
    constants: dict[str, np.ndarray[Any, Any]] = {
        "int8_last_axis": np.array([-1], np.int64),
        "int8_least": np.array(1e-9, np.float32),
        "int8_step": np.array(1 / 127, np.float32),
        "int8_zero": np.array(128, np.uint8),
    }
    nodes = []
    for node in lowered.graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        values = numpy_helper.to_array(weights[node.input[1]])
        size = np.maximum(np.abs(values).max(axis=0), 1e-12)
        constants[f"{node.name}_weights"] = np.rint(values / size * 127).astype(np.int8)
        constants[f"{node.name}_size"] = (size / 127**2).astype(np.float32)
        nodes += _product(node)
    kept = [
        type(node).FromString(node.SerializeToString()) for node in nodes
    ]  # clearing the graph empties nodes
    del lowered.graph.node[:]
    lowered.graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    rest = [type(each).FromString(each.SerializeToString()) for each in lowered.graph.initializer]
    del lowered.graph.initializer[:]
    lowered.graph.initializer.extend(each for each in rest if each.name in used)
    lowered.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    data: bytes = lowered.SerializeToString()
    return data


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


def _product(node: Any) -> list[Any]:
    """Nodes that stand in for a product of x [..., R, n] with weights [n, m]: eight bits in, fp32 out."""
    from onnx import TensorProto, helper

    x, result, name = node.input[0], node.output[0], node.name

    def step(kind: str, inputs: list[str], what: str, **attributes: Any) -> Any:
        output = result if what == "result" else f"{name}_{what}"
        return helper.make_node(kind, inputs, [output], f"{name}_{what}", **attributes)

    return [
        step("Abs", [x], "magnitude"),
        step("ReduceMax", [f"{name}_magnitude", "int8_last_axis"], "largest", keepdims=1),
        step("Max", [f"{name}_largest", "int8_least"], "row"),
        step("Div", [x, f"{name}_row"], "scaled"),
        step("QuantizeLinear", [f"{name}_scaled", "int8_step", "int8_zero"], "rounded"),
        step("MatMulInteger", [f"{name}_rounded", f"{name}_weights", "int8_zero"], "sum"),
        step("Cast", [f"{name}_sum"], "number", to=TensorProto.FLOAT),
        step("Mul", [f"{name}_number", f"{name}_size"], "column"),
        step("Mul", [f"{name}_column", f"{name}_row"], "result"),
    ]


def _scope(node: Any) -> str:
    """The layer of the backbone that the exporter noted a node to come from; empty for none."""
    noted = " ".join(each.value for each in node.metadata_props if "scope" in each.key)
    return noted if "model.backbone.layers" in noted else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """The converter warns of every small number that half precision rounds to zero."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
