from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State
from partgcd.run.folder import RunFolder
from partgcd.run.world import ALONE, SoloWorld, World, share_of


@pytest.fixture
def world(tmp_path: Path) -> SoloWorld:
    folder = RunFolder.create(tmp_path / "run", Settings(), tmp_path, {})
    return SoloWorld(folder, torch.device("cpu"))


def test_one_process_is_a_world(world: SoloWorld) -> None:
    asked: World = world
    value = torch.arange(3.0, requires_grad=True)
    for answer in (asked.all_reduce(value), asked.all_gather(value), asked.broadcast(value)):
        assert answer is value
    assert (asked.rank, asked.size) == (0, 1)
    assert asked.all_gather_object({"a": 1}) == [{"a": 1}]
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    before = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    asked.sum_gradients(list(model.parameters()))
    assert all(torch.equal(a, b.grad) for a, b in zip(before, model.parameters(), strict=True))  # type: ignore[arg-type]
    assert asked.share_out([1, 2, 3]) == [1, 2, 3]
    with asked.leader_first(), asked.together():
        asked.barrier()
    assert asked.stores == world.folder.cache
    assert not asked.all_should_stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_a_stop_and_lets_the_step_finish(world: SoloWorld, number: signal.Signals) -> None:
    finished = False
    with world.stopping_on_signals():
        assert not world.should_stop()
        os.kill(os.getpid(), number)
        finished = True
    assert finished and world.should_stop()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_ctrl_c_after_a_request_to_stop_ends_at_once(world: SoloWorld, first: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), world.stopping_on_signals():
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was swallowed")


def test_sigterm_twice_still_lets_the_step_finish(world: SoloWorld) -> None:
    with world.stopping_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert world.should_stop()


@pytest.mark.parametrize("failing", [False, True])
def test_the_handlers_of_before_come_back(world: SoloWorld, failing: bool) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with world.stopping_on_signals():
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
            if failing:
                raise RuntimeError
    except RuntimeError:
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_reports_go_to_the_folder_and_to_who_listens(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    seen: list[tuple[str, int, int, str]] = []
    folder = RunFolder.create(tmp_path / "run", Settings(), tmp_path, {})
    world = SoloWorld(folder, torch.device("cpu"), lambda *what: seen.append(what), told.append)
    world.report({"epoch": 1})
    world.progress("training", 1, 2, "note")
    assert told == [{"epoch": 1}] == folder.read_metrics()
    assert seen == [("training", 1, 2, "note")]


def test_the_newest_saved_state_comes_back(world: SoloWorld) -> None:
    settings = Settings()
    assert world.latest(settings) is None
    for epoch in (1, 2):
        world.save(State(epoch, 3, {"x": torch.tensor([float(epoch)])}, {"a": [1]}), settings)
    state = world.latest(settings)
    assert state is not None
    assert (state.epoch, state.step, state.values, float(state.tensors["x"])) == (2, 3, {"a": [1]}, 2.0)


def test_a_stop_can_be_asked_for_without_a_signal(world: SoloWorld) -> None:
    world.stop()
    assert world.should_stop() and world.all_should_stop()


@dataclass
class Rank:
    rank: int
    size: int


@given(
    total=st.integers(0, 3000), size=st.integers(1, 9), unit=st.sampled_from([1, 7, 256]),
)  # fmt: skip
def test_shares_are_contiguous_whole_and_even(total: int, size: int, unit: int) -> None:
    shares = [share_of(total, cast(World, Rank(rank, size)), unit) for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(total))
    assert all(share.start % unit == 0 or not len(share) for share in shares)
    units = [-(-len(share) // unit) for share in shares]
    assert max(units) - min(units) <= 1
    assert share_of(total, ALONE) == range(total)
