"""Errors as problem+json (RFC 9457): each says what the limit is and what to do."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An answer that is an error.

    Args:
        status: of the response.
        title: the kind of problem, the same every time.
        detail: what is wrong here, with the limit.
        fix: what the client can do.
        retry_after: seconds after which trying again makes sense.
        close: whether the connection must not be used again.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        fix: str,
        *,
        limit: float | None = None,
        retry_after: int | None = None,
        close: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.fix = status, title, detail, fix
        self.limit, self.retry_after = limit, retry_after
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        if close:
            self.headers["Connection"] = "close"

    def body(self, request_id: str) -> dict[str, Any]:
        """The members of the problem document."""
        found = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "fix": self.fix,
            "request_id": request_id,
        }
        if self.limit is not None:
            found["limit"] = self.limit
        return found

    def response(self, request_id: str) -> Response:
        """The whole response."""
        content = json.dumps(self.body(request_id), ensure_ascii=False).encode("utf-8", "backslashreplace")
        return Response(content, self.status, self.headers, MEDIA_TYPE)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with it, and have it counted."""
        scope["partgcd.problem"] = self.title
        await self.response(scope.get("partgcd.request_id", ""))(scope, receive, send)


def handle_problems(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""

    @app.exception_handler(Problem)
    async def _problem(request: Request, problem: Problem) -> Response:
        return _told(request, problem)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        told = "; ".join(
            f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}" for each in error.errors()[:5]
        )
        return _told(
            request,
            Problem(422, "Invalid parameter", told[:500], "see /docs for what each parameter may be"),
        )

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return _told(request, _from_status(error.status_code, dict(error.headers or {})))


def request_id(request: Request) -> str:
    """The id that the guard gave the request."""
    found = request.scope.get("partgcd.request_id", "")
    return found if isinstance(found, str) else ""


def _told(request: Request, problem: Problem) -> Response:
    request.scope["partgcd.problem"] = problem.title  # the guard counts it
    return problem.response(request_id(request))


def _from_status(status: int, headers: dict[str, str]) -> Problem:
    title = HTTPStatus(status).phrase
    allowed = headers.get("Allow", "").split(", ")
    if "GET" in allowed and "HEAD" not in allowed:
        headers["Allow"] = ", ".join([*allowed, "HEAD"])
    detail, fix = {
        404: ("there is nothing at this path", "see /docs for the paths there are"),
        405: (f"this path answers to {headers.get('Allow', 'other methods')}", "see /docs for its methods"),
    }.get(status, (title, "see /docs"))
    return Problem(status, title, detail, fix, headers=headers)
