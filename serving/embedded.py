"""The embedded server: uvicorn in this process, with what uvicorn leaves to a proxy in front of it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from partgcd.config.errors import UserError
from partgcd.serving.app import build_app
from partgcd.serving.metrics import Metrics
from partgcd.serving.service import Service
from partgcd.serving.settings import Limits, ServeSettings
from partgcd.serving.sources import open_source

IDLE_S = 20.0
"""How long a connection may do nothing: send no whole header, or not read its answer."""

HEADER_BYTES = 65_536
"""Size of a request's header at most."""

DRAIN_S = 30
"""How long requests in hand may take after a signal to stop."""

_log = logging.getLogger("partgcd.serving")


def serve(settings: ServeSettings, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in hand are answered first.

    Args:
        port: 0 takes a free one.
        ready: called with the address once requests are answered.

    Raises:
        UserError: the model can't be loaded, or the address can't be listened at.
    """
    listener = listen(host, port)
    try:
        service = Service(settings, open_source(settings), Metrics())
        service.holder.start()
        server = uvicorn.Server(configuration(service))
        with _calm_signals():
            asyncio.run(_run(server, service, listener, ready))
    finally:
        listener.close()


def configuration(service: Service) -> uvicorn.Config:
    """How uvicorn runs the service's app."""
    # Of uvicorn's parsers only h11 limits what a request's header may take; beside a model its cost is nothing.
    return uvicorn.Config(
        build_app(service), http="h11", h11_max_incomplete_event_size=HEADER_BYTES, ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=15, timeout_graceful_shutdown=DRAIN_S,
    )  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: the name is unknown, or the port is taken or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise UserError(
            f"can't listen at {host}:{port} ({error.strerror or error}): choose another --port or --host", 1
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """http://... of a listening socket, as people of this machine reach it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _run(
    server: uvicorn.Server, service: Service, listener: socket.socket, ready: Callable[[str], None]
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    sweeping = asyncio.create_task(_sweep(server, service.settings.limits))
    announcing = asyncio.create_task(_announce(server, service, listener, ready))
    try:
        await serving
    finally:
        sweeping.cancel()
        announcing.cancel()


async def _announce(
    server: uvicorn.Server, service: Service, listener: socket.socket, ready: Callable[[str], None]
) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready(address_of(listener))
    while not server.should_exit:
        await asyncio.sleep(0.1)
    service.draining = True
    _log.info("stopping", extra={"fields": {"connections": len(server.server_state.connections)}})


async def _sweep(server: uvicorn.Server, limits: Limits) -> None:
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


def _waiting_for(connection: Any) -> tuple[str, int] | None:
    """What a connection waits for its client to do, with the request it belongs to; None while we work."""
    cycle = connection.cycle
    if cycle is None or cycle.response_complete:
        return "header", id(cycle)
    if cycle.response_started:
        return "reading", id(cycle)
    return None


@contextmanager
def _calm_signals() -> Iterator[None]:
    """uvicorn raises the signal again that it has handled; by then there is nothing left to stop."""
    kept = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
