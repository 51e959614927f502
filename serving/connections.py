"""Connections of the embedded server: what uvicorn leaves to a proxy in front of it, and its own errors as problems."""

from __future__ import annotations

import asyncio
import http
import logging
import sys
import time
import uuid
from collections import Counter
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from partgcd.data.names import printable
from partgcd.serving.guard import CAREFUL
from partgcd.serving.metrics import Metrics
from partgcd.serving.problems import Problem
from partgcd.serving.settings import Limits

IDLE_S = 20.0
"""How long a connection may do nothing: send no whole header, or not read its answer."""

HEADER_BYTES = 65_536
"""Size of a request's header at most."""

_log = logging.getLogger("partgcd.serving")


def connection_class(limits: Limits, metrics: Metrics) -> type[H11Protocol]:
    """uvicorn's connection, with a limit for each client's address and problem documents for what is no HTTP."""
    open_of: Counter[str] = Counter()

    class Connection(H11Protocol):
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = self._peer()
            open_of[peer] += 1
            if open_of[peer] > limits.max_connections_each:
                self._refuse(Problem(
                    429, "Too many connections",
                    f"your address has {limits.max_connections_each} connections already", "close some",
                    limit=limits.max_connections_each, retry_after=1, close=True,
                ))  # fmt: skip

        def connection_lost(self, exc: Exception | None) -> None:
            open_of[self._peer()] -= 1
            if open_of[self._peer()] <= 0:
                del open_of[self._peer()]
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Called where h11 can't go on with what the client sends."""
            self._refuse(_malformed(sys.exc_info()[1]))
            if self.cycle is not None:  # its body ends here
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def _peer(self) -> str:
            return self.client[0] if self.client else ""

        def _refuse(self, problem: Problem) -> None:
            request_id = uuid.uuid4().hex
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                response = problem.response(request_id)
                told = {**CAREFUL, "X-Request-Id": request_id, "Connection": "close"}
                response.headers.update(told)
                reason = http.HTTPStatus(problem.status).phrase.encode()
                headers = [*self.server_state.default_headers, *response.raw_headers]
                for event in (
                    h11.Response(status_code=problem.status, headers=headers, reason=reason),
                    h11.Data(data=bytes(response.body)),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
                if self.cycle is not None:
                    self.cycle.response_started = self.cycle.response_complete = True
            self.transport.close()
            status = str(problem.status)
            metrics.record("partgcd_rejected_total", reason=problem.title)
            metrics.record("partgcd_requests_total", route="other", method="OTHER", status=status)
            fields = {"request_id": request_id, "client": self._peer(), "status": problem.status}
            _log.info("refused", extra={"fields": fields | {"reason": problem.title}})

    return Connection


async def sweep(server: uvicorn.Server, limits: Limits) -> None:
    """Close connections that hold a place and do nothing; uvicorn itself waits for a header for ever."""
    since: dict[int, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(min(1.0, IDLE_S / 4))
        now = time.monotonic()
        connections = list(server.server_state.connections)
        states = {id(each): (each, _waiting_for(each)) for each in connections}
        since = {
            key: (state, since[key][1] if key in since and since[key][0] == state else now)
            for key, (_, state) in states.items()
            if state is not None
        }
        idle = sorted((began, key) for key, (_, began) in since.items())
        too_many = max(0, len(connections) - limits.max_connections)
        for place, (began, key) in enumerate(idle):
            if now - began > IDLE_S or place < too_many:
                states[key][0].transport.abort()


def _malformed(error: BaseException | None) -> Problem:
    if getattr(error, "error_status_hint", 400) == 431:
        return Problem(
            431, "Header too large", f"the request's header is larger than {HEADER_BYTES} bytes",
            "send fewer or shorter headers", limit=HEADER_BYTES, close=True,
        )  # fmt: skip
    told = f": {printable(str(error))[:100]}" if error is not None else ""
    return Problem(
        400, "Malformed request", f"this is no HTTP/1.1{told}",
        "send a whole HTTP/1.1 request; this port speaks no TLS", close=True,
    )  # fmt: skip


def _waiting_for(connection: Any) -> tuple[str, int] | None:
    """What a connection waits for its client to do, with the request it belongs to; None while we work."""
    cycle = connection.cycle
    if cycle is None or cycle.response_complete:
        return "header", id(cycle)
    if cycle.response_started:
        return "reading", id(cycle)
    return None
