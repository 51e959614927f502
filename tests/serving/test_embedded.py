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

    def __init__(self, *words: str, change: str = "") -> None:
        code = "import sys; sys.argv[0] = 'partgcd'; from partgcd.serving import connections, embedded\n"
        code += f"connections.IDLE_S = 1.0\n{change}\nfrom partgcd.cli.main import main; main()"
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
    for line in found.lines:
        assert "traceback" not in json.loads(line)


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
    ("data", "status"),
    [
        (b"\x00\xff\x00\xff\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (
            b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nno number\r\n",
            400,
        ),
    ],
)
def test_what_is_no_request_is_told_as_a_problem(server: Server, data: bytes, status: int) -> None:
    with server.connect() as strange:
        strange.sendall(data)
        head, _, body = read_all(strange).partition(b"\r\n\r\n")
    assert head.splitlines()[0].split()[1] == b"%d" % status
    headers = {
        name.lower(): value.strip() for name, _, value in (each.partition(b":") for each in head.splitlines())
    }
    assert headers[b"content-type"] == b"application/problem+json" and headers[b"connection"] == b"close"
    told = json.loads(body)
    assert (
        told["status"] == status and told["fix"] and told["request_id"].encode() == headers[b"x-request-id"]
    )
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_head_is_answered_as_get_without_the_body(server: Server) -> None:
    for path in (
        "/healthz",
        "/readyz",
        "/",
        "/docs",
        "/v1/classes",
        "/v1/model",
        "/openapi.json",
        "/nothing",
    ):
        heads = []
        for method in ("GET", "HEAD"):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            assert bool(body) == (method == "GET"), path
            left_out = ("x-request-id", "date")
            heads.append((response.status, sorted(
                (name.lower(), value) for name, value in response.getheaders() if name.lower() not in left_out
            )))  # fmt: skip
            connection.close()
        assert heads[0] == heads[1], path


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


def exif_that_warns(data: bytes) -> bytes:
    """A JPEG with a damaged EXIF block, of which readers warn."""
    block = b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xee" * 22
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]


NOISE = """
import threading, warnings, os, logging
real = embedded.address_of
def noisy(listener):
    warnings.warn("a library warns")
    logging.getLogger("somebody.else").error("another logger")
    threading.Thread(target=lambda: 1 / 0).start()
    os.write(2, b"code in C prints\\n")
    print("so does Python", file=sys.stderr)
    class Bad:
        def __del__(self):
            raise RuntimeError("in a destructor")
    Bad()
    import asyncio
    async def fails():
        raise RuntimeError("nobody waits for it")
    task = asyncio.get_running_loop().create_task(fails())
    del task
    return real(listener)
embedded.address_of = noisy
"""


def test_every_line_of_stderr_is_json(bundle: Path) -> None:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "JPEG")
    server = Server(str(bundle), "--workers", "1", change=NOISE)
    status, _ = server.ask(
        "POST", "/v1/classify", exif_that_warns(file.getvalue()), Content_Type="image/jpeg"
    )
    assert status == 200
    with server.connect() as strange:
        strange.sendall(b"no request\r\n\r\n")
        read_all(strange)
    until = time.monotonic() + 20
    while not any("nobody waits" in line for line in server.lines) and time.monotonic() < until:
        server.ask("GET", "/readyz")  # the collector of lost tasks runs by and by
        time.sleep(0.05)
    assert server.stop() == 0
    told = [json.loads(line) for line in server.lines]
    text = json.dumps(told)
    for each in ("a library warns", "another logger", "ZeroDivisionError", "code in C prints", "so does Python",
                 "in a destructor", "nobody waits"):  # fmt: skip
        assert each in text, each
    assert all(each["time"] and each["level"] and each["event"] for each in told)


SLOW = """
import time
from partgcd.serving import service
run = service.Service._run
def slow(self, jobs):
    time.sleep(60)
    return run(self, jobs)
service.Service._run = slow
"""


