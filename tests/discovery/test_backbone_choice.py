"""``auto`` names the backbone in which the photos sort best, once for a run, of those whose weights are here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.discovery import backbone_choice
from partgcd.discovery.backbone_choice import choose_backbone
from partgcd.discovery.discover import build_catalog, discover
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

SettingsOf = Callable[..., Settings]


@pytest.fixture
def world(tmp_path: Path, photos: Path, settings_of: SettingsOf) -> SoloWorld:
    settings = settings_of("discovery.classes=4")
    run = RunFolder.create(tmp_path / "run", settings, photos, {"protocol": None, "split": None})
    return SoloWorld(run, torch.device("cpu"))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two backbones are here: in ``good`` a class is a direction, in ``bad`` all is noise. Counts the looks."""
    about: dict[str, Any] = {"looks": 0, "here": ["bad", "good"]}

    def features(
        settings: Settings, rows: NDArray[np.int64], names: list[str], world: SoloWorld
    ) -> dict[str, NDArray[np.float32]]:
        about["looks"] += 1
        noise = np.random.default_rng(0).normal(size=(2, len(rows), 8)).astype(np.float32)
        clear = 0.05 * noise[0]
        clear[np.arange(len(rows)), about["truth"][rows]] += 1
        unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (noise[1], clear)]
        return dict(zip(("bad", "good"), unit, strict=True))

    monkeypatch.setattr(backbone_choice, "offline_names", lambda: about["here"])
    monkeypatch.setattr(backbone_choice, "weights_status", lambda name: Path(name))
    monkeypatch.setattr(backbone_choice, "_features", features)
    return about


def open_name(settings: Settings) -> Settings:
    backbone = settings.backbone.model_copy(update={"name": "auto", "random_weights": False})
    return settings.model_copy(update={"backbone": backbone})


@pytest.mark.parametrize(
    ("labelled", "by"), [(True, "hidden labelled classes"), (False, "neighbours in common")]
)
def test_the_better_one_is_chosen_once_and_kept(
    labelled: bool, by: str, world: SoloWorld, two: dict[str, Any], settings_of: SettingsOf
) -> None:
    settings = open_name(settings_of("discovery.classes=4"))
    truth = np.arange(80) % 4
    two["truth"] = truth
    catalog = Catalog(
        Path("/x"), [f"{row:03d}" for row in range(80)], np.arange(80, dtype=np.uint64),
        truth if labelled else np.full(80, -1), list("abcd") if labelled else [], np.ones((80, 2), np.int32),
    )  # fmt: skip
    assert choose_backbone(settings, catalog, world).backbone.name == "good"
    record = world.folder.info()["backbone_choice"]
    assert (record["name"], record["by"]) == ("good", by)
    assert record["scores"]["good"] > record["scores"]["bad"] + 0.1
    two["here"] = ["bad"]
    assert choose_backbone(settings, catalog, world).backbone.name == "good" and two["looks"] == 1


@pytest.mark.parametrize("case", ["named", "random", "one", "begun", "gpu"])
def test_nothing_is_chosen_where_nothing_is_open(
    case: str, world: SoloWorld, two: dict[str, Any], settings_of: SettingsOf
) -> None:
    settings = open_name(settings_of("discovery.classes=4"))
    if case in ("named", "random"):
        change = {"name": "test_vit"} if case == "named" else {"random_weights": True}
        settings = settings.model_copy(update={"backbone": settings.backbone.model_copy(update=change)})
    if case == "one":
        two["here"] = ["bad"]
    if case == "begun":
        world.folder.update(backbone={"name": "bad"})
    if case == "gpu":
        world = SoloWorld(world.folder, torch.device("cuda"))
    none = np.zeros(0, np.int64)
    catalog = Catalog(Path("/x"), [], none.astype(np.uint64), none, [], np.zeros((0, 2), np.int32))
    assert choose_backbone(settings, catalog, world) == settings
    assert two["looks"] == 0 and "backbone_choice" not in world.folder.info()


def test_a_run_looks_at_its_own_photos_through_each_of_them(
    world: SoloWorld, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is faked but that backbones with random weights are called offline ones."""
    settings = settings_of("discovery.classes=4", "discovery.method=gcd")
    catalog = build_catalog(world.folder, settings, world)
    real = backbone_choice.load_backbone
    monkeypatch.setattr(backbone_choice, "offline_names", lambda: ["test_vit", "test_resnet"])
    monkeypatch.setattr(backbone_choice, "weights_status", lambda name: Path(name))
    monkeypatch.setattr(
        backbone_choice, "load_backbone",
        lambda named, *more: real(named.model_copy(update={"random_weights": True}), *more),
    )  # fmt: skip
    chosen = choose_backbone(open_name(settings), catalog, world).backbone.name
    record = world.folder.info()["backbone_choice"]
    assert chosen == record["name"] == max(record["scores"], key=record["scores"].__getitem__)
    assert set(record["scores"]) == {"test_vit", "test_resnet"}
    assert all(0 < value < 1 for value in record["scores"].values()) and record["seconds"] > 0
    named = settings.backbone.model_copy(update={"name": chosen})
    assert (
        discover(world.folder, settings.model_copy(update={"backbone": named}), world)["classes"]["total"]
        == 4
    )
