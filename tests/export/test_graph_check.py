from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from partgcd.config.errors import UserError
from partgcd.export.graph import Graph
from partgcd.export.graph_check import check_graph
from partgcd.export.graph_names import OPSET
from partgcd.export.session import open_session

FLOAT = TensorProto.FLOAT


def value(name: str, shape: list[Any] | None = None) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, ["batch", 4] if shape is None else shape)


def model_of(nodes: list[Any], initialisers: list[Any] = [], **more: Any) -> Any:  # noqa: B006 - never changed
    body = helper.make_graph(nodes, "g", [value("x")], [value("y")], initialisers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=10, **more)


def outside(name: str = "w", location: str = "w.bin") -> Any:
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def branches(inner: Any) -> Any:
    """A node with a sub-graph that holds ``inner`` as its initialiser."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])], "b", [], [value("z", [4])], [inner]
    )
    return helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)


def hidden_in_constant(tensor: Any) -> Any:
    return model_of(
        [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])]
    )


def hidden_in_function(tensor: Any) -> Any:
    made = model_of([helper.make_node("Add", ["x", "x"], ["y"])])
    body = [helper.make_node("Constant", [], ["w"], value=tensor)]
    made.functions.append(helper.make_function("own", "f", [], ["w"], body, [helper.make_opsetid("", OPSET)]))
    return made


def hidden_in_sparse(tensor: Any) -> Any:
    made = model_of([helper.make_node("Add", ["x", "x"], ["y"])])
    made.graph.sparse_initializer.add(values=tensor, dims=[4])
    return made


def hidden_in_training(tensor: Any) -> Any:
    made = model_of([helper.make_node("Add", ["x", "x"], ["y"])])
    made.training_info.add().algorithm.initializer.append(tensor)
    return made


PLACES: dict[str, Callable[[Any], Any]] = {
    "initialiser": lambda tensor: model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor]),
    "unused initialiser": lambda tensor: model_of([helper.make_node("Add", ["x", "x"], ["y"])], [tensor]),
    "constant": hidden_in_constant,
    "sub-graph": lambda tensor: model_of([branches(tensor)], [helper.make_tensor("c", 9, [], [True])]),
    "sub-graph of a sub-graph": lambda tensor: model_of([branches_twice(tensor)]),
    "function": hidden_in_function,
    "sparse tensor": hidden_in_sparse,
    "training step": hidden_in_training,
}


def branches_twice(tensor: Any) -> Any:
    body = helper.make_graph([branches(tensor)], "b", [], [value("y", [4])])
    return helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["w.bin", "../w.bin", "/etc/hostname", "*/_ORT_MEM_ADDR_/_", ""])
def test_a_tensor_outside_of_the_graph_is_refused_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, location: str
) -> None:
    """The file is there and would fit; onnxruntime reads it from the working directory."""
    (tmp_path / "here").mkdir()
    for folder in (tmp_path, tmp_path / "here"):
        np.arange(4, dtype=np.float32).tofile(folder / "w.bin")
    monkeypatch.chdir(tmp_path / "here")
    made = PLACES[place](outside(location=location))
    with pytest.raises(UserError, match=r"tensor 'w' lies in a file outside of it") as told:
        open_session(made.SerializeToString(), 1, "cpu")
    assert told.value.code == 1 and "\n" not in str(told.value)


def test_a_tensor_that_only_says_it_is_outside_is_refused() -> None:
    tensor = helper.make_tensor("w", FLOAT, [4], [1.0] * 4)
    tensor.data_location = TensorProto.EXTERNAL
    with pytest.raises(UserError, match="outside of it"):
        check_graph(PLACES["initialiser"](tensor).SerializeToString())


LOOP = helper.make_graph(
    [helper.make_node("Identity", ["go"], ["on"])], "body",
    [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])],
    [helper.make_tensor_value_info("on", 9, [])],
)  # fmt: skip
HUGE = helper.make_tensor("n", TensorProto.INT64, [2], [1 << 20, 1 << 20])
SIDE = helper.make_tensor("n", TensorProto.INT64, [2], [1, 1 << 30])


@pytest.mark.parametrize(
    ("nodes", "initialisers", "told"),
    [
        ([helper.make_node("Loop", ["", "c"], [], body=LOOP, name="forever")], [], "branches or loops"),
        ([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [], "another operator set"),
        ([helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")], [], "another operator set"),
        ([helper.make_node("ConstantOfShape", ["n"], ["z"])], [HUGE], "MiB an image, 1024 allowed"),
        ([helper.make_node("Tile", ["x", "n"], ["y"])], [SIDE], "MiB an image, 1024 allowed"),
        ([helper.make_node("NonZero", ["x"], ["z"])], [], "a size that can't be told"),
        ([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["x", "a"], ["b"])], [], "wait for"),
        ([helper.make_node("MatMul", ["x", "x"], ["y"])], [], "contradict"),
        ([helper.make_node("NoSuchNode", ["x"], ["y"])], [], "can't be told"),
    ],
)  # fmt: skip
def test_what_could_run_or_grow_for_ever_is_refused(
    nodes: list[Any], initialisers: list[Any], told: str
) -> None:
    with pytest.raises(UserError, match=told) as refused:
        check_graph(model_of(nodes, initialisers).SerializeToString())
    assert refused.value.code == 1


def test_a_graph_that_grows_faster_than_the_batch_is_refused() -> None:
    """256 MiB for one image are allowed, 16 images would take 64 GiB."""
    wide = helper.make_tensor("n", TensorProto.INT64, [2], [1, 1 << 11])
    nodes = [helper.make_node("Tile", ["x", "n"], ["a"]), helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
             helper.make_node("MatMul", ["b", "a"], ["c"]), helper.make_node("Tile", ["c", "m"], ["y"])]  # fmt: skip
    more = helper.make_tensor("m", TensorProto.INT64, [2], [64, 4])
    with pytest.raises(UserError, match="1024 allowed"):
        check_graph(model_of(nodes, [wide, more]).SerializeToString())


def test_stated_sizes_are_not_believed() -> None:
    made = model_of([helper.make_node("ConstantOfShape", ["n"], ["z"])], [HUGE])
    made.graph.value_info.append(value("z", [1, 1]))
    with pytest.raises(UserError):
        check_graph(made.SerializeToString())


def test_fields_that_nobody_knows_are_refused() -> None:
    data = PLACES["initialiser"](helper.make_tensor("w", FLOAT, [4], [1.0] * 4)).SerializeToString()
    check_graph(data)
    with pytest.raises(UserError, match="fields that this program does not know"):
        check_graph(data + b"\xfa\x7f\x03abc")  # field 2047


def test_bytes_in_another_format_are_not_taken_for_onnx() -> None:
    """An ONNX graph whose bytes begin as onnxruntime's own format does: one reader checks, the other would run."""
    good = PLACES["initialiser"](helper.make_tensor("w", FLOAT, [4], [1.0] * 4))
    good.ClearField("producer_name")
    both = b"\x12\x10\x00\x00ORTM" + bytes(10) + good.SerializeToString()
    assert both[4:8] == b"ORTM" and onnx.load_model_from_string(both).graph.node[0].op_type == "Add"
    session = open_session(both, 1, "cpu")  # read as what was checked
    assert [each.name for each in session.get_inputs()] == ["x"]


def test_real_graphs_pass(model: Any, conv: tuple[Graph, Any]) -> None:
    for each in (model, conv[1]):
        check_graph(each.SerializeToString())
