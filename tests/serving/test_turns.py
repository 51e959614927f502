from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.serving.turns import Asking, Turn, Turns


async def order(turns: Turns, waiting: list[Asking], held: list[Turn]) -> list[Asking]:
    """In which order those that wait get their turn, each giving it back at once."""
    got: list[Asking] = []

    async def one(asking: Asking) -> None:
        turn = await turns.take(asking)
        got.append(asking)
        turns.give_back(turn)

    tasks = [asyncio.create_task(one(each)) for each in waiting]
    await asyncio.sleep(0)
    for each in held:
        turns.give_back(each)
    await asyncio.gather(*tasks)
    return got


def run(scene: Callable[[], object]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def test_one_image_is_not_behind_a_form_of_many() -> None:
    async def scene() -> None:
        turns, form, single = Turns(1), Asking("a"), Asking("a")
        held = await turns.take(form)
        assert (await order(turns, [form] * 5 + [single], [held]))[0] is single

    run(scene)


def test_nobody_is_behind_a_client_that_took_long() -> None:
    async def scene() -> None:
        turns = Turns(1)
        long = await turns.take(Asking("slow"))
        long.since -= 5
        slow, quick = [Asking("slow") for _ in range(4)], [Asking("quick") for _ in range(2)]
        assert (await order(turns, [*slow, *quick], [long]))[:2] == quick

    run(scene)


def test_one_client_is_served_in_the_order_of_asking() -> None:
    async def scene() -> None:
        turns = Turns(2)
        held = [await turns.take(Asking("a")) for _ in range(2)]
        waiting = [Asking("a") for _ in range(6)]
        assert await order(turns, waiting, held[:1]) == waiting

    run(scene)


@given(workers=st.integers(1, 3), steps=st.lists(st.sampled_from("tcg"), max_size=40))
def test_no_place_is_lost_or_given_twice(workers: int, steps: list[str]) -> None:
    """Taking, cancelling and giving back in any order: never more turns than workers, and all come back."""

    async def scene() -> None:
        turns = Turns(workers)
        tasks: list[asyncio.Task[Turn]] = []
        for step in steps:
            if step == "t":
                tasks.append(asyncio.create_task(turns.take(Asking())))
            elif step == "c" and tasks:
                tasks[-1].cancel()
            elif step == "g":
                for each in tasks:
                    if each.done() and not each.cancelled():
                        turns.give_back(each.result())
                        tasks.remove(each)
                        break
            if step != "c":  # so that a cancellation and a turn may meet
                await asyncio.sleep(0)
            assert len(turns._running) + turns._free == workers
        for each in tasks:
            each.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Turn):
                turns.give_back(found)
        await asyncio.sleep(0.001)
        assert turns._free == workers and not turns._waiting and turns.longest() == 0

    asyncio.run(scene())


def test_a_turn_may_come_back_from_a_thread_after_its_loop_ended() -> None:
    turns = Turns(1)
    turn = asyncio.run(turns.take(Asking()))
    assert turns.longest() > 0
    turns.give_back(turn)
    again = asyncio.run(turns.take(Asking()))
    assert again is not turn


@pytest.mark.parametrize("clients", [1001, 3000])
def test_what_is_remembered_of_clients_is_bounded(clients: int) -> None:
    async def scene() -> None:
        turns = Turns(1)
        for number in range(clients):
            turns.give_back(await turns.take(Asking(str(number))))
        assert len(turns._used) <= 1000

    run(scene)
