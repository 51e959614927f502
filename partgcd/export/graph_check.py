"""What a graph may hold before onnxruntime sees it: everything in itself, and nothing that outgrows an image.

A bundle may come from anybody. onnxruntime reads the files that a graph names, runs loops as long as the graph says,
and allocates what its shapes ask for; the graphs that are exported here need none of it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any

from partgcd.config.errors import UserError

LARGEST_MB = 1024.0
"""Largest result of a node for one image, MiB. ViT-B/16 at 1024 pixels, the largest setting there is, needs 770."""

TOTAL_MB = 65_536.0
"""All nodes' results for one image together, MiB: far above any memory need, it bounds the work."""

_BATCH = 16  # images in a run: several, so that what grows faster than the batch is seen
_SMALL = 4096  # values of a constant that shapes may be computed from
_DOMAINS = ("", "ai.onnx")
_passed: deque[bytes] = deque(maxlen=16)
"""Digests of graphs that passed: a server takes each new model in several sessions, beside answering."""

_MIB = 1 << 20


def check_graph(data: bytes) -> None:
    """Refuse a graph that reads outside of itself, branches or loops, or whose sizes can't be told or are too large.

    Sizes are inferred anew: those that the file states are not believed.

    Args:
        data: model.onnx.

    Raises:
        UserError: the graph is refused, with the reason; or onnx is not installed.
    """
    digest = hashlib.sha256(data).digest()
    if digest in _passed:
        return
    model = _parsed(data)
    _self_contained(model)
    _plain(model)
    _bounded(model)
    _passed.append(digest)


def _parsed(data: bytes) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UserError(
            "onnx is not installed: pip install 'partgcd[cpu]' (or 'partgcd[gpu]' on a GPU)", 1
        ) from error
    try:
        return onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise _refused(f"it is no ONNX model ({error})") from error


def _self_contained(model: Any) -> None:
    import onnx

    for message in _messages(model):
        if isinstance(message, onnx.TensorProto) and (
            message.data_location != onnx.TensorProto.DEFAULT or len(message.external_data)
        ):
            raise _refused(f"its tensor '{message.name}' lies in a file outside of it")


def _messages(message: Any) -> Iterator[Any]:
    """``message`` and every message inside it, whatever field it stands in: sub-graphs, functions, sparse tensors.

    A field that this onnx does not know could hold what onnxruntime does know, so it is refused.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        raise _refused("it has fields that this program does not know: update partgcd and onnx")
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if _repeats(value) else (value,):
                yield from _messages(each)


def _repeats(value: Any) -> bool:
    return not hasattr(value, "ListFields")


def _plain(model: Any) -> None:
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer:
        raise _refused("it has functions, training steps or sparse tensors")
    for node in graph.node:
        if node.domain not in _DOMAINS:
            raise _refused(f"its node '{node.name}' is of another operator set, '{node.domain}'")
        if any(each.HasField("g") or each.graphs for each in node.attribute):
            raise _refused(f"its node '{node.name}' ({node.op_type}) branches or loops")


def _bounded(model: Any) -> None:
    """Infer every size for a batch of `_BATCH` images. Changes ``model``: weights go, only their shapes count."""
    import onnx

    graph = model.graph
    _sort(graph)
    for tensor in graph.initializer:
        if prod(tensor.dims) > _SMALL:  # nothing is computed from it that decides a shape
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    for each in graph.input:
        for size in each.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.dim_value = _BATCH
    del graph.value_info[:]
    for each in graph.output:
        each.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # onnx raises its own kinds
        reason = " ".join(str(error).split())[:120]
        raise _refused(f"its shapes contradict each other ({reason})") from error
    shapes = {
        each.name: each.type.tensor_type for each in (*inferred.graph.value_info, *inferred.graph.output)
    }
    total = 0.0
    for node in inferred.graph.node:
        for name in filter(None, node.output):
            size = _mib(shapes.get(name)) / _BATCH
            total += size
            if not size <= LARGEST_MB:
                size_text = f"{size:,.0f} MiB an image, {LARGEST_MB:g} allowed"
                size_text = size_text if size < float("inf") else "a size that can't be told"
                raise _refused(f"its node '{node.name}' ({node.op_type}) gives {size_text}")
    if total > TOTAL_MB:
        raise _refused(f"its nodes give {total:,.0f} MiB an image together, {TOTAL_MB:g} allowed")


def _sort(graph: Any) -> None:
    """Put the nodes into the order that shapes flow in; the converter to half precision adds its casts at the end."""
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output}
    needs = {
        place: {maker[name] for name in node.input if name in maker} for place, node in enumerate(graph.node)
    }
    try:
        nodes = [graph.node[place] for place in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        raise _refused("its nodes wait for one another") from error
    ordered = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(ordered)


def _mib(kind: Any) -> float:
    """Size of a tensor at 8 bytes a value at most; infinite where a dimension is open."""
    import onnx

    if kind is None or not kind.HasField("shape"):
        return float("inf")
    sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim]
    if any(size < 0 for size in sizes):
        return float("inf")
    try:
        width = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    except (KeyError, TypeError, ValueError):
        width = 8
    return prod(sizes) * width / _MIB


def _refused(why: str) -> UserError:
    return UserError(f"model.onnx is refused: {why}; export the bundle again, from a source you trust", 1)
