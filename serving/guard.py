"""The gate before every request: who may ask, from where, under what id; and what is logged and counted of it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partgcd.serving.metrics import Metrics
from partgcd.serving.problems import Problem
from partgcd.serving.settings import ServeSettings

HEALTH = ("/healthz", "/readyz")
"""Paths that orchestrators ask, by address and without a key."""

CHANGES = ("POST", "PUT", "PATCH", "DELETE")
GONE = 499

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_log = logging.getLogger("partgcd.serving")


@dataclass
class _Seen:
    """What is known of a request when it ends."""

    began: float = field(default_factory=time.perf_counter)
    status: int = 0
    started: bool = False


class Guard:
    """ASGI middleware. Whatever goes wrong below it ends as a problem document, with the request's id in the log.

    ``tell_id`` is off where something in front of the app puts the id on the answer.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, tell_id: bool = True) -> None:
        self._app, self._metrics, self._tell_id = app, metrics, tell_id
        self._hosts = {host_name(each) for each in settings.allow_hosts}
        self._any_host = "*" in settings.allow_hosts
        self._key = None if settings.api_key is None else _digest(settings.api_key.get_secret_value())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope["partgcd.request_id"] = request_id
        seen = _Seen()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status, seen.started = message["status"], True
                answer = MutableHeaders(scope=message)
                if self._tell_id:
                    answer["X-Request-Id"] = request_id
                for name, value in _HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        try:
            problem = self._refusal(scope, headers)
            if problem is not None:
                await problem.response(request_id)(scope, receive, named)
            else:
                await self._app(scope, receive, named)
        except ClientDisconnect:
            seen.status = seen.status or GONE
        except Exception:
            _log.exception("request failed", extra={"fields": {"request_id": request_id}})
            if not seen.started:
                await _failed().response(request_id)(scope, receive, named)
        finally:
            self._finish(scope, seen, request_id)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        if scope["path"] in HEALTH:
            return None
        host = headers.get("host", "")
        if not self._any_host and host_name(host) not in self._hosts:
            return Problem(
                421, "Unknown host", "this server does not answer to the request's Host header",
                "use an address it was started for, or start it with --allow-host NAME",
            )  # fmt: skip
        change = scope["method"] in CHANGES
        origin = headers.get("origin")
        if change and origin is not None and not self._own_origin(origin, host):
            return Problem(
                403,
                "Foreign origin",
                "a page of another site sent this request",
                "send it from this server's own page",
            )
        if scope["method"] == "PATCH" and self._key is None:
            return Problem(
                403, "Changes are off", "this server was started without an API key, which changes need",
                "start it with --api-key, or with PARTGCD_API_KEY in its environment",
            )  # fmt: skip
        if self._key is not None and not any(
            hmac.compare_digest(_digest(each), self._key) for each in _keys(headers)
        ):
            return Problem(
                401, "No valid key", "this server asks for an API key",
                "send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
                headers={"WWW-Authenticate": 'Basic realm="partgcd: any name, the API key as password"'},
            )  # fmt: skip
        return None

    def _own_origin(self, origin: str, host: str) -> bool:
        name = origin.partition("://")[2]
        return bool(name) and (
            name.lower() == host.lower() or self._any_host or host_name(name) in self._hosts
        )

    def _finish(self, scope: Scope, seen: _Seen, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", "other")
        seconds = time.perf_counter() - seen.began
        status = seen.status or 500
        method = scope["method"] if scope["method"] in ("GET", "HEAD", *CHANGES) else "OTHER"
        self._metrics.record("partgcd_requests_total", route=route, method=method, status=str(status))
        self._metrics.record("partgcd_request_seconds", seconds, route=route)
        quiet = route in (*HEALTH, "/metrics") and status < 400
        fields = {
            "request_id": request_id,
            "client": (scope.get("client") or ("",))[0],
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
        } | scope.get("partgcd.log", {})
        _log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case; '' for what is no host."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(:\d{1,5})?", host) or re.fullmatch(
        r"([0-9a-fA-F:.]*:[0-9a-fA-F:.]*)()", host
    )
    return match[1].strip("[]").rstrip(".").lower() if match else ""


def _keys(headers: Headers) -> Iterable[str]:
    """Every key that a request brings; a browser sends it as a password."""
    if "x-api-key" in headers:
        yield headers["x-api-key"]
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        yield value.strip()
    elif kind.lower() == "basic":
        try:
            yield base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return


def _digest(text: str) -> bytes:
    """Of one length, so that comparing tells nothing about the key's."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _failed() -> Problem:
    return Problem(
        500, "Internal error", "the request failed; the server's log says why", "report the request_id"
    )
