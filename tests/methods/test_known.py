"""What holds for every method there is: a stop changes nothing, and a champion of any is carried on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import TINY, write_photos

from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.continual.rediscover import rediscover
from partgcd.continual.request import Request
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.export.export import export_run
from partgcd.methods.known import METHODS, method_of
from partgcd.registry.roster import list_classes
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder
from partgcd.run.world import Interrupted, SoloWorld

TRAINED = [name for name, method in METHODS.items() if method.begin is not None]
CLUSTERINGS = [name for name, method in METHODS.items() if method.cluster is not None]


def test_every_method_trains_or_clusters_and_an_unknown_one_is_named() -> None:
    assert sorted(TRAINED + CLUSTERINGS) == sorted(METHODS) and not set(TRAINED) & set(CLUSTERINGS)
    assert all(method.about and name == method.name for name, method in METHODS.items())
    with pytest.raises(UserError, match=r"no method 'magic': choose from partgcd, simgcd"):
        method_of(load_settings(assignments=["discovery.method=magic"]))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two labelled classes of 6 and 12 unlabelled images of three kinds: two steps of 12 an epoch."""
    data = tmp_path / "photos"
    for kind, name in enumerate(("ash", "birch")):
        write_photos(data / name, {kind: 6})
    return write_photos(data / "unlabelled", {0: 4, 1: 4, 2: 4}, 100).parent


def begun(path: Path, data: Path, method: str) -> RunFolder:
    torch.set_num_threads(1)
    settings = load_settings(assignments=[*TINY, f"discovery.method={method}", "train.epochs=2"])
    return RunFolder.create(path, settings, data, Task(data).request())


@pytest.mark.parametrize("method", TRAINED)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(method: str, photos: Path, tmp_path: Path) -> None:
    whole, stopped = (begun(tmp_path / name, photos, method) for name in ("whole", "stopped"))
    discover(whole, whole.settings(), SoloWorld(whole, torch.device("cpu")))
    world = SoloWorld(stopped, torch.device("cpu"))

    def stop_in_the_second_epoch(phase: str, done: int, total: int, note: str) -> None:
        if phase == "training" and done == 3:
            world.stop()

    world._on_progress = stop_in_the_second_epoch
    with pytest.raises(Interrupted):
        discover(stopped, stopped.settings(), world)
    discover(stopped, stopped.settings(), SoloWorld(stopped, torch.device("cpu")))
    one, other = load_file(whole.model), load_file(stopped.model)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert (
        whole.predictions.with_suffix(".csv").read_text().splitlines()[1].split(",")[5:]
        == (stopped.predictions.with_suffix(".csv").read_text().splitlines()[1].split(",")[5:])
    )


@pytest.mark.parametrize("method", ["gcd", "cms"])
def test_a_champion_of_another_method_is_carried_on(
    method: str, photos: Path, tmp_path: Path, quick_export: None
) -> None:
    run = begun(tmp_path / "run", photos, method)
    discover(run, run.settings(), SoloWorld(run, torch.device("cpu")))
    registry = Registry.init(tmp_path / "registry")
    registry.add(export_run(run, tmp_path / "bundle").path)
    registry.promote("1")
    before = [row.id for row in list_classes(registry)]
    new = write_photos(tmp_path / "new", {0: 6, 4: 10}, 500)
    outcome = rediscover(
        Request(
            registry.path, new, promote="always", classes=1, epochs=1, train={"device": "cpu", "threads": 1}
        )
    )
    assert outcome.code == 0 and outcome.version == 2, outcome.summary
    version = registry.version("champion")
    assert version.class_ids[: len(before)] == before
    assert registry.verify() == []
