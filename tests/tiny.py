"""A tiny champion for every room: random weights, stripes for photos, seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from partgcd.config.load import load_settings
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.export import bundle as files
from partgcd.export import export, gates
from partgcd.export.bundle import Bundle
from partgcd.export.graph import Graph, to_onnx
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

TINY = (
    "backbone.name=test_vit", "backbone.random_weights=true", "data.image_size=64", "train.epochs=1",
    "train.batch_size=12", "train.threads=1", "train.device=cpu", "train.precision=fp32", "train.view_pool=2",
    "loss.projector_hidden=32", "loss.projector_out=16", "parts.count=3", "parts.min_patches=10",
    "parts.projection=8", "discovery.classes=3",
)  # fmt: skip

Photos = Callable[..., Path]


def save_photo(file: Path, kind: int, number: int) -> None:
    """Stripes whose colour and direction tell the kind; every number is another picture."""
    draw = np.random.default_rng([kind, number])
    y, x = np.mgrid[0:72, 0:72]
    angle = 0.8 * kind + 0.1 * draw.normal()
    wave = 0.5 + 0.5 * np.sin(0.3 * (x * np.cos(angle) + y * np.sin(angle)) + draw.uniform(0, 6))
    colour = np.array([np.cos(2.1 * kind), np.cos(2.1 * kind + 2), np.cos(2.1 * kind + 4)]) * 100 + 128
    picture = (wave[..., None] * colour + draw.normal(0, 8, (72, 72, 3))).clip(0, 255).astype(np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(file)


def write_photos(folder: Path, kinds: dict[int, int], first: int = 0) -> Path:
    """``kinds[k]`` photos of kind k, all in one folder."""
    for kind, count in kinds.items():
        for number in range(count):
            save_photo(folder / f"{kind}-{first + number}.png", kind, first + number)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run over two labelled classes of 8 and 16 unlabelled images of three kinds."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("champion")
    for kind, name in enumerate(("ash", "birch")):
        write_photos(root / "photos" / name, {kind: 8})
    write_photos(root / "photos" / "unlabelled", {0: 5, 1: 5, 2: 6}, 100)
    settings = load_settings(assignments=list(TINY))
    task = Task(root / "photos", None, None)
    run = RunFolder.create(root / "run", settings, task.data, task.request())
    discover(run, settings, SoloWorld(run, torch.device("cpu")))
    return run


@pytest.fixture(scope="session")
def bundle(trained: RunFolder) -> Bundle:
    """The bundle of ``trained``. Not to be changed."""
    torch.set_num_threads(1)
    return export.export_run(trained, trained.path.parent / "bundle", with_images=True)


@pytest.fixture
def registry(tmp_path: Path, bundle: Bundle) -> Registry:
    """A registry whose version 1, the champion, is ``bundle``."""
    made = Registry.init(tmp_path / "registry")
    made.add(bundle.path, note="first")
    made.promote("1")
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Writes a folder of new photos: ``photos("name", {kind: count}, first)``."""
    return lambda name, kinds, first=500: write_photos(tmp_path / name, kinds, first)


@pytest.fixture(scope="session")
def graphs() -> dict[int, Any]:
    """ONNX models by number of classes, for `quick_export`."""
    return {}


@pytest.fixture
def quick_export(graphs: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the parity gate out and takes one graph a number of classes: the exporter needs seconds for it."""

    def made(graph: Graph, pixels: torch.Tensor) -> Any:
        classes = graph.model.prototypes.weight.shape[0]
        if classes not in graphs:
            graphs[classes] = to_onnx(graph, pixels)
        copy = type(graphs[classes])()
        copy.CopyFrom(graphs[classes])
        return copy

    monkeypatch.setattr(gates, "to_onnx", made)
    monkeypatch.setattr(gates, "compare", lambda *words: 0.0)


@pytest.fixture
def copied(tmp_path: Path, bundle: Bundle) -> Path:
    """A copy of ``bundle`` to spoil."""
    return shutil.copytree(bundle.path, tmp_path / "copy")


@pytest.fixture
def variant(tmp_path: Path, bundle: Bundle) -> Callable[..., Path]:
    """Writes another bundle: ``bundle`` with other class ids (by column), or only another note of its run."""

    def make(name: str, ids: dict[int, str] | None = None) -> Path:
        folder = shutil.copytree(bundle.path, tmp_path / name)
        manifest = bundle.manifest
        classes = [
            entry.model_copy(update={"id": (ids or {}).get(entry.index, entry.id)})
            for entry in manifest.classes
        ]
        provenance = manifest.provenance.model_copy(update={"run": name})
        files.write_manifest(
            folder, manifest.model_copy(update={"classes": classes, "provenance": provenance})
        )
        return folder

    return make
