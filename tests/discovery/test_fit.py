from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from partgcd.cluster.novel_samples import Expected
from partgcd.config.errors import UserError
from partgcd.config.tree import DiscoverySettings, Settings, TrainSettings
from partgcd.discovery import fit as fitting
from partgcd.discovery.discover import build_catalog
from partgcd.discovery.fit import class_sizes, fit, learning_rate
from partgcd.discovery.refresh import compute_answers
from partgcd.discovery.sampler import epoch_batches
from partgcd.discovery.setup import prepare
from partgcd.discovery.step import StepLoss
from partgcd.discovery.warm import Teacher, WarmStart
from partgcd.run.checkpoint import list_checkpoints
from partgcd.run.folder import RunFolder
from partgcd.run.world import Interrupted, SoloWorld

SettingsOf = Callable[..., Settings]
RunOf = Callable[..., RunFolder]


def world_for(path: Path, data: Path, settings: Settings) -> SoloWorld:
    run = RunFolder.create(path, settings, data, {"protocol": None, "split": None})
    return SoloWorld(run, torch.device("cpu"))


@given(epochs=st.integers(1, 300), peak=st.floats(1e-4, 1.0), floor=st.floats(0.0, 1.0))
def test_the_step_size_falls_from_its_peak_to_its_floor(epochs: int, peak: float, floor: float) -> None:
    train = TrainSettings(epochs=epochs, lr=peak, lr_floor=floor, warmup=0.0)
    rates = [learning_rate(epoch, train) for epoch in range(1, epochs + 2)]
    assert rates[0] == pytest.approx(peak)
    assert rates[-1] == pytest.approx(peak * floor)  # where an epoch after the last would stand
    assert all(one >= other - 1e-12 for one, other in pairwise(rates))
    if epochs % 2 == 0:
        assert rates[epochs // 2] == pytest.approx(peak * (1 + floor) / 2)


@given(epochs=st.integers(1, 60), steps=st.integers(1, 20), warmup=st.floats(0.01, 0.5))
def test_step_sizes_rise_step_by_step_until_the_warm_up_is_over(
    epochs: int, steps: int, warmup: float
) -> None:
    train, cold = TrainSettings(epochs=epochs, warmup=warmup), TrainSettings(epochs=epochs, warmup=0.0)
    shares = [
        learning_rate(epoch, train, (step + 1) / steps) / learning_rate(epoch, cold)
        for epoch in range(1, epochs + 1)
        for step in range(steps)
    ]
    first = 1 / (warmup * epochs * steps)
    assert shares[0] == pytest.approx(min(1.0, first))
    assert all(later >= share - 1e-9 for share, later in pairwise(shares)) and max(shares) <= 1.0
    over = math.ceil(warmup * epochs * steps + 1e-9)
    assert shares[over:] == [1.0] * len(shares[over:])


def test_the_block_takes_its_share_of_a_step_and_heads_the_whole(
    tmp_path: Path, photos: Path, settings_of: SettingsOf
) -> None:
    """After one step without momentum a tensor has moved by its share of the very same gradient."""
    moved: dict[float, dict[str, torch.Tensor]] = {}
    for share in (1.0, 0.25):
        settings = settings_of(
            "discovery.method=simgcd", "discovery.classes=4", "train.batch_size=36", "train.epochs=1",
            "train.weight_decay=0", "train.warmup=0", f"train.block_lr={share}", "discovery.prototype_refits=[]",
        )  # fmt: skip
        world = world_for(tmp_path / str(share), photos, settings)
        catalog = build_catalog(world.folder, settings, world)
        before = {
            name: value.clone()
            for name, value in prepare(settings, catalog, world).model.trainable_state().items()
        }
        after = fit(settings, catalog, world).setup.model.trainable_state()
        moved[share] = {name: after[name] - before[name] for name in before}
    for name, whole in moved[1.0].items():
        share = 0.25 if name.startswith("backbone.") else 1.0
        torch.testing.assert_close(moved[0.25][name], share * whole, rtol=1e-3, atol=1e-6)
    assert any(float(each.abs().max()) > 1e-5 for name, each in moved[1.0].items() if "backbone." in name)


def test_class_sizes_count_the_empty_ones_and_how_even_the_rest_is() -> None:
    sizes = class_sizes(torch.tensor([0, 0, 0, 1]), 4)
    assert (sizes["largest"], sizes["smallest"], sizes["empty"]) == (3, 0, 2)
    wanted = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert sizes["entropy"] == pytest.approx(wanted)
    assert class_sizes(torch.arange(4), 4)["entropy"] == pytest.approx(1.0)
    assert class_sizes(torch.zeros(4, dtype=torch.long), 4)["entropy"] == 0.0


def test_loss_goes_down_and_labelled_images_are_learnt(
    tmp_path: Path, photos: Path, settings_of: SettingsOf
) -> None:
    settings = settings_of(
        "discovery.method=simgcd", "discovery.classes=4", "train.epochs=8", "train.lr=0.02",
        "discovery.prototype_start=random",
    )  # fmt: skip
    world = world_for(tmp_path / "run", photos, settings)
    catalog = build_catalog(world.folder, settings, world)
    fitted = fit(settings, catalog, world)
    lines = world.folder.read_metrics()
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    losses = [line["loss"]["cls_supervised"] for line in lines]
    assert losses[-1] < 0.7 * losses[0]
    known = catalog.labelled
    found = fitted.assignment.predicted.numpy()[known]
    assert (found == catalog.labels[known]).mean() > 0.8


def test_every_epoch_leaves_a_line_a_record_and_a_checkpoint(finished: RunFolder) -> None:
    lines = finished.read_metrics()
    assert [line["epoch"] for line in lines] == [1, 2]
    for line in lines:
        assert set(line) >= {
            "lr", "alpha", "teacher_temperature", "loss", "seconds", "images_per_second", "peak_memory_mb",
            "sizes", "gmm_log_likelihood",
        }  # fmt: skip
        assert set(line["seconds"]) >= {"refresh", "mixtures", "steps", "epoch"}
        assert set(line["loss"]) >= {"total", "cls", "rep", "part_cls", "part_rep", "pdr"}
        assert all(math.isfinite(value) for value in line["loss"].values())
        assert line["sizes"]["largest"] + line["sizes"]["empty"] <= 36
    assert "changed" not in lines[0] and 0 <= lines[1]["changed"] <= 1
    assert [line["lr"] for line in lines] == [
        learning_rate(epoch, TrainSettings(epochs=2, lr=0.01)) for epoch in (1, 2)
    ]
    assert [epoch for epoch, _ in finished.read_epochs()] == [0, 1, 2]
    assert [path.name for path in list_checkpoints(finished.checkpoints)] == [
        "epoch-00002-step-000000", "epoch-00003-step-000000",
    ]  # fmt: skip


def test_the_record_of_an_epoch_covers_every_image(finished: RunFolder) -> None:
    for _, arrays in finished.read_epochs():
        assert arrays["predicted"].shape == arrays["assigned"].shape == (36,)
        assert arrays["predicted"].max() < 4
        assert arrays["candidate_rows"].shape == arrays["candidate_classes"].shape
        assert arrays["candidate_rows"].max() < 36
        assert set(np.unique(arrays["candidate_classes"])) == {0, 1, 2, 3}


def test_every_epoch_draws_its_own_batches_and_views(
    tmp_path: Path, photos: Path, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(
        "discovery.method=simgcd", "discovery.classes=4", "train.epochs=2", "train.view_pool=0", "seed=3"
    )
    world = world_for(tmp_path / "run", photos, settings)
    catalog = build_catalog(world.folder, settings, world)
    rows, crops, real = [], [], fitting.random_crops

    def watch(seed: int, epoch: int, step: int, keys: NDArray[np.uint64], view: int, *more: Any) -> Any:
        assert seed == 3
        found = real(seed, epoch, step, keys, view, *more)
        if view == 0:
            rows.append([catalog.keys.tolist().index(key) for key in keys.tolist()])
        crops.append((found.top.tolist(), found.left.tolist(), found.flip.tolist()))
        return found

    monkeypatch.setattr(fitting, "random_crops", watch)
    fit(settings, catalog, world)
    wanted = [epoch_batches(catalog.labelled, 12, 3, epoch).tolist() for epoch in (1, 2)]
    assert rows == wanted[0] + wanted[1] and wanted[0] != wanted[1]
    assert len(crops) == 12 and all(crops.count(each) == 1 for each in crops)


def test_a_request_to_stop_keeps_what_is_done(tmp_path: Path, photos: Path, settings_of: SettingsOf) -> None:
    settings = settings_of("discovery.method=simgcd", "discovery.classes=4", "train.epochs=3")
    world = world_for(tmp_path / "run", photos, settings)
    catalog = build_catalog(world.folder, settings, world)

    def stop_in_the_second_epoch(phase: str, done: int, total: int, note: str) -> None:
        if phase == "training" and done == 5:  # three steps an epoch
            world.stop()

    world._on_progress = stop_in_the_second_epoch
    with pytest.raises(Interrupted):
        fit(settings, catalog, world)
    state = SoloWorld(world.folder, world.device).latest(settings)
    assert state is not None and (state.epoch, state.step) == (2, 2)
    assert [line["epoch"] for line in world.folder.read_metrics()] == [1]


def test_a_training_that_goes_on_and_is_stopped_holds_to_the_new_classes_found_so_far(
    tmp_path: Path, photos: Path, settings_of: SettingsOf
) -> None:
    """The refit after epoch 1 finds new classes; a stop in epoch 2 must not make their images forget it."""
    settings = settings_of(
        "discovery.method=simgcd", "discovery.classes=4", "train.epochs=2", "discovery.prototype_refits=[0.5, 1.0]"
    )  # fmt: skip
    found, weights = [], []
    for name, stops in (("whole", False), ("stopped", True)):
        world = world_for(tmp_path / name, photos, settings)
        catalog = build_catalog(world.folder, settings, world)
        images, unlabelled = len(catalog), int((catalog.labels < 0).sum())
        torch.manual_seed(5)
        known = prepare(settings, catalog, world)
        teacher = Teacher(
            torch.nn.functional.one_hot(known.labels.clamp_min(0), 4).float(), (known.labels >= 0).float(), 1.0,
            torch.full((images,), -1),
        )  # fmt: skip
        start = WarmStart(
            known.model.trainable_state(), None, None, teacher, None,
            Expected(np.full(2, unlabelled // 4), unlabelled // 2),
        )  # fmt: skip
        if stops:
            world._on_progress = lambda phase, done, total, note, world=world: (
                world.stop() if phase == "training" and done == 5 else None
            )
            with pytest.raises(Interrupted):
                fit(settings, catalog, world, start)
            world = SoloWorld(world.folder, world.device)
        fitted = fit(settings, catalog, world, start)
        assert fitted.setup.teacher is not None
        found.append(fitted.setup.teacher.found)
        weights.append(fitted.setup.model.prototypes.weight.detach())
    assert (found[0] >= 2).sum() > 0
    assert found[0].tolist() == found[1].tolist()
    torch.testing.assert_close(weights[0], weights[1])


def test_a_loss_that_is_not_finite_names_its_terms_and_what_to_do(
    tmp_path: Path, photos: Path, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("discovery.method=simgcd", "discovery.classes=4", "train.epochs=2")
    world = world_for(tmp_path / "run", photos, settings)
    catalog = build_catalog(world.folder, settings, world)
    real, calls = fitting.step_loss, []

    def spoilt(*what: object) -> StepLoss:
        calls.append(what)
        loss = real(*what)  # type: ignore[arg-type]
        return (
            loss
            if len(calls) < 5
            else StepLoss(loss.total, {**loss.terms, "rep": math.nan, "total": math.nan})
        )

    monkeypatch.setattr(fitting, "step_loss", spoilt)
    with pytest.raises(UserError, match=r"epoch 2, step 2 \(rep, total\).*lower train\.lr") as caught:
        fit(settings, catalog, world)
    assert caught.value.code == 1
    state = world.latest(settings)
    assert state is not None and (state.epoch, state.step) == (2, 0)


def test_cached_views_and_fresh_ones_are_other_roads_to_a_run(
    tmp_path: Path, photos: Path, settings_of: SettingsOf
) -> None:
    losses = []
    for pool in (0, 2):
        settings = settings_of("discovery.method=simgcd", "discovery.classes=4", f"train.view_pool={pool}")
        world = world_for(tmp_path / str(pool), photos, settings)
        fitted = fit(settings, build_catalog(world.folder, settings, world), world)
        assert (fitted.setup.pool is not None) == bool(pool)
        losses.append(world.folder.read_metrics()[0]["loss"]["total"])
    assert losses[0] != losses[1]


@given(epochs=st.integers(1, 60), shares=st.lists(st.floats(0.0, 1.0), max_size=6))
def test_refits_come_after_whole_epochs_and_never_before_the_first(epochs: int, shares: list[float]) -> None:
    settings = Settings(
        train=TrainSettings(epochs=epochs), discovery=DiscoverySettings(prototype_refits=shares)
    )
    due = [after for after in range(epochs + 1) if fitting.refit_due(after, settings)]
    assert 0 not in due
    assert due == sorted({max(1, round(share * epochs)) for share in shares})


@pytest.mark.parametrize("refits", ["[]", "[0.5]", "[0.5, 1.0]"])
def test_the_last_clustering_gives_each_head_its_own_centres(
    tmp_path: Path, photos: Path, settings_of: SettingsOf, refits: str
) -> None:
    settings = settings_of("discovery.classes=4", "train.epochs=2", f"discovery.prototype_refits={refits}")
    world = world_for(tmp_path / "run", photos, settings)
    fitted = fit(settings, build_catalog(world.folder, settings, world), world)
    model = fitted.setup.model
    if "1.0" not in refits:
        assert model.part_prototypes is None
        return
    assert model.part_prototypes is not None and fitted.parts is not None
    setup = fitted.setup
    _, features = compute_answers(model, fitted.parts, settings, setup.look(world))
    assert features is not None
    own = model.part_prototypes.unit().detach()
    # A centre is nearer to the features of its cluster than another head's prototypes are.
    assert float((features @ own.T).amax(dim=1).mean()) > float(
        (features @ model.prototypes.unit().detach().T).amax(dim=1).mean()
    )
    named = {name for name in model.trainable_state() if name.startswith("part_prototypes")}
    assert named == {"part_prototypes.weight"}
