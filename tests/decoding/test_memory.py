from __future__ import annotations

import threading

import pytest

from partgcd.decoding import memory
from partgcd.decoding.begun import BrokenImage
from partgcd.decoding.memory import ALWAYS, EXPANSION, EXPANSION_DENSE, check_memory, held


def test_a_small_file_has_little_and_a_large_one_more() -> None:
    check_memory(ALWAYS, 10)
    check_memory(ALWAYS + 1, ALWAYS // EXPANSION + 1)
    check_memory(ALWAYS + 1, ALWAYS // EXPANSION_DENSE + 1, dense=True)
    for size, dense in ((10, False), (ALWAYS // EXPANSION - 1, False), (ALWAYS // EXPANSION_DENSE - 1, True)):
        with pytest.raises(BrokenImage, match="a decompression bomb"):
            check_memory(ALWAYS + 1, size, dense)


def test_threads_together_never_hold_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BUDGET", 100)
    lock, inside, most, done = threading.Lock(), [0, 0], [0], []

    def work(need: int) -> None:
        nonlocal inside
        for _ in range(30):
            with held(need):
                with lock:
                    inside = [inside[0] + need, inside[1] + 1]
                    # One that needs more than there is goes alone.
                    assert inside[0] <= 100 or inside[1] == 1
                    most[0] = max(most[0], inside[1])
                with lock:
                    inside = [inside[0] - need, inside[1] - 1]
        done.append(need)

    threads = [threading.Thread(target=work, args=(need,)) for need in (10, 30, 60, 100, 250, 40, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 7 and memory._held == 0 and not memory._waiting


def test_an_image_that_waits_is_not_overtaken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BUDGET", 100)
    order: list[str] = []

    def take(name: str, need: int) -> None:
        with held(need):
            order.append(name)

    with held(50):
        large = threading.Thread(target=take, args=("large", 100))
        large.start()
        while len(memory._waiting) < 1:
            pass
        small = threading.Thread(target=take, args=("small", 10))
        small.start()
        while len(memory._waiting) < 2:
            pass
        assert order == []
    large.join(60)
    small.join(60)
    assert order == ["large", "small"]


def test_what_fails_gives_its_memory_back() -> None:
    with pytest.raises(ValueError, match="x"), held(10**12):
        raise ValueError("x")
    with held(10**12):
        assert memory._held == 10**12
    assert memory._held == 0
