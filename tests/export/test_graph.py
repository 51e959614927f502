from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from partgcd.config.errors import UserError
from partgcd.export.graph import Graph, strip, to_onnx
from partgcd.export.graph_names import INPUT, OPSET, output_names
from partgcd.export.parity import clear, torch_answers
from partgcd.export.session import open_session, run

PROBABILITIES = ("global", "part", "fused")


def pixels_of(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, (count, 3, 64, 64), np.uint8)


def assert_same(graph: Graph, model: Any, batch: int) -> None:
    pixels = pixels_of(batch)
    expected = torch_answers(graph, pixels, batch)
    found = run(open_session(model.SerializeToString(), 1, "cpu"), pixels)
    assert tuple(found) == output_names("part" in expected) == tuple(expected)
    sure = clear(expected)
    assert sure.sum() >= batch - 1
    for name, values in expected.items():
        limit = {"novelty": 5e-3, "maps": 1e-3}.get(name, 1e-4)
        assert found[name].shape == values.shape and found[name].dtype == values.dtype
        assert np.abs(found[name][sure] - values[sure]).max() < limit, name
    for name in PROBABILITIES:
        if name in found:
            assert np.abs(found[name].sum(axis=1) - 1).max() < 1e-5


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_the_graph_answers_as_torch_does(graph: Graph, model: Any, batch: int) -> None:
    assert_same(graph, model, batch)


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_a_convolutional_one_does_too(conv: tuple[Graph, Any], batch: int) -> None:
    assert_same(*conv, batch)


def test_a_leaning_one_does_too(graph: Graph) -> None:
    leaning = copy.deepcopy(graph)
    leaning.model.set_logit_adjustment(torch.linspace(-2, 0, leaning.model.prototypes.weight.shape[0]))
    pixels = pixels_of(8)
    assert (
        np.abs(torch_answers(leaning, pixels, 8)["fused"] - torch_answers(graph, pixels, 8)["fused"]).max()
        > 0.01
    )
    assert_same(leaning, to_onnx(leaning, torch.from_numpy(pixels[:2])), 8)


def test_the_bank_is_inside(graph: Graph, model: Any) -> None:
    assert {entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")} == {OPSET}
    inside = [numpy_helper.to_array(weights) for weights in model.graph.initializer]
    for wanted in (graph.bank_mu, graph.projection_basis):
        assert any(each.shape == wanted.shape and np.array_equal(each, wanted.numpy()) for each in inside)
    assert all(not weights.external_data for weights in model.graph.initializer)


def test_stripped_of_the_exporters_notes_it_answers_the_same(model: Any) -> None:
    copy = type(model)()
    copy.CopyFrom(model)
    data = strip(copy).SerializeToString()
    assert b"/partgcd/" not in data and b"site-packages" not in data
    pixels = pixels_of(2)
    before = run(open_session(model.SerializeToString(), 1, "cpu"), pixels)
    after = run(open_session(data, 1, "cpu"), pixels)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_what_onnx_can_not_say_is_one_line(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no operator\nfor this")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(UserError, match=r"can't be exported to ONNX .*no operator for this") as told:
        to_onnx(graph, torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    assert told.value.code == 1


def test_without_the_exporter_the_pip_line_is_named(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'partgcd\[cpu\]'"):
        to_onnx(graph, torch.zeros(2, 3, 64, 64, dtype=torch.uint8))


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x08\x0a"])
def test_bytes_that_are_no_graph_are_one_line(data: bytes) -> None:
    with pytest.raises(UserError, match=r"model\.onnx"):
        open_session(data, 1, "cpu")


def test_a_gpu_that_is_not_there_is_one_line(model: Any) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("there is a GPU here")
    with pytest.raises(UserError, match="sees no GPU"):
        open_session(model.SerializeToString(), 1, "cuda")
    assert INPUT == "pixels"
