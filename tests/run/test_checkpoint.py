from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as tries
from hypothesis import strategies as st

from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.config.tree import Settings, TrainSettings
from partgcd.run.checkpoint import (
    State,
    list_checkpoints,
    load_latest,
    random_state,
    restore_random_state,
    save_checkpoint,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def state(epoch: int, step: int = 0, **tensors: torch.Tensor) -> State:
    return State(epoch, step, tensors or {"x": torch.full((2,), float(epoch))}, {"step": step})


def found(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def damage(checkpoint: Path, what: str) -> None:
    if what == "no tensors":
        (checkpoint / "tensors.safetensors").unlink()
    elif what == "cut tensors":
        file = checkpoint / "tensors.safetensors"
        file.write_bytes(file.read_bytes()[:-3])
    elif what == "no header":
        (checkpoint / "tensors.safetensors").write_bytes(b"")
    elif what == "cut record":
        file = checkpoint / "state.json"
        file.write_text(file.read_text()[: len(file.read_text()) // 2])
    else:
        (checkpoint / "state.json").unlink()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, float("nan"), float("inf"), -0.0]),
        torch.tensor([[1, 2], [3, 4]]).T,
        torch.tensor(3.0, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.zeros(0, 5, dtype=torch.float16),
        torch.tensor([1.25], dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, tensor: torch.Tensor) -> None:
    save_checkpoint(tmp_path, state(1, x=tensor), Settings())
    back = load_latest(tmp_path, Settings())
    assert back is not None
    assert back.tensors["x"].dtype == tensor.dtype and back.tensors["x"].shape == tensor.shape
    assert torch.equal(back.tensors["x"].nan_to_num(7), tensor.nan_to_num(7))
    assert torch.equal(torch.signbit(back.tensors["x"]), torch.signbit(tensor))


@given(values=st.dictionaries(st.text(), VALUES, max_size=4))
@tries(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_come_back_exactly(tmp_path: Path, values: dict[str, Any]) -> None:
    save_checkpoint(tmp_path, State(1, 0, {}, values), Settings())
    back = load_latest(tmp_path, Settings())
    assert back is not None
    assert json.dumps(back.values) == json.dumps(values)


def test_trained_parameters_can_be_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    save_checkpoint(tmp_path, state(1, w=model.weight), Settings())
    back = load_latest(tmp_path, Settings())
    assert back is not None
    assert torch.equal(back.tensors["w"], model.weight) and not back.tensors["w"].requires_grad


def test_nothing_saved_is_nothing_found(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "absent", Settings()) is None


def test_the_two_newest_are_kept_in_order_of_time(tmp_path: Path) -> None:
    for epoch, step in ((1, 0), (2, 0), (9, 5), (10, 0), (10, 12)):
        save_checkpoint(tmp_path, state(epoch, step), Settings())
    assert found(tmp_path) == ["epoch-00010-step-000000", "epoch-00010-step-000012"]


def test_as_many_are_kept_as_asked_for_and_the_best_beside_them(tmp_path: Path) -> None:
    settings = Settings(train=TrainSettings(keep_checkpoints=1, keep_best=True))
    for epoch, score in ((2, 3.0), (3, 1.5), (4, 1.5), (5, None), (6, 9.0)):
        values = {} if score is None else {"score": score}
        save_checkpoint(tmp_path, State(epoch, 0, {"x": torch.zeros(1)}, values), settings)
    assert found(tmp_path) == ["epoch-00003-step-000000", "epoch-00006-step-000000"]
    newest = load_latest(tmp_path, settings)
    assert newest is not None and newest.epoch == 6
    save_checkpoint(tmp_path, State(7, 0, {"x": torch.zeros(1)}, {"score": 0.5}), settings)
    assert found(tmp_path) == ["epoch-00007-step-000000"]


def test_saving_the_same_moment_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1, x=torch.zeros(1)), Settings())
    save_checkpoint(tmp_path, state(1, x=torch.ones(1)), Settings())
    back = load_latest(tmp_path, Settings())
    assert back is not None and float(back.tensors["x"]) == 1.0
    assert len(found(tmp_path)) == 1


@pytest.mark.parametrize("what", ["no tensors", "cut tensors", "no header", "cut record", "no record"])
def test_a_damaged_newest_is_passed_over(tmp_path: Path, what: str) -> None:
    save_checkpoint(tmp_path, state(1), Settings())
    damage(save_checkpoint(tmp_path, state(2), Settings()), what)
    back = load_latest(tmp_path, Settings())
    assert back is not None and back.epoch == 1


def test_damaged_leftovers_never_push_out_what_is_saved_after_them(tmp_path: Path) -> None:
    for epoch in (7, 8):
        damage(save_checkpoint(tmp_path, state(epoch), Settings()), "cut tensors")
    assert load_latest(tmp_path, Settings()) is None
    save_checkpoint(tmp_path, state(2), Settings())  # the fit began anew
    back = load_latest(tmp_path, Settings())
    assert back is not None and back.epoch == 2
    assert found(tmp_path) == ["epoch-00002-step-000000"]


@pytest.mark.parametrize("moment", ["tensors", "record", "rename"])
def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save_checkpoint(tmp_path, state(1), Settings())
    real_sync, real_replace, calls = os.fsync, Path.replace, []

    def sync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == {"tensors": 1, "record": 2}.get(moment):
            raise OSError(errno.ENOSPC, "full")
        real_sync(handle)

    def replace(self: Path, target: Path) -> Path:
        if moment == "rename" and self.is_dir():
            raise OSError(errno.ENOSPC, "full")
        return real_replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(Path, "replace", replace)
        with pytest.raises(UserError, match="disk is full") as caught:
            save_checkpoint(tmp_path, state(2), Settings())
    assert caught.value.code == 1
    back = load_latest(tmp_path, Settings())
    assert back is not None and back.epoch == 1
    save_checkpoint(tmp_path, state(2), Settings())  # there is space again
    assert sorted(path.name for path in tmp_path.iterdir()) == found(tmp_path)
    back = load_latest(tmp_path, Settings())
    assert back is not None and back.epoch == 2


def test_folders_that_a_kill_left_are_cleaned_up(tmp_path: Path) -> None:
    stale = tmp_path / ".epoch-00001-step-000000.4711.tmp"
    stale.mkdir(parents=True)
    (stale / "tensors.safetensors").write_bytes(b"half")
    assert load_latest(tmp_path, Settings()) is None
    save_checkpoint(tmp_path, state(1), Settings())
    assert [path.name for path in tmp_path.iterdir()] == found(tmp_path)


def test_other_settings_are_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), Settings())
    other = load_settings(assignments=["train.lr=0.5", "seed=3"])
    with pytest.raises(UserError, match=r"seed: 0 != 3; train\.lr: \S+ != 0\.5") as caught:
        load_latest(tmp_path, other)
    assert caught.value.code == 2


def test_a_checkpoint_is_tensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, state(1), Settings())
    assert sorted(path.name for path in saved.iterdir()) == ["state.json", "tensors.safetensors"]
    header = (saved / "tensors.safetensors").read_bytes()
    json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    json.loads((saved / "state.json").read_text())


def test_the_random_state_goes_on_where_it_was() -> None:
    torch.manual_seed(5)
    kept = random_state()
    drawn = torch.rand(4)
    torch.manual_seed(99)
    restore_random_state(kept)
    assert torch.equal(torch.rand(4), drawn)
