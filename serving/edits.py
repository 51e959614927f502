"""Changes that people make through the API: one after the other, aside from answering, and never waited for long."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from partgcd.config.errors import UserError
from partgcd.serving.holder import ModelHolder
from partgcd.serving.problems import Problem

WAIT_S = 1.5
"""How long another process that changes the registry is waited for."""

_LATE_S = 0.5
_MOST = 4
_BUSY = 75


class Changes:
    """Writes changes of classes into the source of a holder. Its thread is its own: a held lock blocks nobody else."""

    def __init__(self, holder: ModelHolder) -> None:
        self._holder = holder
        self._thread = ThreadPoolExecutor(1, "changes")
        self._room = threading.Semaphore(_MOST)

    async def rename(self, class_id: str, name: str) -> None:
        """Rename a class, and have it answered so.

        Raises:
            Problem: the name can't be one, or another class has it; the registry is busy, or there is none.
        """
        if not self._room.acquire(blocking=False):
            raise _busy("other changes wait already")
        until = time.monotonic() + WAIT_S
        try:
            work = self._thread.submit(self._write, class_id, name, until)
        except RuntimeError:  # the server stops
            self._room.release()
            raise _busy("the server stops") from None
        work.add_done_callback(lambda _: self._room.release())
        await self._finished(work)
        # The next look sees it as well: where a model is being loaded right now, that is not waited for.
        look = asyncio.ensure_future(asyncio.to_thread(self._holder.refresh, _LATE_S))
        await asyncio.wait([look], timeout=_LATE_S)

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _finished(self, work: Future[None]) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(work)), WAIT_S + _LATE_S)
        except TimeoutError:
            work.cancel()
            raise _busy("its disk answers slowly; look whether the change was made") from None
        except UserError as error:
            raise _problem(error) from error

    def _write(self, class_id: str, name: str, until: float) -> None:
        source = self._holder.source
        assert source is not None
        source.rename(class_id, name, max(0.0, until - time.monotonic()))


def _problem(error: UserError) -> Problem:
    from partgcd.registry.naming import InvalidName, NameTaken

    if isinstance(error, InvalidName):
        return Problem(422, "Invalid name", str(error), "send a name that people can read")
    if isinstance(error, NameTaken):
        return Problem(409, "Name taken", str(error), "choose another name")
    if error.code == _BUSY:
        return _busy("another process changes it")
    return Problem(409, "Not renamed", str(error), "see the detail")


def _busy(why: str) -> Problem:
    return Problem(503, "Registry busy", f"the registry is busy: {why}", "try again later", retry_after=2)
