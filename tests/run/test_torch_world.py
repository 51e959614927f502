"""Two processes over gloo are one World; nothing of Ray's takes part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partgcd.config.tree import Settings
from partgcd.run.folder import RunFolder

Ranks = Callable[..., list[dict[str, str]]]

CODE = """
from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State
from partgcd.run.world import Interrupted


@check
def sums_and_broadcasts():
    value = torch.tensor([1.0 + rank, 2.0])
    assert world.all_reduce(value).tolist() == [3.0, 4.0] and value[0] == 1.0 + rank
    assert world.broadcast(value).tolist() == [1.0, 2.0] and value[0] == 1.0 + rank
    assert world.all_gather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]


@check
def gathers_rows_of_any_number_and_type():
    for kind in (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16):
        own = torch.full((3 if rank else 1, 2), rank, dtype=kind)
        whole = world.all_gather(own)
        assert whole.dtype == kind and whole[:, 0].long().tolist() == [0, 1, 1, 1]
    assert world.all_gather(torch.zeros(2 * rank, 4)).shape == (2, 4)
    assert world.all_gather(torch.zeros(0, 4)).shape == (0, 4)
    assert world.all_gather(torch.full((2 - rank, 1), rank), [2, 1]).flatten().tolist() == [0, 0, 1]


@check
def a_gathered_row_has_the_whole_gradient():
    everything = torch.arange(12.0).reshape(4, 3)
    mine = everything[:1] if rank == 0 else everything[1:]
    own = mine.clone().requires_grad_()
    (world.all_gather(own) @ everything.T).softmax(dim=1).square().sum().backward()
    alone = everything.clone().requires_grad_()
    (alone @ everything.T).softmax(dim=1).square().sum().backward()
    assert torch.allclose(own.grad, alone.grad[:1] if rank == 0 else alone.grad[1:])


@check
def gradients_are_summed_and_a_missing_one_counts_as_zero():
    one, other = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    one.grad = torch.full((2, 3), 1.0 + rank)
    if rank == 0:
        other.grad = torch.ones(2, 3)
    world.sum_gradients([one, other])
    assert torch.equal(one.grad, torch.full((2, 3), 3.0)) and torch.equal(other.grad, torch.ones(2, 3))


@check
def work_of_a_host_is_shared_out_once():
    shares = world.all_gather_object(world.share_out(list(range(7))))
    assert sorted(sum(shares, [])) == list(range(7)) and max(map(len, shares)) == 4


@check
def the_leader_of_a_host_goes_first():
    made = folder / "made"
    with world.leader_first():
        assert made.exists() == (rank == 1)
        made.touch()


@check
def one_rank_that_is_interrupted_interrupts_all():
    with world.together():
        pass
    try:
        with world.together():
            if rank == 1:
                raise Interrupted
    except Interrupted:
        return
    raise AssertionError("this rank went on")


@check
def a_stop_that_one_rank_was_asked_for_reaches_all():
    assert not world.all_should_stop()
    if rank == 1:
        world.stop()
    assert world.should_stop() == (rank == 1)
    assert world.all_should_stop()
    world._stop.clear()


@check
def only_rank_0_writes_and_all_read():
    told = []
    world._on_save, world._on_report = told.append, told.append
    assert world.latest(Settings()) is None
    world.barrier()
    world.save(State(2, 0, {"x": torch.tensor([float(rank)])}), Settings())
    world.report({"epoch": 1, "peak_memory_mb": 10.0 + rank})
    world.barrier()
    assert float(world.latest(Settings()).tensors["x"]) == 0.0
    (line,) = world.folder.read_metrics()
    assert line == {"epoch": 1, "peak_memory_mb": 10.0, "workers": 2, "worker_memory_mb": [10.0, 11.0]}
    assert told == ([world.folder.checkpoints / "epoch-00002-step-000000", line] if rank == 0 else [None])
    assert world.stores == world.folder.cache


@check
def a_rank_that_sees_another_folder_is_refused():
    from partgcd.config.errors import UserError

    elsewhere = RunFolder(folder / "run" if rank == 0 else folder / "absent")
    try:
        TorchWorld(elsewhere, torch.device("cpu"))
    except UserError as error:
        assert "share" in str(error)
        return
    raise AssertionError("it was taken")
"""
CHECKS = [line.split()[1].split("(")[0] for line in CODE.splitlines() if line.startswith("def ")]


@pytest.fixture(scope="module")
def found(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("world")
    RunFolder.create(folder / "run", Settings(), folder, {})
    return ranks(CODE, 2, folder)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(found: list[dict[str, str]], name: str) -> None:
    for rank, each in enumerate(found):
        assert each[name] == "", f"rank {rank}: {each[name]}"


def test_the_folder_is_that_of_one_run(found: list[dict[str, str]]) -> None:
    assert [list(each) for each in found] == [CHECKS, CHECKS]
