"""Asks a running server, image by image; what `partgcd ask` does."""

from __future__ import annotations

import base64
import http.client
import io
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from partgcd.config.errors import UserError
from partgcd.data.decode import BrokenImage, read_image, suffix_of
from partgcd.export.predictor import Answer, Choice, Failure

TIMEOUT_S = 120.0
PATIENCE = 20
"""How often an image is sent again to a server that says it is busy."""


def ask(
    address: str, key: str | None, files: Iterable[Path], top_k: int = 1, explain: bool = False
) -> Iterator[tuple[Path, Answer | Failure]]:
    """Each file with the server's answer, in the order they come.

    Args:
        address: http://HOST:PORT of the server.
        key: its API key, if it asks for one.

    Raises:
        UserError: the server can't be reached, refuses, or stays busy.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise UserError(f"'{address}' is no address of a server, like http://127.0.0.1:8000")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(host, port, timeout=TIMEOUT_S)
    path = f"{parts.path.rstrip('/')}/v1/classify?top_k={top_k}&explain={str(explain).lower()}"
    version = ""
    try:
        for file in files:
            try:
                data = read_image(file)
            except BrokenImage as broken:
                yield file, Failure(broken.reason, version)
                continue
            status, answer = _send(connection, path, key, data, address)
            if status == 200:
                version = str(answer["model_version"])
                yield file, _answer(answer["results"][0], version)
            elif status in (413, 422):
                yield file, Failure(str(answer.get("detail", "refused")), version)
            else:
                raise UserError(
                    f"{address} answers {status}: {answer.get('detail', '')}; {answer.get('fix', '')}", 1
                )
    finally:
        connection.close()


def _send(
    connection: http.client.HTTPConnection, path: str, key: str | None, data: bytes, address: str
) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": f"image/{suffix_of(data)[1:]}"} | ({"X-API-Key": key} if key else {})
    for attempt in range(PATIENCE):
        try:
            connection.request("POST", path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            # A connection that was kept open may have been closed meanwhile; a fresh one tells.
            if attempt == 0 and not isinstance(error, TimeoutError):
                continue
            raise UserError(f"{address} can't be reached ({error}): is the server running?", 1) from error
        if answer.status not in (429, 503):
            return answer.status, _parsed(text)
        pause = answer.headers.get("Retry-After", "1")
        time.sleep(min(float(pause) if pause.isdecimal() else 1.0, 60.0))
    raise UserError(f"{address} stays busy: try again later", 1)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _answer(answer: dict[str, Any], version: str) -> Answer:
    overlay = None
    if "explanation" in answer:
        overlay = Image.open(io.BytesIO(base64.b64decode(answer["explanation"]["data"])), formats=["PNG"])
        overlay.load()
    top = tuple(Choice(each["id"], each["name"], each["kind"], each["confidence"]) for each in answer["top"])
    return Answer(top, answer["novel"], answer["novelty"], version, overlay)
