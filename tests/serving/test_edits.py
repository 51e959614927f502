"""Renaming through the API: what it answers, and that a held registry is waited for by nobody else."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from partgcd.registry.versions import Registry
from partgcd.serving import edits as module

ClientOf = Callable[..., TestClient]
KEY = "correct horse"


@pytest.fixture
def registry(tmp_path: Path, bundle: Path) -> Registry:
    found = Registry.init(tmp_path / "registry")
    found.add(bundle)
    found.promote("1")
    return found


@pytest.fixture
def client(client_of: ClientOf, registry: Registry) -> TestClient:
    found = client_of(source=registry.path, api_key=KEY)
    found.headers["X-API-Key"] = KEY
    return found


@pytest.fixture
def held(registry: Registry) -> Iterator[None]:
    """Another process changes the registry, for long."""
    with (registry.path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def rename(client: TestClient, name: str) -> tuple[int, dict[str, object], dict[str, str]]:
    response = client.patch("/v1/classes/c-00000", json={"name": name})
    return response.status_code, response.json(), dict(response.headers)


@pytest.mark.parametrize(
    ("name", "status", "title"),
    [
        (" ", 422, "Invalid name"), ("​", 422, "Invalid name"), ("c0123456789", 422, "Invalid name"),
        ("", 422, "Invalid change"), ("x" * 201, 422, "Invalid change"),
        ("green", 409, "Name taken"), ("GREEN ", 409, "Name taken"), ("crimson", 200, None),
    ],
)  # fmt: skip
def test_what_a_name_may_be(client: TestClient, name: str, status: int, title: str | None) -> None:
    found, told, _ = rename(client, name)
    assert found == status and told.get("title") == title


def test_a_held_registry_is_told_in_time(
    client: TestClient, held: None, photos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    began = time.monotonic()
    status, told, headers = rename(client, "crimson")
    assert status == 503 and told["title"] == "Registry busy" and int(headers["retry-after"]) >= 1
    assert time.monotonic() - began < 20  # a registry's own patience is 60 s
    assert client.post("/v1/classify", files=[("image", photos["red"])]).status_code == 200


def test_many_changes_at_once_block_nobody(
    client: TestClient, held: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.3)
    changes = client.app.state.service.changes  # type: ignore[attr-defined]

    async def scene() -> list[int]:
        async def one(number: int) -> int:
            try:
                await changes.rename("c-00000", f"name {number}")
            except module.Problem as problem:
                return problem.status
            return 200

        found = await asyncio.gather(*(one(number) for number in range(40)))
        # What looks at the source every second has its threads, whatever waits here.
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 20)
        return found

    began = time.monotonic()
    assert set(asyncio.run(scene())) == {503}
    assert time.monotonic() - began < 20


def test_what_came_too_late_is_not_written_afterwards(
    client: TestClient, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    with (registry.path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert rename(client, "crimson")[0] == 503
    time.sleep(0.2)
    assert client.get("/v1/classes/c-00000").json()["name"] == "red"
    assert rename(client, "crimson")[0] == 200
