"""Tiny photos and tiny runs: a 10 x 10 grid of patches, random weights, seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.load import load_settings
from partgcd.config.tree import Settings
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

TINY = (
    "backbone.name=test_vit", "backbone.random_weights=true", "data.image_size=160", "train.epochs=1",
    "train.batch_size=12", "train.threads=1", "train.device=cpu", "train.precision=fp32", "train.lr=0.01",
    "loss.projector_hidden=32", "loss.projector_out=16", "parts.count=3", "parts.min_patches=20",
)  # fmt: skip

SettingsOf = Callable[..., Settings]
RunOf = Callable[..., RunFolder]
Draw = Callable[..., Path]


def photo(kind: int, number: int) -> NDArray[np.uint8]:
    """Stripes whose colour and direction tell the kind; every number is another picture. [64,64,3]."""
    draw = np.random.default_rng([kind, number])
    y, x = np.mgrid[0:64, 0:64]
    angle, phase = 0.8 * kind + 0.1 * draw.normal(), draw.uniform(0, 6)
    wave = 0.5 + 0.5 * np.sin(0.45 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    colour = np.array([np.cos(2.1 * kind), np.cos(2.1 * kind + 2), np.cos(2.1 * kind + 4)]) * 100 + 128
    picture = wave[..., None] * colour + draw.normal(0, 8, (64, 64, 3))
    return picture.clip(0, 255).astype(np.uint8)


def save_photo(file: Path, kind: int, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo(kind, number)).save(file)


def write_photos(folder: Path, labelled: dict[str, int], unlabelled: list[int]) -> Path:
    """``labelled`` images by class, kinds in the order given; ``unlabelled[k]`` images of kind k."""
    for kind, (name, count) in enumerate(labelled.items()):
        for number in range(count):
            save_photo(folder / name / f"{number:02d}.png", kind, number)
    for kind, count in enumerate(unlabelled):
        for number in range(count):
            where = folder / "unlabelled" if labelled else folder
            save_photo(where / f"{(7 * number + 3 * kind) % 97:02d}-{kind}.png", kind, 100 + number)
    return folder


def make_settings(*assignments: str) -> Settings:
    return load_settings(assignments=[*TINY, *assignments])


def make_run(
    path: Path, data: Path, *assignments: str, protocol: str | None = None, split: Path | None = None
) -> RunFolder:
    """A finished run in ``path``."""
    settings = make_settings(*assignments)
    task = Task(data, protocol, split)
    run = RunFolder.create(path, settings, data, task.request())
    discover(run, settings, SoloWorld(run, torch.device("cpu")))
    return run


@pytest.fixture
def draw() -> Draw:
    return write_photos


@pytest.fixture
def settings_of() -> SettingsOf:
    return make_settings


@pytest.fixture
def run_of() -> RunOf:
    return make_run


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
def finished(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> RunFolder:
    """A finished run of PartGCD over ``photos``, of two epochs. Not to be changed."""
    torch.set_num_threads(1)
    return make_run(tmp_path_factory.mktemp("run") / "run", photos, "discovery.classes=4", "train.epochs=2")
