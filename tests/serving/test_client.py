from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.errors import UserError
from partgcd.export.predictor import Answer, Failure
from partgcd.serving import client


@pytest.fixture
def files(tmp_path: Path, photos: dict[str, bytes]) -> list[Path]:
    made = []
    for name, data in photos.items():
        made.append(tmp_path / f"{name}.png")
        made[-1].write_bytes(data)
    return made


@pytest.fixture
def scripted() -> Iterator[Callable[..., tuple[str, list[dict[str, Any]]]]]:
    """A server that answers as told, one (status, headers, JSON) after the other; what it was asked is noted."""
    servers: list[ThreadingHTTPServer] = []

    def make(*answers: tuple[int, dict[str, str], Any]) -> tuple[str, list[dict[str, Any]]]:
        left, asked = list(answers), []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked.append({"path": self.path, "headers": dict(self.headers), "body": body})
                status, headers, told = left.pop(0)
                data = json.dumps(told).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def good(name: str) -> dict[str, Any]:
    top = [{"id": "c-1", "name": name, "kind": "old", "confidence": 0.9}]
    return {"model_version": "v", "results": [{"index": 0, "top": top, "novel": False, "novelty": 1.0}]}


def test_each_file_gets_its_answer(scripted: Any, files: list[Path]) -> None:
    address, asked = scripted((200, {}, good("a")), (422, {}, {"detail": "truncated"}), (200, {}, good("b")))
    missing = files[0].with_name("missing.png")
    found = dict(client.ask(address, "correct horse", [files[0], missing, files[1], files[2]], top_k=2))
    first = found[files[0]]
    assert isinstance(first, Answer) and first.best.name == "a" and first.version == "v"
    assert found[files[1]] == Failure("truncated", "v")
    assert isinstance(found[missing], Failure) and len(asked) == 3
    assert asked[0]["path"] == "/v1/classify?top_k=2&explain=false"
    assert asked[0]["headers"]["X-API-Key"] == "correct horse"
    assert asked[0]["headers"]["Content-Type"] == "image/png" and asked[0]["body"] == files[0].read_bytes()


def test_a_busy_server_is_asked_again(
    scripted: Any, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client.time, "sleep", pauses.append)
    busy = (429, {"Retry-After": "7"}, {})
    address, _ = scripted(busy, (503, {}, {}), (429, {"Retry-After": "9999"}, {}), (200, {}, good("a")))
    ((_, answer),) = client.ask(address, None, files[:1])
    assert isinstance(answer, Answer) and pauses == [7.0, 1.0, 60.0]
    address, _ = scripted(*[busy] * client.PATIENCE)
    with pytest.raises(UserError, match="stays busy"):
        list(client.ask(address, None, files[:1]))


def test_a_server_that_refuses_or_is_not_there(scripted: Any, files: list[Path]) -> None:
    address, _ = scripted((401, {}, {"detail": "asks for a key", "fix": "send it"}), (500, {}, ["x"]))
    with pytest.raises(UserError, match="401: asks for a key; send it"):
        list(client.ask(address, None, files[:1]))
    with pytest.raises(UserError, match="500"):
        list(client.ask(address, None, files[:1]))
    with pytest.raises(UserError, match="is the server running"):
        list(client.ask("http://127.0.0.1:1", None, files[:1]))
    for wrong in ("model", "ftp://x", "http://", "http://x:y", "http://[", ""):
        with pytest.raises(UserError, match="no address"):
            list(client.ask(wrong, None, files[:1]))
