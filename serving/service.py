"""What answers, apart from HTTP: the model, its queue and its threads, the counts and the inbox."""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.data.decode import BrokenImage, decode
from partgcd.export.predictor import Answer, Failure, Predictor
from partgcd.export.session import usable_cpus
from partgcd.serving.body import Buffered, Upload
from partgcd.serving.holder import ModelHolder
from partgcd.serving.inbox import Inbox
from partgcd.serving.metrics import Metrics
from partgcd.serving.problems import Problem
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import Source


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
        self.buffered = Buffered(settings.limits.max_buffered_mb * 1e6)
        self.inbox = Inbox(settings.collect, metrics) if settings.collect is not None else None
        self.draining = False
        self._pool = ThreadPoolExecutor(self.workers, "classify")
        self._runner = runner
        self._places = 0
        self._pace = 0.05  # seconds an image, a moving mean
        self._finished = 0.0
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to follow the source."""
        self._following = asyncio.create_task(self.holder.follow(self.settings.poll_s))

    async def close(self) -> None:
        """Stop following, finish what runs, write what the inbox accepted."""
        self.draining = True
        if self._following is not None:
            self._following.cancel()
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        if self.inbox is not None:
            await asyncio.to_thread(self.inbox.close)

    def predictor(self) -> Predictor:
        """The model that answers. Raises Problem where there is none."""
        found = self.holder.predictor
        if found is None:
            refused = self.holder.refused
            told = f": {refused.error}" if refused else ""
            raise Problem(
                503,
                "Not ready",
                f"no model is loaded{told}",
                "try again later; /readyz says when",
                retry_after=5,
            )
        return found

    def check_room(self, images: int = 1) -> None:
        """Raises Problem where ``images`` more do not fit into the queue."""
        most = self.settings.limits.max_queue
        if self._places + images > most:
            seconds = math.ceil(self._places * self._pace / self.workers)
            raise Problem(
                429, "Too many images", f"{self._places} images are waiting, the queue holds {most}",
                "try again later", limit=most, retry_after=min(max(seconds, 1), 60),
            )  # fmt: skip

    async def classify(
        self, uploads: Sequence[Upload], top_k: int, explain: bool
    ) -> tuple[str, list[Result]]:
        """The model's version and a result for every upload, in order; all by one model.

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
        seconds = self.settings.limits.request_timeout_s
        if self._places == 0:
            self._finished = time.monotonic()
        self._take_places(len(uploads))
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(predictor, each, top_k, explain)) for each in uploads]
        except TimeoutError as error:
            raise Problem(
                503,
                "Out of time",
                f"no answer within {seconds:g} s",
                "try again later",
                limit=seconds,
                retry_after=5,
            ) from error
        finally:
            self._take_places(-len(uploads))
        return predictor.version, [task.result() for task in tasks]

    async def _one(self, predictor: Predictor, upload: Upload, top_k: int, explain: bool) -> Result:
        loop, submitted = asyncio.get_running_loop(), time.perf_counter()
        if self._runner is None:
            work = partial(self._whole, predictor, upload, top_k, explain, submitted)
            result = await loop.run_in_executor(self._pool, work)
        else:
            prepared = await loop.run_in_executor(
                self._pool, self._prepare, predictor, upload.data, submitted
            )
            self._finished = time.monotonic()
            if isinstance(prepared, Failure):
                result = Result(upload, prepared)
            else:
                answer = await self._runner(Job(predictor, prepared, top_k, explain))
                result = await loop.run_in_executor(self._pool, self._drawn, upload, answer)
        self._finished = time.monotonic()
        self._count(result)
        return result

    def _count(self, result: Result) -> None:
        if isinstance(result.found, Failure):
            self.metrics.record("partgcd_images_total", outcome="broken")
            return
        self.metrics.record("partgcd_images_total", outcome="novel" if result.found.novel else "familiar")
        self.metrics.record("partgcd_assigned_total", class_id=result.found.best.id)
        if self.inbox is not None:
            self.inbox.offer(result.upload.data, result.found)

    def _whole(
        self, predictor: Predictor, upload: Upload, top_k: int, explain: bool, submitted: float
    ) -> Result:
        """All of an image's work in one thread."""
        prepared = self._prepare(predictor, upload.data, submitted)
        if isinstance(prepared, Failure):
            return Result(upload, prepared)
        return self._drawn(upload, self._run([Job(predictor, prepared, top_k, explain)])[0])

    def _prepare(self, predictor: Predictor, data: bytes, submitted: float) -> NDArray[np.uint8] | Failure:
        began = time.perf_counter()
        self.metrics.phase("wait", began - submitted)
        try:
            # The server's limit of pixels, which may be lower than the one the model was trained with.
            image = decode(data, self.settings.limits.max_megapixels)
            return predictor.prepare(np.asarray(image))
        except BrokenImage as broken:
            return Failure(broken.reason, predictor.version)
        finally:
            self.metrics.phase("decode", time.perf_counter() - began)

    async def run_in_pool(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answers for several jobs, in one run of the graph for those of one model."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, jobs)

    def stuck_for(self) -> float:
        """Seconds since an image was finished, while any is held; 0 while none is."""
        return time.monotonic() - self._finished if self._places else 0.0

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
        self._pace += 0.1 * (seconds / len(jobs) - self._pace)
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


def _load(threads: int, alone: int, settings: ServeSettings, path: Path) -> tuple[Predictor, ...]:
    """The predictor for when every worker is busy and, if that differs, the one for an image that is alone."""
    return tuple(Predictor.load(path, each, settings.provider) for each in dict.fromkeys((threads, alone)))
