"""Tiny finished runs and the bundles made of them: random weights, stripes for photos, seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from partgcd.backbone.load import load_backbone
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings
from partgcd.discovery.discover import discover
from partgcd.discovery.predict import PartModel
from partgcd.discovery.task import Task
from partgcd.export import export, gates
from partgcd.export.bundle import Bundle
from partgcd.export.graph import Graph, to_onnx
from partgcd.export.novelty import RatioScale
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

TINY = (
    "backbone.name=test_vit", "backbone.random_weights=true", "data.image_size=64", "train.epochs=1",
    "train.batch_size=12", "train.threads=1", "train.device=cpu", "train.precision=fp32",
    "loss.projector_hidden=32", "loss.projector_out=16", "parts.count=3", "parts.min_patches=10",
    "parts.projection=8", "discovery.classes=4",
)  # fmt: skip

RunOf = Callable[..., RunFolder]
PhotoOf = Callable[..., NDArray[np.uint8]]


def photo(kind: int, number: int, side: int = 72) -> NDArray[np.uint8]:
    """Stripes whose colour and direction tell the kind, [side, side, 3]."""
    draw = np.random.default_rng([kind, number])
    y, x = np.mgrid[0:side, 0:side]
    angle = 0.8 * kind + 0.1 * draw.normal()
    wave = 0.5 + 0.5 * np.sin(0.45 * (x * np.cos(angle) + y * np.sin(angle)) + draw.uniform(0, 6))
    colour = np.array([np.cos(2.1 * kind), np.cos(2.1 * kind + 2), np.cos(2.1 * kind + 4)]) * 100 + 128
    return (wave[..., None] * colour + draw.normal(0, 8, (side, side, 3))).clip(0, 255).astype(np.uint8)


def write_photos(folder: Path, labelled: dict[str, int], unlabelled: list[int]) -> Path:
    for kind, (name, count) in enumerate(labelled.items()):
        for number in range(count):
            save(folder / name / f"{number}.png", kind, number)
    for kind, count in enumerate(unlabelled):
        for number in range(count):
            save(folder / "unlabelled" / f"{kind}-{number}.png", kind, 100 + number)
    return folder


def save(file: Path, kind: int, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo(kind, number)).save(file)


def make_run(path: Path, data: Path, *assignments: str) -> RunFolder:
    settings = load_settings(assignments=[*TINY, *assignments])
    task = Task(data, None, None)
    run = RunFolder.create(path, settings, data, task.request())
    discover(run, settings, SoloWorld(run, torch.device("cpu")))
    return run


def make_graph(name: str = "test_vit", size: int = 64, parts: bool = True, classes: int = 5) -> Graph:
    """An untrained model with random mixtures, ready to be exported."""
    settings = load_settings(assignments=["loss.projector_hidden=16", "loss.projector_out=8"])
    backbone = load_backbone(BackboneSettings(name=name, random_weights=True), size, "cpu")
    generator = torch.Generator().manual_seed(0)
    model = DiscoveryModel(backbone, classes, 3 if parts else None, settings).eval()
    if not parts:
        return Graph(model, None, settings, None)
    pixels = torch.randint(0, 256, (4, 3, size, size), dtype=torch.uint8, generator=generator)
    frozen = backbone.frozen_patches(backbone.trunk(pixels)).flatten(0, 1)
    projection = fit_projection(frozen, 8, 0)
    shared = Mixture(
        torch.full((3,), -1.1), 0.1 * torch.randn(3, 8, generator=generator), torch.full((3, 8), 0.05)
    )
    bank = GMMBank.all_shared(shared, classes)
    bank.mu.add_(0.1 * torch.randn(classes, 3, 8, generator=generator))
    scale = RatioScale(torch.randn(classes, generator=generator), torch.full((classes,), 0.7))
    return Graph(model, PartModel(bank, projection), settings, scale)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two labelled classes of 6, and 24 unlabelled images of four kinds."""
    return write_photos(tmp_path_factory.mktemp("photos"), {"ash": 6, "birch": 6}, [6, 6, 6, 6])


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> RunFolder:
    """A finished run of PartGCD. Not to be changed."""
    torch.set_num_threads(1)
    return make_run(tmp_path_factory.mktemp("run") / "run", photos)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, run: RunFolder) -> tuple[Bundle, Any]:
    """The bundle of ``run``, and its graph as the exporter gave it."""
    torch.set_num_threads(1)
    seen = []

    def watched(graph: Graph, pixels: torch.Tensor) -> Any:
        model = to_onnx(graph, pixels)
        seen.append(copy_of(model))
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "to_onnx", watched)
        folder = tmp_path_factory.mktemp("bundle")
        found = export.export_run(run, folder / "bundle", with_images=True)
    assert [file.name for file in folder.iterdir()] == ["bundle"]
    return found, seen[0]


@pytest.fixture(scope="session")
def bundle(made: tuple[Bundle, Any]) -> Bundle:
    """The bundle of ``run``, with images. Not to be changed."""
    return made[0]


@pytest.fixture
def ready_graph(made: tuple[Bundle, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of ``run`` take the graph that is there: the exporter needs seconds for it."""
    monkeypatch.setattr(gates, "to_onnx", lambda graph, pixels: copy_of(made[1]))


def copy_of(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


@pytest.fixture
def copied(tmp_path: Path, bundle: Bundle) -> Path:
    """A copy of ``bundle`` to spoil."""
    return shutil.copytree(bundle.path, tmp_path / "copy")


@pytest.fixture
def run_of() -> RunOf:
    return make_run


@pytest.fixture
def photo_of() -> PhotoOf:
    return photo


@pytest.fixture(scope="session")
def graph() -> Graph:
    """An untrained model with random mixtures."""
    return make_graph()


@pytest.fixture(scope="session")
def model(graph: Graph) -> Any:
    """``graph`` in ONNX, with what the exporter noted about its nodes. Not to be changed."""
    return to_onnx(graph, torch.zeros(2, 3, 64, 64, dtype=torch.uint8))


@pytest.fixture(scope="session")
def conv() -> tuple[Graph, Any]:
    """The same with a convolutional backbone."""
    graph = make_graph("test_resnet")
    return graph, to_onnx(graph, torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
