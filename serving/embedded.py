"""The embedded server: uvicorn in this process, with what uvicorn leaves to a proxy in front of it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from partgcd.config.errors import UserError
from partgcd.serving.app import build_app
from partgcd.serving.connections import HEADER_BYTES, connection_class, sweep
from partgcd.serving.logs import stderr_as_json
from partgcd.serving.metrics import Metrics
from partgcd.serving.service import Service
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import open_source

DRAIN_S = 20
"""How long requests in hand may take after a signal to stop."""

END_S = 25.0
"""After so long a stop is over, whatever still runs. Orchestrators kill after 30."""

_log = logging.getLogger("partgcd.serving")


def serve(settings: ServeSettings, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in hand are answered first. A second signal ends at once.

    Args:
        port: 0 takes a free one.
        ready: called with the address once requests are answered.

    Raises:
        UserError: the model can't be loaded, or the address can't be listened at.
    """
    listener = listen(host, port)
    try:
        with stderr_as_json():
            service = Service(settings, open_source(settings), Metrics())
            try:
                service.decoders.start(service.workers)  # they load what they need while the model is loaded
                service.holder.start()
                service.decoders.wait_ready()
                server = uvicorn.Server(configuration(service))
                server.handle_exit = _stopping(server, service)  # type: ignore[method-assign, assignment]
                asyncio.run(_run(server, service, listener, ready))
            finally:
                service.decoders.close()
    finally:
        listener.close()


def configuration(service: Service) -> uvicorn.Config:
    """How uvicorn runs the service's app."""
    # Of uvicorn's parsers only h11 limits what a request's header may take; beside a model its cost is nothing.
    return uvicorn.Config(
        build_app(service), http=connection_class(service.settings.limits, service.metrics),
        h11_max_incomplete_event_size=HEADER_BYTES, ws="none", lifespan="on",
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


def _stopping(server: uvicorn.Server, service: Service) -> Callable[[int, FrameType | None], None]:
    """What happens on a signal: the first one stops, the second one ends."""

    def end(code: int, why: str) -> None:
        _log.error(why)
        service.decoders.close()
        os._exit(code)  # threads in C code can't be ended in any other way

    def handle(number: int, frame: FrameType | None) -> None:
        if server.should_exit:
            end(130, "ended at once by a second signal")
        server.should_exit = True
        clock = threading.Timer(END_S, end, (1, f"what was in hand did not end within {END_S:g} s"))
        clock.daemon = True
        clock.start()

    return handle


async def _run(
    server: uvicorn.Server, service: Service, listener: socket.socket, ready: Callable[[str], None]
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    sweeping = asyncio.create_task(sweep(server, service.settings.limits))
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
