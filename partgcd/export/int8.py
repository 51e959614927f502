"""The graph with the backbone's matrix products in eight bits, for CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.precision import backbone_scope

# What stays in fp32: a few rows of this layer's input are far larger than the rest. Of all layers it cost the most
# by far: without it, the error of DINOv2 ViT-S's probabilities fell by a third, the novelty score's to a quarter.
_SENSITIVE = "blocks.0.mlp"

_LIFT = 0.17
"""What comes out of a GELU is never below -0.16997."""


def to_int8(made: Any, fp32_blocks: int = 0) -> bytes:
    """The fp32 ONNX model with its products in eight bits: weights once, activations as they come.

    A weight has the scale of its column, an activation that of its row, which is one token: with one scale for all
    rows few levels would be left to most of them, because a few tokens of a transformer are many times larger than
    the others, and an image's answer would depend on the images beside it in the batch. What comes out of a GELU is
    nearly all positive: lifted above zero it uses all levels instead of half of them.

    x86 CPUs without dot-product instructions (AMD before Zen 4, Intel before Cascade Lake) multiply two neighbouring
    rows of weights at a time and cut the sum off at 16 bits. A column's scale is therefore what keeps such pairs of
    its weights within 7 bits: sums are exact on every CPU, for next to no exactness of the weights, as two large
    neighbours of one sign are rare.

    Args:
        fp32_blocks: leading blocks that stay as they are, for more exactness and less speed.

    Raises:
        UserError: the backbone has no matrix products, because it is convolutional.
    """
    from onnx import numpy_helper

    weights = {each.name: each for each in made.graph.initializer}
    outside = (_SENSITIVE, *(f"blocks.{block}." for block in range(fp32_blocks)))
    names = {node.name for node in made.graph.node if _is_product(node, set(weights), outside)}
    if not names:
        raise UserError("int8 does nothing for convolutional backbones: export without --int8")
    from_gelu = {node.output[0] for node in made.graph.node if node.op_type == "Gelu"}
    constants: dict[str, NDArray[Any]] = {
        "int8_last_axis": np.array([-1], np.int64),
        "int8_least": np.array(1e-9, np.float32),
        "int8_lift": np.array(_LIFT, np.float32),
        "int8_step_signed": np.array(1 / 127, np.float32),
        "int8_zero_signed": np.array(128, np.uint8),
        "int8_step_lifted": np.array(1 / 255, np.float32),
        "int8_zero_lifted": np.array(0, np.uint8),
    }
    nodes = []
    for node in made.graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        values, lift = numpy_helper.to_array(weights[node.input[1]]), node.input[0] in from_gelu
        size = _step(values)
        rounded = np.rint(values / size).astype(np.int8)
        constants[f"{node.name}_weights"] = rounded
        constants[f"{node.name}_size"] = (size / (255 if lift else 127)).astype(np.float32)
        constants[f"{node.name}_lift"] = (_LIFT * size * rounded.sum(axis=0)).astype(np.float32)
        nodes += _product(node, lift)
    used = {name for node in nodes for name in node.input}
    lowered = type(made)()
    lowered.CopyFrom(made)
    del lowered.graph.node[:], lowered.graph.initializer[:]
    lowered.graph.node.extend(nodes)
    lowered.graph.initializer.extend(each for name, each in weights.items() if name in used)
    lowered.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
    )
    data: bytes = lowered.SerializeToString()
    return data


def _step(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """What one level of each column of weights [n, m] is worth, [m]: 255 times any pair of levels fits in 16 bits."""
    paired = np.concatenate([values, np.zeros_like(values[: len(values) % 2])])
    pairs = paired.reshape(-1, 2, values.shape[1])
    largest = np.maximum(np.maximum(pairs, 0).sum(axis=1), np.maximum(-pairs, 0).sum(axis=1)).max(axis=0)
    found: NDArray[np.float32] = np.maximum(largest, 1e-12) / 127
    return found


def _is_product(node: Any, weights: set[str], outside: tuple[str, ...]) -> bool:
    """Whether a node multiplies activations of the backbone by weights, in a layer that is not ``outside``."""
    scope = backbone_scope(node)
    bears = bool(scope) and not any(layer in scope for layer in outside)
    return bears and node.op_type == "MatMul" and node.input[1] in weights


def _product(node: Any, lift: bool) -> list[Any]:
    """Nodes that stand in for a product of x [..., R, n] with weights [n, m]: eight bits in, fp32 out.

    With ``lift``, x + 0.17 is multiplied, and what the 0.17 adds is taken off again.
    """
    from onnx import TensorProto, helper

    name, kind = node.name, "lifted" if lift else "signed"
    x = f"{name}_lifted" if lift else node.input[0]
    magnitude = x if lift else f"{name}_magnitude"

    def step(operator: str, inputs: list[str], output: str, **attributes: Any) -> Any:
        return helper.make_node(operator, inputs, [output], f"{name}_{operator}_{output}", **attributes)

    raw = f"{name}_above" if lift else node.output[0]
    steps = [
        step("Add", [node.input[0], "int8_lift"], x) if lift else step("Abs", [x], magnitude),
        step("ReduceMax", [magnitude, "int8_last_axis"], f"{name}_largest", keepdims=1),
        step("Max", [f"{name}_largest", "int8_least"], f"{name}_row"),
        step("Div", [x, f"{name}_row"], f"{name}_scaled"),
        step(
            "QuantizeLinear", [f"{name}_scaled", f"int8_step_{kind}", f"int8_zero_{kind}"], f"{name}_levels"
        ),
        step("MatMulInteger", [f"{name}_levels", f"{name}_weights", f"int8_zero_{kind}"], f"{name}_sum"),
        step("Cast", [f"{name}_sum"], f"{name}_number", to=TensorProto.FLOAT),
        step("Mul", [f"{name}_number", f"{name}_size"], f"{name}_column"),
        step("Mul", [f"{name}_column", f"{name}_row"], raw),
    ]
    return [*steps, step("Sub", [raw, f"{name}_lift"], node.output[0])] if lift else steps
