"""The embedded server as a process of its own, over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.errors import UserError
from partgcd.serving import embedded

LIMIT = "read_timeout_s=1"


class Server:
    """A running ``partgcd serve``."""

    def __init__(self, *words: str) -> None:
        code = "import sys; sys.argv[0] = 'partgcd'; from partgcd.serving import embedded; embedded.IDLE_S = 1.0\n"
        code += "from partgcd.cli.main import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *words, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        threading.Thread(target=self._drain, daemon=True).start()
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told.startswith("serving at http://127.0.0.1:"), self.lines
        self.port = int(told.split()[2].rpartition(":")[2])

    def _drain(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def classify(self, data: bytes) -> tuple[int, dict[str, Any]]:
        return self.ask("POST", "/v1/classify", data, Content_Type="image/png")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    """Closes what idles for a second, and waits a second for a body. One for all tests of this file."""
    found = Server(str(bundle), "--limit", LIMIT, "--limit", "max_body_mb=1", "--workers", "2")
    yield found
    assert found.stop() == 0
    assert not any("Traceback" in line for line in found.lines)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_it_answers(server: Server, photos: dict[str, bytes]) -> None:
    assert server.ask("GET", "/readyz")[1]["ready"] is True
    status, told = server.classify(photos["blue"])
    assert status == 200 and told["results"][0]["top"][0]["name"] == "blue"


def test_people_may_ask_it_from_the_command_line(
    server: Server, photos: dict[str, bytes], tmp_path: Path
) -> None:
    for name, data in photos.items():
        (tmp_path / f"{name}.png").write_bytes(data)
    code = "import sys; sys.argv[0] = 'partgcd'; from partgcd.cli.main import main; main()"
    words = [
        "ask",
        f"http://127.0.0.1:{server.port}",
        str(tmp_path),
        "--format",
        "jsonl",
        "--explain",
        "drawn",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["top"][0]["name"] for line in lines[:2]] == ["blue", "green"] and len(lines) == 4
    assert len(list((tmp_path / "drawn").iterdir())) == 4


def test_a_header_that_never_ends_is_cut_off(server: Server, photos: dict[str, bytes]) -> None:
    began = time.monotonic()
    with server.connect() as silent, server.connect() as slow:
        slow.sendall(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nX-Slow:")
        assert server.classify(photos["red"])[0] == 200
        assert read_all(slow) == b"" and read_all(silent) == b""
    assert time.monotonic() - began < 10


def test_a_body_that_never_ends_is_told_so(server: Server) -> None:
    with server.connect() as slow:
        slow.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n")
        slow.sendall(b"Content-Length: 100000\r\n\r\nabc")
        answer = read_all(slow)
    assert (
        b" 408 " in answer.splitlines()[0]
        and b"within 1 s" in answer
        and b"connection: close" in answer.lower()
    )


def test_a_header_without_end_is_not_kept(server: Server) -> None:
    with server.connect() as endless:
        endless.sendall(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            for number in range(5000):
                endless.sendall(b"X-%d: %s\r\n" % (number, bytes([97]) * 4000))
    assert server.ask("GET", "/healthz")[0] == 200


def test_a_client_that_hangs_up_half_way_leaves_nothing(server: Server, photos: dict[str, bytes]) -> None:
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n"
    for ending in (socket.SHUT_WR, None):
        for _ in range(5):
            with server.connect() as half:
                half.sendall(head + bytes(2000))
                if ending is not None:
                    half.shutdown(ending)
                    read_all(half)
    assert server.classify(photos["red"])[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert "partgcd_queue_images 0.0" in text


def test_a_body_over_the_limit_is_refused_before_it_is_sent(server: Server) -> None:
    with server.connect() as large:
        large.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n")
        large.sendall(b"Expect: 100-continue\r\nContent-Length: 900000000000\r\n\r\n")
        assert b" 413 " in large.recv(65536).splitlines()[0]
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    with server.connect() as endless:
        endless.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n")
        endless.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(2000):
                endless.sendall(chunk)
                time.sleep(0.005)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request_harms_nobody(server: Server, photos: dict[str, bytes], data: bytes) -> None:
    with server.connect() as strange:
        strange.sendall(data)
        strange.shutdown(socket.SHUT_WR)
        answer = read_all(strange)
    assert b" 500 " not in answer[:30]
    assert server.classify(photos["red"])[0] == 200


def test_it_stops_when_told_and_answers_what_it_has(bundle: Path, photos: dict[str, bytes]) -> None:
    server = Server(str(bundle), "--workers", "1")
    found: list[int] = []
    with server.connect() as begun:
        head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        begun.sendall(head + b"Content-Length: %d\r\n\r\n" % len(photos["red"]) + photos["red"][:-1])
        time.sleep(0.3)
        stopping = threading.Thread(target=lambda: found.append(server.stop(signal.SIGINT)))
        stopping.start()
        time.sleep(0.5)
        begun.sendall(photos["red"][-1:])
        answer = read_all(begun)
    stopping.join(20)
    assert b" 200 " in answer.splitlines()[0] and b'"red"' in answer
    assert found == [0]
    with pytest.raises(OSError):
        server.connect()


def test_a_bad_bundle_or_a_taken_port_is_one_line(bundle_of: Callable[..., Path], tmp_path: Path) -> None:
    bad = bundle_of(tmp_path / "bad")
    (bad / "MODEL_CARD.md").write_text("changed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, told in (
            ([str(bad), "--port", "0"], "MODEL_CARD.md is not the file that was exported"),
            ([str(bad), "--port", port], "choose another --port"),
            ([str(tmp_path), "--port", "0"], "no bundle in"),
        ):
            code = "import sys; sys.argv[0] = 'partgcd'; from partgcd.cli.main import main; main()"
            done = subprocess.run(
                [sys.executable, "-c", code, "serve", *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            lines = [line for line in done.stderr.splitlines() if line.startswith("partgcd: ")]
            assert done.returncode in (1, 2) and len(lines) == 1 and told in lines[0], done.stderr
            assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:"), ("localhost", "http://")],
)
def test_addresses_are_shown_as_this_machine_reaches_them(host: str, shown: str) -> None:
    with embedded.listen(host, 0) as listener:
        assert embedded.address_of(listener).startswith(shown)
        assert not embedded.address_of(listener).endswith(":0")
    with pytest.raises(UserError, match="can't listen at"):
        embedded.listen("no.such.host.invalid", 0)


def test_nothing_is_written_into_the_home(bundle: Path, tmp_path: Path, photos: dict[str, bytes]) -> None:
    code = (
        "import sys; from pathlib import Path; from partgcd.export.predictor import Predictor\n"
        f"print(len(Predictor.load(Path({str(bundle)!r}), 1, 'cpu').classes))"
    )
    home = tmp_path / "home"
    home.mkdir()
    told = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    subprocess.run([sys.executable, "-c", code], env={**told, "HOME": str(home)}, check=True, timeout=60)
    assert list(home.iterdir()) == []
