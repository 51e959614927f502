"""Bundles that are made in a blink: a graph that looks at the mean colour, under everything a real bundle has."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save
from starlette.testclient import TestClient

from partgcd.config.tree import Settings
from partgcd.disk.files import write_bytes, write_text
from partgcd.export.bundle import (
    BANK,
    CARD,
    EXEMPLARS,
    GRAPH,
    PARITY,
    WEIGHTS,
    building,
    list_files,
    write_manifest,
)
from partgcd.export.graph_names import FEATURE, INPUT, OPSET, output_names
from partgcd.export.manifest import Manifest
from partgcd.export.parity import STORED
from partgcd.serving.app import build_app
from partgcd.serving.logs import LOGGER, OTHERS
from partgcd.serving.metrics import Metrics
from partgcd.serving.service import Service
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import open_source

SIZE, GRID, PARTS = 32, (2, 2), 3
COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}
SURE = 8.0
KEY = "correct horse"

BundleOf = Callable[..., Path]
ClientOf = Callable[..., TestClient]


def ids(flavour: int) -> list[str]:
    return [f"c-{flavour:04d}{place}" for place in range(3)]


def make_graph(sure: float, parts: bool) -> bytes:
    """Softmax of the mean colour; novelty is -log of the best probability."""
    patches = GRID[0] * GRID[1]
    constants = {
        "two_three": np.array([2, 3], np.int64),
        "scale": np.array(sure / 128, np.float32),
        "maps_shape": np.array([1, patches, PARTS], np.int64),
        "attention_shape": np.array([1, patches], np.int64),
        "third": np.array(1 / PARTS, np.float32),
        "even": np.array(1 / patches, np.float32),
        "last": np.array([1], np.int64),
        "zero": np.array(0, np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Cast", [INPUT], ["real"], to=TensorProto.FLOAT),
        node("ReduceMean", ["real", "two_three"], ["mean"], keepdims=0),
        node("Mul", ["mean", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["fused"], axis=1),
        node("Identity", ["fused"], ["global"]),
        node("ArgMax", ["fused"], ["assigned"], axis=1, keepdims=0),
        node("ReduceMax", ["fused", "last"], ["best"], keepdims=0),
        node("Log", ["best"], ["log"]),
        node("Neg", ["log"], ["novelty"]),
        node("LpNormalization", ["mean"], [FEATURE], axis=1, p=2),
        node("Mul", ["fused", "zero"], ["none"]),
        node("ReduceSum", ["none", "last"], ["none1"], keepdims=1),
        node("Add", ["none1", "even"], ["one"]),
        node("Expand", ["one", "attention_shape"], ["attention"]),
    ]
    if parts:
        nodes += [
            node("Identity", ["fused"], ["part"]),
            node("Unsqueeze", ["none1", "last"], ["none2"]),
            node("Add", ["none2", "third"], ["mixed"]),
            node("Expand", ["mixed", "maps_shape"], ["maps"]),
        ]
    shapes: dict[str, tuple[Any, list[Any]]] = {
        "global": (TensorProto.FLOAT, ["batch", 3]), "part": (TensorProto.FLOAT, ["batch", 3]),
        "fused": (TensorProto.FLOAT, ["batch", 3]), "assigned": (TensorProto.INT64, ["batch"]),
        "maps": (TensorProto.FLOAT, ["batch", patches, PARTS]), "attention": (TensorProto.FLOAT, ["batch", patches]),
        "novelty": (TensorProto.FLOAT, ["batch"]), FEATURE: (TensorProto.FLOAT, ["batch", 3]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(name, *shapes[name]) for name in output_names(parts)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def blank_tensors() -> dict[str, dict[str, NDArray[Any]]]:
    """What training would go on from, of three classes: nothing that serving reads."""

    def ones(*shape: int) -> NDArray[np.float32]:
        return np.ones(shape, np.float32)

    whole = np.zeros(3, np.int64)
    return {
        BANK: {
            "log_pi": ones(3, PARTS), "mu": ones(3, PARTS, 3), "var": ones(3, PARTS, 3), "fitted": whole == 0,
            "shared.log_pi": ones(PARTS), "shared.mu": ones(PARTS, 3), "shared.var": ones(PARTS, 3),
            "projection.mean": ones(3), "projection.basis": ones(3, 3),
        },
        EXEMPLARS: {
            "keys": whole, "classes": whole, "labelled": whole == 0, "cls": ones(3, 3), "tokens": ones(3, 4, 3),
        },
        WEIGHTS: {"prototypes.weight": ones(3, 3)},
    }  # fmt: skip


def make_bundle(
    path: Path,
    flavour: int = 0,
    sure: float = SURE,
    parts: bool = True,
    names: tuple[str, ...] = tuple(COLOURS),
) -> Path:
    """A bundle with three classes; another ``flavour`` has other ids and another version."""
    model = make_graph(sure, parts)
    outputs = list(output_names(parts))
    pixels = np.random.default_rng(flavour).integers(0, 60, (STORED, 3, SIZE, SIZE)).astype(np.uint8)
    pixels[np.arange(STORED), np.arange(STORED) % 3] += 150
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = dict(zip(outputs, session.run(outputs, {INPUT: pixels}), strict=True))
    kinds = ("old", "old", "discovered")
    told = {
        "format": "partgcd bundle", "schema_version": 1, "method": "partgcd" if parts else "simgcd",
        "backbone": {
            "name": "colours", "kind": "vit", "grid": GRID, "dim": 3, "trunk_dim": 3, "weights": "0" * 64,
            "licence": "none", "lineage": f"made for a test, flavour {flavour}",
        },
        "preprocessing": {
            "image_size": SIZE, "crop_ratio": 0.875, "short_side": 37, "max_aspect": 4.0, "max_megapixels": 100.0,
            "mean": (0, 0, 0), "std": (1, 1, 1),
        },
        "classes": [
            {"index": place, "id": each, "name": name, "kind": kind, "labelled": 3, "assigned": 4}
            for place, (each, name, kind) in enumerate(zip(ids(flavour), names, kinds, strict=True))
        ],
        "parts": PARTS if parts else None,
        "projection": {"dims": 3, "sha256": "0" * 64} if parts else None,
        "fusion": {"temperature": 1.0, "part_weight": 1.0},
        "novelty": {
            "threshold": 0.5, "false_alarm_rate": 0.05, "calibration_images": 9, "ratio_weight": 0.5, "folds": 5,
        },
        "graph": {"precision": "fp32", "opset": OPSET, "input": INPUT, "outputs": outputs},
        "parity": {"images": 7, "batches": [1, 2, 7], "largest_difference": 0.0, "tolerance": 1e-4},
        "cost": None, "agreement": 1.0, "accuracy": None, "exemplars": {"per_class": 1, "thumbnails": False},
        "provenance": {
            "run": "test", "created": "2026-01-01T00:00:00+00:00", "exported": "2026-01-01T00:00:00+00:00",
            "partgcd": "0", "git": None, "versions": {}, "seed": flavour, "data": "0" * 64,
            "images": {"total": 9, "labelled": 9, "unlabelled": 0},
        },
        "settings": Settings.model_validate({
            "data": {"image_size": SIZE}, "discovery": {"method": "partgcd" if parts else "simgcd"}}), "files": {},
    }  # fmt: skip
    with building(path) as folder:
        write_bytes(folder / GRAPH, model)
        for name, tensors in blank_tensors().items():
            if name != BANK or parts:
                write_bytes(folder / name, save(tensors))
        stored = {INPUT: pixels, **{f"expected.{name}": value for name, value in expected.items()}}
        write_bytes(folder / PARITY, save({name: np.ascontiguousarray(v) for name, v in stored.items()}))
        write_text(folder / CARD, "# Made for a test\n")
        manifest = Manifest.model_validate(told)
        write_manifest(folder, manifest.model_copy(update={"files": list_files(folder)}))
    return path


def picture(colour: tuple[int, int, int], kind: str = "png", side: int = 40) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, kind)
    return file.getvalue()


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Loggers as they were."""
    loggers = [logging.getLogger(name) for name in (LOGGER, *OTHERS)]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers, each.level, each.propagate = handlers, level, propagate
    logging.captureWarnings(False)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says red, green or blue. Not to be changed."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def bundle_of() -> BundleOf:
    return make_bundle


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    """One picture a class, by name, and one that is like none."""
    return {name: picture(colour) for name, colour in COLOURS.items()} | {"grey": picture((90, 90, 90))}


