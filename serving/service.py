"""What answers, apart from HTTP: the model, its queue and its threads, the counts and the inbox."""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from partgcd.decoding.begun import BrokenImage
from partgcd.export.predictor import Answer, Failure, Predictor
from partgcd.export.session import usable_cpus
from partgcd.serving.body import Buffered, Upload
from partgcd.serving.decode_budget import Large, NoMemory
from partgcd.serving.decoders import make_decoders
from partgcd.serving.edits import Changes
from partgcd.serving.holder import ModelHolder
from partgcd.serving.inbox import Inbox
from partgcd.serving.metrics import Metrics
from partgcd.serving.problems import Problem
from partgcd.serving.settings import Limits, ServeSettings
from partgcd.serving.sources import Source
from partgcd.serving.turns import Asking, Turns

T = TypeVar("T")

STUCK_S = 60.0
"""A server of which a worker has been at one image for so long, or has finished none, is to be started again."""

LARGE = 80e6
"""Bytes of memory above which an image waits its turn among large ones: a JPEG of 13 megapixels has so many."""

_SLOW_S = 6.5
_LOOK_S = 0.5
_CLOSE_S = 3.0


@dataclass(frozen=True)
class Job:
    """One prepared image [3, S, S] and what is asked about it."""

    predictor: Predictor
    pixels: NDArray[np.uint8]
    top_k: int
    explain: bool


Runner = Callable[[Job], Awaitable[Answer]]
"""How a job gets its answer together with others: on a GPU, where batches pay."""


@dataclass(frozen=True)
class Result:
    """The answer for one upload; ``drawing`` is a PNG where an explanation was asked for."""

    upload: Upload
    found: Answer | Failure
    drawing: bytes | None = None


