"""Two pages for people: one to try a photo, one that documents the API. They load nothing from elsewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import Response

from partgcd.serving.problems import Problem

router = APIRouter(include_in_schema=False)

_HERE = Path(__file__).parent
_FILES = {"page.js": "text/javascript", "page.css": "text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


@router.get("/")
async def page(request: Request) -> Response:
    """Try a photo."""
    return _html("page.html.j2", limits=request.app.state.service.settings.limits)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API's documentation, made of its OpenAPI document."""
    document = request.app.openapi()
    calls = [
        {"method": method.upper(), "path": path, "about": about, "responses": _responses(about, document)}
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    ]
    return _html("docs.html.j2", title=document["info"]["title"], calls=calls)


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """What the pages load."""
    if name not in _FILES:
        raise Problem(404, "Not Found", "there is nothing at this path", "see /docs for the paths there are")
    return Response((_HERE / name).read_bytes(), media_type=_FILES[name])


def _responses(about: dict[str, Any], document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(status, description, example) of what a call may answer."""
    found = []
    for status, each in about["responses"].items():
        example = ""
        for content in each.get("content", {}).values():
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            shown = document["components"]["schemas"].get(name, {}).get("examples")
            if shown and name != "ProblemOut":
                example = json.dumps(shown[0], indent=1, ensure_ascii=False)
        found.append((status, each.get("description", ""), example))
    return found


@cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    found.filters["code"] = _code
    return found


def _code(text: str) -> Markup:
    """What stands between backticks as code, the rest as it is."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _html(template: str, **values: object) -> Response:
    text = _templates().get_template(template).render(**values)
    return Response(text, media_type="text/html", headers={"Content-Security-Policy": _POLICY})