@pytest.mark.parametrize("second", [True, False])
def test_a_stop_ends_whatever_still_runs(bundle: Path, photos: dict[str, bytes], second: bool) -> None:
    """A worker that never ends: the stop is over after its time, or at once on a second signal."""
    short = "" if second else "embedded.DRAIN_S, embedded.END_S = 1, 2.0\n"
    server = Server(str(bundle), "--workers", "1", change=short + SLOW)
    with server.connect() as begun:
        begun.sendall(
            b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            b"Content-Length: %d\r\n\r\n" % len(photos["red"]) + photos["red"]
        )
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        if second:
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 130
        else:
            answer = read_all(begun)
            assert b" 503 " in answer.splitlines()[0] and b"retry-after" in answer.lower()
            assert b"problem+json" in answer
            assert server.process.wait(20) == 1
    told = [json.loads(line) for line in server.lines]
    assert any(
        "second signal" in each["event"] if second else "did not end" in each["event"] for each in told
    )


def test_a_stuck_worker_is_told(bundle: Path, photos: dict[str, bytes]) -> None:
    change = "from partgcd.serving import service, api\nservice._SLOW_S = -8.5\napi.STUCK_S = 1.5\n" + SLOW
    server = Server(str(bundle), "--workers", "1", change=change)
    try:
        assert server.ask("GET", "/readyz")[0] == 200
        with server.connect() as begun:
            begun.sendall(
                b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
                b"Content-Length: %d\r\n\r\n" % len(photos["red"]) + photos["red"]
            )
            until = time.monotonic() + 20
            while server.ask("GET", "/healthz")[0] == 200 and time.monotonic() < until:
                time.sleep(0.05)
            status, told = server.ask("GET", "/readyz")
            assert status == 503 and "finished no image" in told["reason"]
            assert server.ask("GET", "/healthz") == (503, {"status": "stuck"})
        time.sleep(0.2)  # the client has gone, and the worker is still at it
        assert server.ask("GET", "/healthz")[0] == 503
    finally:
        server.process.kill()
        server.process.wait()


def test_one_address_has_so_many_connections(bundle: Path, photos: dict[str, bytes]) -> None:
    server = Server(
        str(bundle), "--workers", "1", "--limit", "max_connections_each=3", change="connections.IDLE_S = 60"
    )
    try:
        kept = [server.connect() for _ in range(3)]
        for each in kept:
            each.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in each.recv(4096)
        with server.connect() as fourth:
            head, _, body = read_all(fourth).partition(b"\r\n\r\n")
        assert b" 429 " in head.splitlines()[0] and b"retry-after" in head.lower()
        assert json.loads(body)["limit"] == 3
        kept.pop().close()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with server.connect() as again:
                again.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = read_all(again)
            if b" 200 " in answer.splitlines()[0]:
                break
        assert b'partgcd_rejected_total{reason="Too many connections"}' in answer
        for each in kept:
            each.close()
    finally:
        assert server.stop() == 0


def test_a_slow_upload_is_cut(bundle: Path, photos: dict[str, bytes]) -> None:
    change = "from partgcd.serving import body\nbody._RATE_S = 0.5"
    server = Server(str(bundle), "--workers", "1", change=change)
    try:
        with server.connect() as slow:
            slow.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n")
            slow.sendall(b"Content-Length: 10000000\r\n\r\n" + bytes(9_000_000))
            slow.settimeout(0.1)
            answer, until = b"", time.monotonic() + 20
            while not answer and time.monotonic() < until:
                try:
                    slow.sendall(b"x")
                    answer = slow.recv(65536)
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            slow.settimeout(20)
            answer += read_all(slow)
        assert b" 408 " in answer.splitlines()[0] and b"10 kB a second" in answer
        assert server.classify(photos["red"])[0] == 200
    finally:
        assert server.stop() == 0
