"""The gate before every request: who may ask, from where, under what id; and what is logged and counted of it."""

from __future__ import annotations

import asyncio
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
CAREFUL = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PORTS = {"http": 80, "https": 443}
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
        self._origins = {each.lower() for each in settings.allow_origins}
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
        # HEAD is GET without the body (RFC 9110, 9.3.2): what is below need not know.
        bare = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET"} if bare else scope
        inner["partgcd.request_id"] = request_id
        seen = _Seen()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status, seen.started = message["status"], True
                answer = MutableHeaders(scope=message)
                if self._tell_id:
                    answer["X-Request-Id"] = request_id
                for name, value in CAREFUL.items():
                    answer.setdefault(name, value)
            elif bare and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            inner["partgcd.keyed"] = self._keyed(headers)
            problem = self._refusal(inner, headers)
            if problem is not None:
                await problem.answer(inner, receive, named)
            else:
                await self._app(inner, receive, named)
        except ClientDisconnect:
            seen.status = seen.status or GONE
        except asyncio.CancelledError:  # the server stops, and waits no longer
            if not seen.started:
                await _stopping().answer(inner, receive, named)
        except Exception:
            _log.exception("request failed", extra={"fields": {"request_id": request_id}})
            if not seen.started:
                await _failed().answer(inner, receive, named)
        finally:
            self._finish(inner, seen, request_id, scope["method"])

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
        if change and origin is not None and not self._own_origin(origin, host, scope.get("scheme", "http")):
            return Problem(
                403, "Foreign origin", "a page of another site sent this request",
                "send it from this server's own page, or start the server with --allow-origin",
            )  # fmt: skip
        if scope["method"] == "PATCH" and self._key is None:
            return Problem(
                403, "Changes are off", "this server was started without an API key, which changes need",
                "start it with --api-key, or with PARTGCD_API_KEY in its environment",
            )  # fmt: skip
        if self._key is not None and not scope["partgcd.keyed"]:
            return Problem(
                401, "No valid key", "this server asks for an API key",
                "send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
                headers={"WWW-Authenticate": 'Basic realm="partgcd: any name, the API key as password"'},
            )  # fmt: skip
        return None

    def _keyed(self, headers: Headers) -> bool:
        """Whether the request brings the key. Without a key behind the server none does."""
        key = self._key
        return key is not None and any(hmac.compare_digest(_digest(each), key) for each in _keys(headers))

    def _own_origin(self, origin: str, host: str, scheme: str) -> bool:
        """Whether the page that sends is this server's own, or one that may. 'null' is nobody's."""
        kind, _, place = origin.lower().partition("://")
        if origin.lower() in self._origins:
            return True
        # Behind a proxy that speaks TLS the page is https and the request http, never the other way round.
        if kind not in _PORTS or (scheme == "https" and kind == "http"):
            return False
        own = _place(place, kind)
        return own is not None and own == _place(host, kind)

    def _finish(self, scope: Scope, seen: _Seen, request_id: str, called: str) -> None:
        route = getattr(scope.get("route"), "path", "other")
        seconds = time.perf_counter() - seen.began
        status = seen.status or 500
        method = called if called in ("GET", "HEAD", *CHANGES) else "OTHER"
        self._metrics.record("partgcd_requests_total", route=route, method=method, status=str(status))
        self._metrics.record("partgcd_request_seconds", seconds, route=route)
        if "partgcd.problem" in scope:
            self._metrics.record("partgcd_rejected_total", reason=scope["partgcd.problem"])
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
    place = _place(host, "http")
    return place[0] if place else ""


def _place(host: str, scheme: str) -> tuple[str, int] | None:
    """Name and port in a Host header or an origin; None for what is no host."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(?::(\d{1,5}))?", host) or re.fullmatch(
        r"([0-9a-fA-F:.]*:[0-9a-fA-F:.]*)()", host
    )
    if match is None:
        return None
    return match[1].strip("[]").rstrip(".").lower(), int(match[2] or _PORTS[scheme])


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


def _stopping() -> Problem:
    return Problem(503, "Stopping", "the server stops", "try again later", retry_after=5, close=True)
