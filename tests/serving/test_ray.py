"""Ray Serve, really started from the generated config. One cluster for all of this file."""

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
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# One process at a time starts Ray: two at once on two cores miss its time limits.
pytestmark = pytest.mark.xdist_group("ray")

pytest.importorskip("ray")

KEY = "correct horse"
BundleOf = Callable[..., Path]


class Cluster:
    """A running ``partgcd serve --engine ray`` that serves what the link ``current`` points at."""

    def __init__(self, place: Path, bundle: Path) -> None:
        self.link, self.home, self.mark = place / "current", place / "home", uuid.uuid4().hex
        self.home.mkdir()
        self.link.symlink_to(bundle)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        code = "import sys; sys.argv[0] = 'partgcd'; from partgcd.cli.main import main; main()"
        told = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "ORT_"))}
        self.log = (place / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", str(self.link), "--engine", "ray", "--port", str(self.port)],
            env={**told, "HOME": str(self.home), "PARTGCD_API_KEY": KEY, "TEST_MARK": self.mark},
            stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"serving at"):
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise AssertionError((place / "log").read_text()[-3000:])

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"X-API-Key": KEY, **headers})
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if data[:1] == b"{" else data
        finally:
            connection.close()

    def classify(self, data: bytes) -> tuple[int, Any]:
        return self.ask("POST", "/v1/classify", data, **{"Content-Type": "image/png"})

    def point(self, target: Path) -> str:
        new = self.link.with_name("next")
        new.symlink_to(target)
        new.replace(self.link)
        return (target / "manifest.sha256").read_text()[:64]

    def processes(self, beginning: str = "") -> list[int]:
        """Living processes of this cluster whose title begins so."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self.mark.encode() in (entry / "environ").read_bytes():
                    title = (entry / "cmdline").read_bytes()
                    if title and title.startswith(beginning.encode()):
                        found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("ray"), bundle)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
        try:
            code = found.process.wait(60)
        finally:
            found.process.kill()
            for each in found.processes():
                os.kill(each, signal.SIGKILL)
            found.log.close()
    assert code == 0


def wait_for(what: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_answers_as_the_embedded_server_does(cluster: Cluster, photos: dict[str, bytes]) -> None:
    for name in ("red", "green", "blue"):
        status, told = cluster.classify(photos[name])
        assert status == 200 and told["results"][0]["top"][0]["name"] == name
    assert cluster.ask("GET", "/readyz")[1]["ready"] is True
    assert cluster.ask("GET", "/v1/model", **{"X-API-Key": "wrong key"})[0] == 401
    assert cluster.ask("GET", "/v1/model", Host="evil.example")[0] == 421
    assert cluster.classify(b"x")[0] == 422
    assert b"partgcd_images_total" in cluster.ask("GET", "/metrics")[1]


def test_a_moved_link_is_served_without_a_failed_request(
    cluster: Cluster, bundle_of: BundleOf, tmp_path: Path, photos: dict[str, bytes]
) -> None:
    statuses: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            statuses.append(cluster.classify(photos["red"])[0])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        bad = bundle_of(tmp_path / "bad", flavour=8)
        (bad / "MODEL_CARD.md").write_text("changed")
        before = cluster.ask("GET", "/readyz")[1]["model_version"]
        cluster.point(bad)
        wait_for(lambda: cluster.ask("GET", "/readyz")[1]["refused"] is not None)
        assert cluster.ask("GET", "/readyz")[1]["model_version"] == before
        version = cluster.point(bundle_of(tmp_path / "new", flavour=9))
        wait_for(lambda: cluster.ask("GET", "/readyz")[1]["model_version"] == version)
        wait_for(lambda: len(statuses) > 10)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert set(statuses) == {200}
    assert cluster.ask("GET", "/readyz")[1]["refused"] is None


def test_a_killed_replica_comes_back(cluster: Cluster, photos: dict[str, bytes]) -> None:
    (victim,) = cluster.processes("ray::ServeReplica")
    os.kill(victim, signal.SIGKILL)

    def answered() -> bool:
        status = cluster.classify(photos["blue"])[0]
        assert status == 200 or status >= 500
        return status == 200 and victim not in cluster.processes("ray::ServeReplica")

    wait_for(answered)


def test_nothing_is_written_into_the_home(cluster: Cluster) -> None:
    assert list(cluster.home.iterdir()) == []
