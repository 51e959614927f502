"""What lower precision may cost, and the graph in half precision for GPUs; int8.py has the one for CPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.export.session import runtime

MOST_CHANGED = 0.01
"""Largest share of images whose answer lower precision may change."""

COST_IMAGES = 500
"""Images of the run on which the cost is measured."""

LOW_TOLERANCE = 0.02
"""How far probabilities of one low-precision graph may differ from machine to machine."""


def to_fp16(made: Any) -> bytes:
    """The fp32 ONNX model with its backbone in half precision; heads, mixtures, inputs and outputs stay fp32."""
    runtime()
    from onnxruntime.transformers.float16 import convert_float_to_float16

    outside = [node.name for node in made.graph.node if not backbone_scope(node)]
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


def backbone_scope(node: Any) -> str:
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
