from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partgcd.export.predictor import Answer, Failure
from partgcd.serving.body import Upload
from partgcd.serving.decode_budget import Large, NoMemory
from partgcd.serving.problems import Problem
from partgcd.serving.service import Job, Service

ServiceOf = Callable[..., Service]


@pytest.fixture
def uploads(photos: dict[str, bytes]) -> list[Upload]:
    return [Upload(photos[name], name) for name in ("red", "green", "blue", "grey")]


def best(service: Service, uploads: list[Upload], **options: Any) -> list[str]:
    _, results = asyncio.run(
        service.classify(uploads, options.get("top_k", 1), options.get("explain", False))
    )
    return [each.found.best.name if isinstance(each.found, Answer) else "?" for each in results]


def gated(service: Service, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds every run of the graph until the event is set."""
    gate, run = threading.Event(), service._run
    monkeypatch.setattr(service, "_run", lambda jobs: (gate.wait(10), run(jobs))[1])
    return gate


def test_results_keep_the_order_and_failures_their_place(
    service_of: ServiceOf, uploads: list[Upload]
) -> None:
    service = service_of()
    mixed = [*uploads[:2], Upload(b"x"), uploads[2]]
    version, results = asyncio.run(service.classify(mixed, 1, False))
    assert [isinstance(each.found, Failure) for each in results] == [False, False, True, False]
    assert [each.upload for each in results] == mixed
    assert version == service.predictor().version and service._places == 0


def test_jobs_of_different_wishes_share_a_run(service_of: ServiceOf, uploads: list[Upload]) -> None:
    service = service_of()
    predictor = service.predictor()
    pixels = [predictor.prepare(each.data) for each in uploads[:3]]
    jobs = [
        Job(predictor, pixels[0], 1, False),
        Job(predictor, pixels[1], 3, True),
        Job(predictor, pixels[2], 2, False),
    ]
    answers = service._run(jobs)
    assert [len(each.top) for each in answers] == [1, 3, 2]
    assert [each.overlay is not None for each in answers] == [False, True, False]
    assert [each.best.name for each in answers] == ["red", "green", "blue"]


def test_jobs_of_two_models_are_answered_by_their_own(
    service_of: ServiceOf, bundle_of: Callable[..., Path], tmp_path: Path, uploads: list[Upload]
) -> None:
    one, other = service_of(), service_of(source=bundle_of(tmp_path / "other", flavour=1))
    predictors = [one.predictor(), other.predictor()] * 2
    jobs = [Job(each, each.prepare(uploads[0].data), 1, False) for each in predictors]
    assert [each.version for each in one._run(jobs)] == [each.version for each in predictors]


def test_a_full_queue_refuses_at_once_and_recovers(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(limits={"max_queue": 4, "max_files": 4})
    gate = gated(service, monkeypatch)

    async def scene() -> None:
        first = asyncio.create_task(service.classify(uploads[:3], 1, False))
        await asyncio.sleep(0.05)
        with pytest.raises(Problem) as caught:
            await service.classify(uploads[:2], 1, False)
        assert caught.value.status == 429 and caught.value.limit == 4
        assert int(caught.value.headers["Retry-After"]) >= 1
        second = asyncio.create_task(service.classify(uploads[:1], 1, False))
        await asyncio.sleep(0.05)
        with pytest.raises(Problem):
            service.check_room()
        gate.set()
        await asyncio.gather(first, second)
        service.check_room(4)

    asyncio.run(scene())


def test_an_answer_that_comes_too_late_is_a_503(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(limits={"request_timeout_s": 0.1})
    gate = gated(service, monkeypatch)
    began = time.monotonic()
    with pytest.raises(Problem) as caught:
        asyncio.run(service.classify(uploads, 1, False))
    assert caught.value.status == 503 and caught.value.limit == 0.1 and "Retry-After" in caught.value.headers
    gate.set()
    assert time.monotonic() - began < 8 and service._places == 0
    assert best(service, uploads[:1]) == ["red"]


def test_what_nobody_waits_for_is_not_computed(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(workers=1, limits={"max_queue": 64})
    gate, ran, run = threading.Event(), [], service._run

    def counted(jobs: Any) -> Any:
        gate.wait(10)
        ran.append(len(jobs))
        return run(jobs)

    monkeypatch.setattr(service, "_run", counted)

    async def scene() -> None:
        held = asyncio.create_task(service.classify(uploads[:1], 1, False))
        await asyncio.sleep(0.1)
        others = [asyncio.create_task(service.classify(uploads[:1], 1, False)) for _ in range(5)]
        await asyncio.sleep(0.05)
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        gate.set()
        await held

    asyncio.run(scene())
    assert ran == [1] and service._places == 0


def test_a_request_is_answered_by_one_model_while_models_change(
    service_of: ServiceOf, bundle_of: Callable[..., Path], bundle: Path, tmp_path: Path, uploads: list[Upload]
) -> None:
    link = tmp_path / "current"
    link.symlink_to(bundle)
    service = service_of(source=link, limits={"max_files": 8})
    bundles = [bundle, bundle_of(tmp_path / "other", flavour=7)]
    versions = {(each / "manifest.sha256").read_text()[:64] for each in bundles}
    seen: set[str] = set()

    async def scene() -> None:
        stop = asyncio.Event()

        async def swap() -> None:
            for number in range(20):
                new = tmp_path / "next"
                new.symlink_to(bundles[number % 2])
                new.replace(link)
                await asyncio.to_thread(service.holder.refresh)
            stop.set()

        async def ask() -> None:
            while not stop.is_set():
                version, results = await service.classify(uploads, 1, False)
                assert {each.found.version for each in results} == {version}
                seen.add(version)

        await asyncio.gather(swap(), *(ask() for _ in range(4)))

    asyncio.run(scene())
    assert seen == versions and service.holder.refused is None


def test_a_replica_without_progress_is_told(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of()
    gate = gated(service, monkeypatch)
    assert service.stuck_for() == 0

    async def scene() -> None:
        task = asyncio.create_task(service.classify(uploads[:1], 1, False))
        await asyncio.sleep(0.1)
        assert service.stuck_for() > 0.05
        gate.set()
        await task

    asyncio.run(scene())
    assert service.stuck_for() == 0


@pytest.mark.parametrize(
    ("cpus", "workers", "threads", "expected"),
    [(8, 0, 0, [1, 8]), (8, 2, 0, [4, 8]), (2, 3, 0, [1, 2]), (8, 2, 3, [3]), (1, 0, 0, [1])],
)
def test_threads_never_outnumber_the_cpus_unless_told(
    service_of: ServiceOf,
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    workers: int,
    threads: int,
    expected: int,
) -> None:
    from partgcd.export.predictor import Predictor
    from partgcd.serving import service as module

    load, asked = Predictor.load, []

    def watched(path: Path, count: int, provider: Any) -> Predictor:
        asked.append(count)
        return load(path, count, provider)

    monkeypatch.setattr(module.Predictor, "load", watched)
    service = service_of(cpus=cpus, workers=workers, threads=threads)
    assert asked == expected and service.workers == (workers or cpus)


def test_an_image_alone_gets_the_whole_machine(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(cpus=4, workers=4, threads=0)
    narrow, wide = service.holder.predictors
    used, run = [], service._run
    monkeypatch.setattr(service, "_run", lambda jobs: (used.append(jobs[0].predictor), run(jobs))[1])
    assert best(service, uploads[:1]) == ["red"] and used == [wide]
    assert best(service, uploads[:2]) == ["red", "green"] and used[1:] == [narrow, narrow]


def test_jobs_may_be_answered_in_batches(service_of: ServiceOf, uploads: list[Upload], bundle: Path) -> None:
    made: list[Service] = []
    batches: list[int] = []

    async def together(job: Job) -> Answer:
        batches.append(len(batches))
        return (await made[0].run_in_pool([job]))[0]

    plain = service_of()
    service = Service(plain.settings, plain.holder.source, plain.metrics, together)
    service.holder.start()
    made.append(service)
    mixed = [*uploads, Upload(b"x")]
    assert best(service, mixed, explain=True)[:3] == ["red", "green", "blue"]
    _, results = asyncio.run(service.classify(mixed, 1, True))
    assert [each.drawing is not None for each in results] == [True] * 4 + [False]
    assert len(batches) == 8
    service._pool.shutdown()


def test_a_request_that_gets_no_worker_in_time_is_told_so(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(workers=1, limits={"queue_timeout_s": 0.2})
    gate = gated(service, monkeypatch)

    async def scene() -> None:
        first = asyncio.create_task(service.classify(uploads[:1], 1, False))
        await asyncio.sleep(0.05)
        with pytest.raises(Problem) as caught:
            await service.classify(uploads[1:2], 1, False)
        problem = caught.value
        assert (problem.status, problem.title, problem.limit) == (503, "Too busy", 0.2)
        assert int(problem.headers["Retry-After"]) >= 1
        gate.set()
        assert (await first)[1][0].found.best.name == "red"  # it had begun, and is waited for

    asyncio.run(scene())
    assert service._places == 0 and service.stuck_for() == 0


def test_a_form_that_would_run_out_of_time_is_told_early(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(workers=1, limits={"queue_timeout_s": 0.2, "request_timeout_s": 1000})
    gate = gated(service, monkeypatch)
    with pytest.raises(Problem) as caught:
        asyncio.run(service.classify(uploads * 4, 1, False))
    assert caught.value.title == "Too busy"
    gate.set()


def test_large_images_hold_up_nobody_else(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker is at a large image that takes its time, and more of them wait: a small one is answered."""
    service = service_of(workers=2, limits={"queue_timeout_s": 60})
    gate, view = threading.Event(), service.decoders.view
    large = Upload(b"large" + uploads[0].data)

    def watched(data: bytes, settings: Any, label: str, most: float, wait: float) -> Any:
        if data == large.data:
            if most < 1e9:
                raise Large
            gate.wait(20)
        return view(data.removeprefix(b"large"), settings, label)

    monkeypatch.setattr(service.decoders, "view", watched)

    async def scene() -> None:
        slow = [asyncio.create_task(service.classify([large], 1, False)) for _ in range(6)]
        await asyncio.sleep(0.2)
        for _ in range(3):
            assert (await service.classify(uploads[:1], 1, False))[1][0].found.best.name == "red"
        gate.set()
        assert {found[0].found.best.name for _, found in await asyncio.gather(*slow)} == {"red"}

    asyncio.run(scene())


def test_one_image_is_not_behind_a_form(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(workers=1)
    order, run, gate = [], service._run, threading.Event()

    def noted(jobs: Any) -> Any:
        gate.wait(20)
        order.append(jobs[0].top_k)
        return run(jobs)

    monkeypatch.setattr(service, "_run", noted)

    async def scene() -> None:
        form = asyncio.create_task(service.classify(uploads * 4, 1, False))
        await asyncio.sleep(0.1)
        single = asyncio.create_task(service.classify(uploads[:1], 2, False))
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(form, single)

    asyncio.run(scene())
    assert order.index(2) == 1


def test_no_memory_in_time_is_a_503(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of()

    def none(*_: object) -> None:
        raise NoMemory

    monkeypatch.setattr(service.decoders, "view", none)
    with pytest.raises(Problem) as caught:
        asyncio.run(service.classify(uploads, 1, False))
    assert caught.value.status == 503 and "Retry-After" in caught.value.headers
    assert service._places == 0


def test_a_worker_that_hangs_is_noticed_when_nobody_waits_any_more(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(limits={"request_timeout_s": 0.1})
    gate = gated(service, monkeypatch)
    with pytest.raises(Problem):
        asyncio.run(service.classify(uploads[:1], 1, False))
    assert service._places == 0
    before = service.stuck_for()
    time.sleep(0.05)
    assert service.stuck_for() > before > 0 and service.why_not_ready() is None
    monkeypatch.setattr("partgcd.serving.service._SLOW_S", -9.0)
    assert "finished no image" in str(service.why_not_ready())
    gate.set()


def test_closing_waits_for_nothing_that_hangs(
    service_of: ServiceOf, uploads: list[Upload], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(limits={"request_timeout_s": 0.1})
    gate = gated(service, monkeypatch)

    async def scene() -> None:
        with pytest.raises(Problem):
            await service.classify(uploads[:1], 1, False)
        await asyncio.wait_for(service.close(), 8)

    asyncio.run(scene())
    assert service.why_not_ready() == "the server is stopping"
    gate.set()
