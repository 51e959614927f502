"""Bodies of requests, read piece by piece: no more than the limit is ever held, and not for longer than its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from partgcd.data.names import printable
from partgcd.serving.problems import Problem
from partgcd.serving.settings import Limits

FIELD = "image"

_RAW_FIX = "send one image as the body with 'Content-Type: image/jpeg' (or its own type), or a multipart form"
_FORM_FIX = f"send a multipart form with one or more files named '{FIELD}': curl -F {FIELD}=@photo.jpg URL"
_LARGEST_JSON = 16_384
_RATE_S = 5.0
"""Over so many seconds the rate of a body is measured."""

_QUERY = {"top_k": "top_k=3", "explain": "explain=true"}


@dataclass(frozen=True)
class Upload:
    """One image as it came. ``name`` is what the client called the file, for showing only."""

    data: bytes
    name: str | None = None


class Buffered:
    """How many bytes of bodies are held by all requests together, and by those of each client.

    Args:
        most: of all together.
        body: of one request. A client may hold a quarter of ``most``, or one such body.
    """

    def __init__(self, most: float, body: float) -> None:
        self.most, self.each, self.held = most, max(most / 4, body), 0
        self._of: dict[str, int] = {}

    def take(self, count: int, peer: str) -> None:
        """Raises Problem where ``count`` more bytes would be too many."""
        of_peer = self._of.get(peer, 0) + count
        for held, most, whose in (
            (self.held + count, self.most, ""),
            (of_peer, self.each, " of your address"),
        ):
            if held > most:
                raise Problem(
                    429, "Too many uploads", f"bodies{whose} of {most / 1e6:g} MB are held already",
                    "try again later", limit=most, retry_after=1,
                )  # fmt: skip
        self.held += count
        self._of[peer] = of_peer

    def give_back(self, count: int, peer: str) -> None:
        """Forget ``count`` bytes."""
        self.held -= count
        left = self._of.get(peer, 0) - count
        if left:
            self._of[peer] = left
        else:
            self._of.pop(peer, None)


@dataclass
class Held:
    """The bytes that one request of ``peer`` holds; to be given back when it ends."""

    account: Buffered
    peer: str = ""
    count: int = 0

    def take(self, count: int) -> None:
        """Account for ``count`` more."""
        self.account.take(count, self.peer)
        self.count += count

    def close(self) -> None:
        """Give all back."""
        self.account.give_back(self.count, self.peer)
        self.count = 0


async def read_images(request: Request, limits: Limits, held: Held) -> tuple[list[Upload], bool]:
    """The images of a request, and whether they came as a form.

    Raises:
        Problem: a limit is passed, the type is another, or the form is damaged.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    most = int(limits.max_body_mb * 1e6)
    pieces = _pieces(request, most, limits, held)
    async with aclosing(pieces):
        if kind.startswith(b"image/") and len(kind) > len(b"image/"):
            data = b"".join([piece async for piece in pieces])
            if not data:
                raise Problem(400, "No image", "the body is empty", _RAW_FIX)
            return [Upload(data)], False
        if kind == b"multipart/form-data":
            return await _read_form(pieces, options.get(b"boundary"), limits), True
    shown = printable(kind.decode("latin-1"))[:80] or "none"
    raise Problem(
        415,
        "Unsupported media type",
        f"Content-Type is {shown}, not image/* or multipart/form-data",
        _RAW_FIX,
    )


async def read_json(request: Request, limits: Limits, held: Held) -> Any:
    """The JSON body of a small request.

    Raises:
        Problem: it is too large, of another type, or no JSON.
    """
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if kind != b"application/json":
        raise Problem(
            415, "Unsupported media type", "the body must be JSON", "send 'Content-Type: application/json'"
        )
    pieces = _pieces(request, _LARGEST_JSON, limits, held)
    async with aclosing(pieces):
        data = b"".join([piece async for piece in pieces])
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "No JSON", "the body is no JSON", "see /docs for an example") from error


