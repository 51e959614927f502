"""Bad requests for benchmarks/endurance.py: from the server's OpenAPI document, and spoiled byte by byte."""

from __future__ import annotations

import http.client
import random
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from load import Server


class Request(NamedTuple):
    """One request; ``raw`` bytes go over the socket as they are."""

    method: str = "POST"
    path: str = "/v1/classify"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: bytes = b""
    raw: bytes | None = None


def bad_requests(
    server: Server, images: list[tuple[str, bytes]], draw: random.Random, count: int
) -> Iterator[Request]:
    """``count`` requests, the same for one seed but for what schemathesis draws."""
    yield from _drawn(server, count // 2)
    makers = (_image, _form, _raw, _kind)
    for number in range(count - count // 2):
        yield makers[number % len(makers)](images, draw)


def _drawn(server: Server, count: int) -> Iterator[Request]:
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

    schema: Any = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    found: list[Request] = []
    calls = [("POST", "/v1/classify"), ("GET", "/v1/classes/{class_id}"), ("PATCH", "/v1/classes/{class_id}")]
    for method, path in calls:

        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=schema[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
        def note(case: Any) -> None:
            told = case.as_transport_kwargs()
            import requests

            ready = requests.Request(**{k: v for k, v in told.items() if k in _TAKEN}).prepare()
            body = ready.body or b""
            found.append(
                Request(
                    ready.method or "GET", ready.path_url, {str(k): str(v) for k, v in ready.headers.items()},
                    body.encode() if isinstance(body, str) else bytes(body),
                )
            )  # fmt: skip

        note()
    random.Random(1).shuffle(found)
    yield from found[:count]


_TAKEN = ("method", "url", "headers", "files", "data", "json", "params", "cookies")


def _spoiled(data: bytes, draw: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(found) + 1)
        how = draw.randrange(4)
        if how == 0:
            found[at : at + 1] = draw.randbytes(1)
        elif how == 1:
            del found[at : at + draw.randint(1, 2000)]
        elif how == 2:
            found[at:at] = draw.randbytes(draw.randint(1, 50))
        else:
            found[at:at] = found[at : at + draw.randint(1, 500)]
    return bytes(found)


def _image(images: list[tuple[str, bytes]], draw: random.Random) -> Request:
    kind, data = draw.choice(images)
    # Spoiled near its beginning, where a header promises what the rest does not hold.
    cut = draw.choice((64, 600, len(data)))
    return Request(headers={"Content-Type": kind}, body=_spoiled(data[:cut], draw) + data[cut:])


def _form(images: list[tuple[str, bytes]], draw: random.Random) -> Request:
    parts = b"".join(
        b'--B\r\nContent-Disposition: form-data; name="image"; filename="%d.jpg"\r\n\r\n%s\r\n'
        % (number, data[:3000])
        for number, (_, data) in enumerate(draw.sample(images, draw.randint(1, 5)))
    )
    boundary = draw.choice(("B", "B", "B", "", '"B', "C", "B" * 200))
    return Request(
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
        body=_spoiled(parts + b"--B--\r\n", draw),
    )


def _raw(images: list[tuple[str, bytes]], draw: random.Random) -> Request:
    body = draw.choice(images)[1][:500]
    whole = (
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    return Request(raw=_spoiled(whole, draw) + body)


def _kind(images: list[tuple[str, bytes]], draw: random.Random) -> Request:
    kind = "".join(chr(draw.randint(32, 126)) for _ in range(draw.randint(0, 40)))
    path = "/v1/classify?" + "&".join(
        f"{draw.choice(('top_k', 'explain', 'x'))}={draw.choice(('0', '-1', '1e9', 'true', 'x', '%00', '9' * 50))}"
        for _ in range(2)
    )
    return Request(
        path=path, headers={"Content-Type": kind.strip()}, body=draw.randbytes(draw.randint(0, 300))
    )


def send(port: int, request: Request) -> str:
    """The status of the answer, or how the connection ended."""
    if request.raw is not None:
        return _send_raw(port, request.raw)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        skipped = {"content-length", "transfer-encoding", "host"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in skipped}
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    except (ValueError, UnicodeError):
        return "not sendable"
    finally:
        connection.close()


def _send_raw(port: int, data: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except OSError as error:
            return type(error).__name__
    return answer.split(b" ", 2)[1].decode("ascii", "replace") if answer.count(b" ") >= 2 else "closed"
