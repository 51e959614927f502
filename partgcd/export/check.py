"""All that can be verified of a bundle: its bytes, and that its graph answers here as it did when it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from partgcd.config.errors import UserError
from partgcd.export.bundle import CARD, GRAPH, PARITY, Bundle, open_bundle, read_tensors
from partgcd.export.graph_names import FEATURE, output_names
from partgcd.export.manifest import Manifest
from partgcd.export.session import Provider, open_session
from partgcd.export.tensor_check import check_tensors


def check_bundle(path: Path, provider: Provider = "auto") -> tuple[Bundle, float]:
    """Verify every file of a bundle and run its parity test.

    Returns:
        the bundle, and the largest difference of any probability from the stored answers.

    Raises:
        UserError: anything is not as it was exported; the file is named.
    """
    bundle = open_bundle(path)
    bundle.read(CARD).decode("utf-8", errors="strict")
    session = open_session(bundle.read(GRAPH), provider=provider)
    check_interface(session, bundle.manifest)
    check_tensors(bundle)
    return bundle, _parity(bundle, session)


def check_interface(session: Any, manifest: Manifest) -> None:
    """Refuse a graph whose inputs and outputs are not those of its manifest.

    Raises:
        UserError: a name, a type or a size differs.
    """
    size, classes = manifest.preprocessing.image_size, len(manifest.classes)
    patches = manifest.backbone.grid[0] * manifest.backbone.grid[1]
    shapes: dict[str, list[int]] = {
        "global": [classes], "part": [classes], "fused": [classes], "assigned": [],
        "maps": [patches, manifest.parts or 0], "attention": [patches], "novelty": [],
        FEATURE: [manifest.backbone.dim],
    }  # fmt: skip
    outputs = list(output_names(manifest.parts is not None))
    if manifest.graph.outputs == outputs[: outputs.index(FEATURE)]:  # made before there were class tokens
        outputs = manifest.graph.outputs
    if manifest.graph.outputs != outputs:
        raise UserError("manifest.json names outputs that this program does not know: update partgcd", 1)
    wanted: dict[str, tuple[str, list[int]]] = {manifest.graph.input: ("tensor(uint8)", [3, size, size])}
    wanted |= {
        name: ("tensor(int64)" if name == "assigned" else "tensor(float)", shapes[name]) for name in outputs
    }
    found = {
        each.name: (each.type, list(each.shape)) for each in (*session.get_inputs(), *session.get_outputs())
    }
    if list(found) != list(wanted):
        raise UserError(
            f"model.onnx has other inputs and outputs than its manifest says: {', '.join(found)}", 1
        )
    for name, (kind, shape) in wanted.items():
        if found[name][0] != kind or found[name][1][1:] != shape or isinstance(found[name][1][0], int):
            raise UserError(
                f"model.onnx is not as its manifest says: {name} is {found[name][0]} {found[name][1]}, "
                f"not {kind} ['batch', {str(shape)[1:-1]}]",
                1,
            )


def _parity(bundle: Bundle, session: Any) -> float:
    from partgcd.export.parity import STORED, compare

    tensors = read_tensors(bundle, PARITY)
    manifest = bundle.manifest
    size = manifest.preprocessing.image_size
    pixels = tensors.pop(manifest.graph.input, None)
    expected = {name.removeprefix("expected."): value for name, value in tensors.items()}
    if (
        pixels is None
        or pixels.shape != (STORED, 3, size, size)
        or pixels.dtype != np.uint8
        or set(expected) != set(manifest.graph.outputs)
        or not all(np.isfinite(value).all() for value in expected.values() if value.dtype.kind == "f")
    ):
        raise UserError(f"'{bundle.path}' is refused: {PARITY} does not hold what the parity test needs", 1)
    return compare(session, pixels, expected, manifest.parity.tolerance)