@pytest.fixture(scope="session")
def idle_decoders() -> Iterator[list[Any]]:
    """Decoders at rest: a start takes a third of a second, so that services of one after another test share them."""
    found: list[Any] = []
    yield found
    for each in found:
        each.close()


@pytest.fixture
def service_of(bundle: Path, idle_decoders: list[Any]) -> Iterator[Callable[..., Service]]:
    """A service with its model loaded; ``settings`` as those of ServeSettings."""
    made: list[Service] = []

    def make(**settings: Any) -> Service:
        told = ServeSettings.model_validate({"source": bundle, "workers": 2, "threads": 1, **settings})
        service = Service(told, open_source(told), Metrics())
        service.holder.start()
        service.decoders._idle, idle_decoders[:] = [*idle_decoders], []
        made.append(service)
        return service

    yield make
    for service in made:
        service._pool.shutdown(cancel_futures=True)
        keep_decoders(service, idle_decoders)
        if service.inbox is not None:
            service.inbox.close()


def keep_decoders(service: Service, idle: list[Any]) -> None:
    idle += service.decoders._idle
    service.decoders._idle = []
    service.decoders.close()


@pytest.fixture
def client_of(service_of: Callable[..., Service], idle_decoders: list[Any]) -> Iterator[ClientOf]:
    """A client of an app in this process; its service is ``client.app.state.service``."""
    opened: list[TestClient] = []

    def make(**settings: Any) -> TestClient:
        client = TestClient(build_app(service_of(**settings)), base_url="http://localhost")
        client.__enter__()
        opened.append(client)
        return client

    yield make
    for client in opened:
        keep_decoders(client.app.state.service, idle_decoders)  # type: ignore[attr-defined]
        client.__exit__(None, None, None)


@pytest.fixture
def client(client_of: ClientOf) -> TestClient:
    return client_of()


def drawn(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)))