class Service:
    """One server's model and all that surrounds it. Made in any thread, used by one event loop.

    Args:
        settings: the server's.
        source: where models come from; None until somebody tells the holder.
        metrics: what is counted.
        runner: see `Runner`; None does an image's whole work in one thread.
    """

    def __init__(
        self, settings: ServeSettings, source: Source | None, metrics: Metrics, runner: Runner | None = None
    ) -> None:
        self.settings, self.metrics = settings, metrics
        cpus = settings.cpus or usable_cpus()
        self.workers = settings.workers or cpus
        threads = settings.threads or max(1, cpus // self.workers)
        # Threads of one run gain little where every CPU has an image, and much where there is only one.
        alone = threads if settings.threads or settings.provider == "cuda" else cpus
        self.holder = ModelHolder(source, partial(_load, threads, alone, settings))
        self.holder.on_change = self._changed
        self.changes = Changes(self.holder)
        limits = settings.limits
        self.buffered = Buffered(limits.max_buffered_mb * 1e6, limits.max_body_mb * 1e6)
        self.decoders = make_decoders(limits, metrics)
        self.inbox = Inbox(settings.collect, metrics) if settings.collect is not None else None
        self.draining = False
        # Two lanes: whoever sends large images, or what takes long by being large, holds up nobody else.
        self._turns, self._large = Turns(self.workers), Turns(self.workers)
        # Turns say how many images are worked on; what a batch on a GPU needs besides never waits for a decoder.
        self._pool = ThreadPoolExecutor(4 * self.workers, "classify")
        self._runner = runner
        self._places = 0
        self._pace = 0.05  # seconds an image, a moving mean
        self._finished = 0.0
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to follow the source."""
        self._following = asyncio.create_task(self.holder.follow(self.settings.poll_s))

    async def close(self) -> None:
        """Stop following, end what still runs, write what the inbox accepted."""
        self.draining = True
        if self._following is not None:
            self._following.cancel()
        self.decoders.close()
        self.changes.close()
        self._pool.shutdown(wait=False, cancel_futures=True)  # whoever waited for it has gone
        if self.inbox is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self.inbox.close), _CLOSE_S)

    def predictor(self) -> Predictor:
        """The model that answers. Raises Problem where there is none."""
        found = self.holder.predictor
        if found is None:
            raise Problem(
                503, "Not ready", "no model is loaded; the server's log says why",
                "try again later; /readyz says when", retry_after=5,
            )  # fmt: skip
        return found

    def check_room(self, images: int = 1) -> None:
        """Raises Problem where ``images`` more do not fit into the queue."""
        most = self.settings.limits.max_queue
        if self._places + images > most:
            raise Problem(
                429, "Too many images", f"{self._places} images are waiting, the queue holds {most}",
                "try again later", limit=most, retry_after=self._later(),
            )  # fmt: skip

    async def classify(
        self, uploads: Sequence[Upload], top_k: int, explain: bool, asking: Asking | None = None
    ) -> tuple[str, list[Result]]:
        """The model's version and a result for every upload, in order; all by one model.

        Args:
            asking: who asks, for the workers are shared out.

        Raises:
            Problem: no model, no room, nothing to explain, or no answer in time.
        """
        predictor = self.predictor()
        if len(uploads) == 1 and self._places == 0:
            predictor = self.holder.predictors[-1]  # nothing else wants the CPUs
        if explain and not predictor.has_parts:
            raise Problem(
                422, "Nothing to explain", "this model's method has no parts to draw", "leave explain out"
            )
        self.check_room(len(uploads))
        limits, asking = self.settings.limits, asking or Asking()
        asking.images = len(uploads)
        if self._places == 0:
            self._finished = time.monotonic()
        self._take_places(len(uploads))
        try:
            async with asyncio.timeout(limits.request_timeout_s) as clock, asyncio.TaskGroup() as group:
                hurry = group.create_task(_give_up(asking, limits, clock))
                tasks = [
                    group.create_task(self._one(predictor, each, top_k, explain, asking)) for each in uploads
                ]
                await asyncio.wait(tasks)
                hurry.cancel()
        except TimeoutError as error:
            if asking.given_up:
                raise self._late("Too busy", limits.queue_timeout_s, "the workers were busy for") from error
            raise self._late("Out of time", limits.request_timeout_s, "no answer within") from error
        except ExceptionGroup as group_of_errors:
            if group_of_errors.subgroup(NoMemory) is None:
                raise
            raise self._late("Too busy", limits.queue_timeout_s, "no memory to decode was free for") from None
        finally:
            self._take_places(-len(uploads))
        return predictor.version, [task.result() for task in tasks]

    def _late(self, title: str, seconds: float, what: str) -> Problem:
        return Problem(
            503, title, f"{what} {seconds:g} s", "try again later", limit=seconds, retry_after=self._later()
        )

    def _later(self) -> int:
        """Seconds after which what waits now will have been worked off, 1 to 60."""
        return min(max(math.ceil(self._places * self._pace / self.workers), 1), 60)

    async def _one(
        self, predictor: Predictor, upload: Upload, top_k: int, explain: bool, asking: Asking
    ) -> Result:
        submitted = time.perf_counter()
        prepare = partial(self._prepare, predictor, upload, asking, submitted)
        if self._runner is None:
            result = await self._in_lanes(
                asking, lambda most: self._whole(predictor, upload, top_k, explain, prepare(most))
            )
        else:
            prepared = await self._in_lanes(asking, prepare)
            if isinstance(prepared, Failure):
                result = Result(upload, prepared)
            else:
                answer = await self._runner(Job(predictor, prepared, top_k, explain))
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._pool, self._drawn, upload, answer)
        self._finished = time.monotonic()
        asking.done += 1
        self._count(result)
        return result

    async def _in_lanes(self, asking: Asking, work: Callable[[float], T]) -> T:
        """What ``work`` gives, in its turn. It is called with the bytes of memory that decoding may need."""
        try:
            return await self._in_turn(self._turns, asking, partial(work, LARGE))
        except Large:
            asking.begun -= 1
            return await self._in_turn(self._large, asking, partial(work, math.inf))

    async def _in_turn(self, turns: Turns, asking: Asking, work: Callable[[], T]) -> T:
        """What ``work`` gives in a thread, which keeps its turn until it ends, whoever still waits for it."""
        turn = await turns.take(asking)

        def ended(_: object) -> None:
            seconds = turns.give_back(turn)
            self._pace += 0.1 * (seconds - self._pace)
            self._finished = time.monotonic()

        try:
            running = self._pool.submit(work)
        except RuntimeError:  # closed
            ended(None)
            raise
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def _count(self, result: Result) -> None:
        if isinstance(result.found, Failure):
            self.metrics.record("partgcd_images_total", outcome="broken")
            return
        self.metrics.record("partgcd_images_total", outcome="novel" if result.found.novel else "familiar")
        self.metrics.record("partgcd_assigned_total", class_id=result.found.best.id)
        if self.inbox is not None:
            self.inbox.offer(result.upload.data, result.found)

    def _whole(
        self,
        predictor: Predictor,
        upload: Upload,
        top_k: int,
        explain: bool,
        prepared: NDArray[np.uint8] | Failure,
    ) -> Result:
        if isinstance(prepared, Failure):
            return Result(upload, prepared)
        return self._drawn(upload, self._run([Job(predictor, prepared, top_k, explain)])[0])

    def _prepare(
        self, predictor: Predictor, upload: Upload, asking: Asking, submitted: float, most: float
    ) -> NDArray[np.uint8] | Failure:
        began = time.perf_counter()
        settings, limits = predictor.manifest.preprocessing.settings(), self.settings.limits
        wait = asking.patience(limits.queue_timeout_s, limits.request_timeout_s)
        found: NDArray[np.uint8] | Failure
        try:
            # By the server's limit of pixels, which may be lower than the one the model was trained with.
            found = self.decoders.view(upload.data, settings, asking.request_id, most, wait)
        except BrokenImage as broken:
            found = Failure(broken.reason, predictor.version)
        self.metrics.phase("wait", began - submitted)
        self.metrics.phase("decode", time.perf_counter() - began)
        return found

    async def run_in_pool(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answers for several jobs, in one run of the graph for those of one model."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, jobs)

    def stuck_for(self) -> float:
        """Seconds since an image was finished, while any is held; or that a worker has been at one image."""
        waited = time.monotonic() - self._finished if self._places else 0.0
        return max(waited, self._turns.longest(), self._large.longest())

    def why_not_ready(self) -> str | None:
        """Why requests are not answered; None where they are."""
        if self.draining:
            return "the server is stopping"
        if self.holder.predictor is None:
            return "no model is loaded"
        limits = self.settings.limits
        if self.stuck_for() > limits.decode_timeout_s + limits.queue_timeout_s + _SLOW_S:
            return f"a worker has finished no image for {self.stuck_for():.0f} s"
        return None

    def _run(self, jobs: Sequence[Job]) -> list[Answer]:
        began = time.perf_counter()
        answers: dict[int, Answer] = {}
        for predictor in {id(job.predictor): job.predictor for job in jobs}.values():
            own = [place for place, job in enumerate(jobs) if job.predictor is predictor]
            found = predictor.answer(
                np.stack([jobs[place].pixels for place in own]),
                max(jobs[place].top_k for place in own),
                any(jobs[place].explain for place in own),
            )
            self.metrics.record("partgcd_batch_images", len(own))
            for place, answer in zip(own, found, strict=True):
                job = jobs[place]
                answers[place] = replace(
                    answer, top=answer.top[: job.top_k], overlay=answer.overlay if job.explain else None
                )
        seconds = time.perf_counter() - began
        self.metrics.phase("predict", seconds)
        return [answers[place] for place in range(len(jobs))]

    def _drawn(self, upload: Upload, answer: Answer) -> Result:
        if answer.overlay is None:
            return Result(upload, answer)
        began = time.perf_counter()
        file = io.BytesIO()
        answer.overlay.save(file, "PNG")
        self.metrics.phase("draw", time.perf_counter() - began)
        return Result(upload, answer, file.getvalue())

    def _take_places(self, count: int) -> None:
        self._places += count
        self.metrics.record("partgcd_queue_images", self._places)

    def _changed(self, what: str) -> None:
        if what != "gone":
            self.metrics.record("partgcd_model_changes_total", result=what)
        self.metrics.record("partgcd_candidate_refused", float(what == "refused"))
        if what == "taken":
            self.metrics.serve_version(self.predictor().version)


async def _give_up(asking: Asking, limits: Limits, clock: asyncio.Timeout) -> None:
    """End a request that has had no turn by then, or of whose images so few are done that it would run out of time.

    It is told so at once, rather than kept behind others for long.
    """
    await asyncio.sleep(limits.queue_timeout_s)
    share = limits.queue_timeout_s / limits.request_timeout_s
    if asking.images == 1 or asking.done >= share * asking.images:
        while asking.begun:
            await asyncio.sleep(_LOOK_S)
    asking.given_up = True
    clock.reschedule(asyncio.get_running_loop().time())


def _load(threads: int, alone: int, settings: ServeSettings, path: Path) -> tuple[Predictor, ...]:
    """The predictor for when every worker is busy and, if that differs, the one for an image that is alone."""
    return tuple(Predictor.load(path, each, settings.provider) for each in dict.fromkeys((threads, alone)))