async def _pieces(request: Request, most: int, limits: Limits, held: Held) -> AsyncGenerator[bytes, None]:
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > most:
        raise _too_large(most)
    clock, seconds = asyncio.get_running_loop().time, limits.read_timeout_s
    count = before = 0
    deadline, check = clock() + seconds, clock() + _RATE_S
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(min(deadline, check)):
                piece = await anext(stream, None)
        except TimeoutError as error:
            if clock() >= deadline or count - before < _RATE_S * limits.min_upload_kb_s * 1e3:
                raise _too_slow(limits, clock() >= deadline) from error
            # The pause is not the end: what asyncio gave up waiting for is asked for again.
            before, check, stream = count, clock() + _RATE_S, request.stream()
            continue
        if piece is None:
            return
        if clock() >= check:
            if count - before < _RATE_S * limits.min_upload_kb_s * 1e3:
                raise _too_slow(limits, False)
            before, check = count, clock() + _RATE_S
        count += len(piece)
        if count > most:
            raise _too_large(most)
        held.take(len(piece))
        yield piece


def _too_slow(limits: Limits, late: bool) -> Problem:
    shown = f"did not arrive within {limits.read_timeout_s:g} s" if late else (
        f"comes slower than {limits.min_upload_kb_s:g} kB a second"
    )  # fmt: skip
    return Problem(
        408, "Body too slow", f"the body {shown}", "send a smaller image, or over a faster connection",
        limit=limits.read_timeout_s if late else limits.min_upload_kb_s * 1e3, close=True,
    )  # fmt: skip


def _too_large(most: int) -> Problem:
    return Problem(
        413, "Body too large", f"the body is larger than {most / 1e6:g} MB",
        "send smaller or fewer images a request", limit=most,
    )  # fmt: skip


@dataclass
class _Form:
    """What the parser has told so far."""

    most_files: int
    uploads: list[Upload] = field(default_factory=list)
    header: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    name: str | None = None
    complete: bool = False

    def begin(self) -> None:
        self.headers, self.data, self.name = {}, bytearray(), None

    def end_header(self) -> None:
        self.headers[bytes(self.header).lower()] = bytes(self.value)
        self.header, self.value = bytearray(), bytearray()

    def end_headers(self) -> None:
        disposition, options = parse_options_header(
            self.headers.get(b"content-disposition", b"").decode("latin-1")
        )
        field_name = options.get(b"name", b"").decode("utf-8", "replace")
        if disposition != b"form-data" or field_name != FIELD:
            shown = printable(field_name)[:80]
            fix = _FORM_FIX
            if field_name in _QUERY:
                fix = f"send {field_name} as a query parameter: /v1/classify?{_QUERY[field_name]}"
            raise Problem(422, "Unknown field", f"the form has a field '{shown}'", fix)
        if len(self.uploads) >= self.most_files:
            raise Problem(
                413, "Too many images", f"more than {self.most_files} images in one request",
                "send them in several requests", limit=self.most_files,
            )  # fmt: skip
        name = options.get(b"filename", b"").decode("utf-8", "replace")
        self.name = name[:200] or None

    def end_part(self) -> None:
        self.uploads.append(Upload(bytes(self.data), self.name))
        self.data = bytearray()

    def end(self) -> None:
        self.complete = True


async def _read_form(pieces: AsyncIterator[bytes], boundary: bytes | None, limits: Limits) -> list[Upload]:
    if not boundary:
        raise Problem(400, "Damaged form", "the form's Content-Type names no boundary", _FORM_FIX)
    form = _Form(limits.max_files)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.begin,
                "on_part_data": lambda data, start, end: form.data.extend(data[start:end]),
                "on_part_end": form.end_part,
                "on_header_field": lambda data, start, end: form.header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: form.value.extend(data[start:end]),
                "on_header_end": form.end_header,
                "on_headers_finished": form.end_headers,
                "on_end": form.end,
            },
        )
        async for piece in pieces:
            parser.write(piece)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, "Damaged form", "the multipart form can't be parsed", _FORM_FIX) from error
    if not form.complete:
        raise Problem(400, "Damaged form", "the multipart form ends early", _FORM_FIX)
    if not form.uploads:
        raise Problem(400, "No image", "the form holds no image", _FORM_FIX)
    return form.uploads
