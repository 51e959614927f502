from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partgcd.export.int8 import to_int8
from partgcd.export.session import open_session, run


def pixels_of(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (count, 3, 64, 64), np.uint8)


def test_eight_bits_answer_nearly_alike_and_take_less_room(model: Any) -> None:
    data, pixels = to_int8(model), pixels_of(8)
    before = run(open_session(model.SerializeToString(), 1, "cpu"), pixels)
    after = run(open_session(data, 1, "cpu"), pixels)
    assert len(data) < 0.8 * model.ByteSize()
    assert 0 < np.abs(before["global"] - after["global"]).max() < 0.05


def test_sums_are_exact_on_every_cpu(model: Any) -> None:
    """Without dot-product instructions two products are added in 16 bits, and what does not fit is cut off."""
    import onnx
    from onnx import numpy_helper

    lowered = onnx.load_model_from_string(to_int8(model))
    used = {node.input[1] for node in lowered.graph.node if node.op_type == "MatMulInteger"}
    weights = [numpy_helper.to_array(each) for each in lowered.graph.initializer if each.name in used]
    assert weights and all(value.dtype == np.int8 for value in weights)
    for value in weights:
        pairs = value[: len(value) // 2 * 2].astype(np.int64).reshape(-1, 2, value.shape[1])
        for side in (pairs, -pairs):
            assert 255 * np.maximum(side, 0).sum(axis=1).max() <= 32767
        assert np.abs(pairs).max() > 100, "hardly a level is given away"


def test_an_answer_does_not_depend_on_the_images_beside_it(model: Any) -> None:
    session, pixels = open_session(to_int8(model), 1, "cpu"), pixels_of(5)
    pixels[1:3] //= 16
    together = run(session, pixels)
    for row in range(5):
        alone = run(session, pixels[row : row + 1])
        assert np.abs(alone["fused"][0] - together["fused"][row]).max() < 1e-5


def test_only_products_of_the_backbone_change(model: Any) -> None:
    import onnx

    lowered = onnx.load_model_from_string(to_int8(model))
    onnx.checker.check_model(lowered)
    before, after = ([node.op_type for node in each.graph.node] for each in (model, lowered))
    quantised = after.count("MatMulInteger")
    # four products a block of six, but for the first block's two of the MLP
    assert quantised == 4 * 6 - 2 and after.count("MatMul") == before.count("MatMul") - quantised
    assert after.count("Gemm") == before.count("Gemm")
    kept = {each.name for each in lowered.graph.initializer}
    assert kept == {name for node in lowered.graph.node for name in node.input} & kept
