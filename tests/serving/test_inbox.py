from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from partgcd.config.errors import UserError
from partgcd.data.scan import scan
from partgcd.disk import files
from partgcd.export.predictor import Answer, Choice
from partgcd.serving.inbox import LINES, Inbox
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Collecting

ClientOf = Callable[..., TestClient]
PNG = {"Content-Type": "image/png"}


class Counted(Metrics):
    """Metrics whose results of collecting can be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[str] = []

    def record(self, name: str, value: float = 1.0, **labels: str) -> None:
        if name == "partgcd_collected_total":
            self.results.append(labels["result"])


def answer(confidence: float = 0.9, novel: bool = False) -> Answer:
    return Answer((Choice("c-1", "käfer\n", "old", confidence),), novel, 1.5, "v" * 64)


def filled(folder: Path, offers: list[tuple[bytes, Answer]], **settings: object) -> list[str]:
    metrics = Counted()
    inbox = Inbox(Collecting.model_validate({"folder": folder, **settings}), metrics)
    for each in offers:
        inbox.offer(*each)
    inbox.close()
    return metrics.results


def images_of(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {LINES}


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / LINES).read_text().splitlines()]


def test_an_image_is_kept_once_under_its_own_digest(tmp_path: Path, photos: dict[str, bytes]) -> None:
    data = photos["red"]
    assert filled(tmp_path / "in", [(data, answer()), (data, answer()), (photos["blue"], answer(0.4))]) == [
        "kept", "known", "kept",
    ]  # fmt: skip
    name = hashlib.sha256(data).hexdigest() + ".png"
    assert (tmp_path / "in" / name).read_bytes() == data and len(images_of(tmp_path / "in")) == 2
    first, second = lines_of(tmp_path / "in")
    assert first["file"] == name and first["sha256"] == name[:64] and first["id"] == "c-1"
    assert first["name"] == "käfer\n" and first["confidence"] == 0.9 and second["confidence"] == 0.4
    assert first["novel"] is False and first["novelty"] == 1.5 and first["model_version"] == "v" * 64
    assert filled(tmp_path / "in", [(data, answer())]) == ["known"]
    assert len(lines_of(tmp_path / "in")) == 2


@pytest.mark.parametrize(("what", "kept"), [("all", 3), ("unfamiliar", 1), ("unsure", 2)])
def test_only_the_wanted_kind_is_kept(tmp_path: Path, photos: dict[str, bytes], what: str, kept: int) -> None:
    offers = [
        (photos["red"], answer(0.9)), (photos["green"], answer(0.3)), (photos["blue"], answer(0.9, novel=True)),
    ]  # fmt: skip
    filled(tmp_path, offers, what=what)
    assert len(images_of(tmp_path)) == kept == len(lines_of(tmp_path))


def test_the_rate_holds(tmp_path: Path) -> None:
    offers = [(b"\xff\xd8\xff%d" % number, answer()) for number in range(8)]
    results = filled(tmp_path, offers, per_minute=3)
    assert results == ["kept"] * 3 + ["rate"] * 5 and len(images_of(tmp_path)) == 3


def test_the_quota_holds_with_what_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "before.jpg").write_bytes(bytes(900))
    offers = [(b"\xff\xd8\xff" + bytes([number]) * 300, answer()) for number in range(5)]
    assert filled(tmp_path, offers, quota_mb=0.002) == ["kept"] * 3 + ["quota"] * 2


def test_a_full_disk_is_counted_and_answers_go_on(
    tmp_path: Path, photos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise UserError("the disk is full", 1)

    monkeypatch.setattr("partgcd.serving.inbox.write_bytes", full)
    assert filled(tmp_path, [(photos["red"], answer())]) == ["failed"]
    assert images_of(tmp_path) == set() and lines_of(tmp_path) == []


def test_what_a_killed_server_left_half_written_is_removed(tmp_path: Path) -> None:
    for name, age in ((".old.jpg.123.tmp", 7200), (".new.jpg.124.tmp", 0)):
        assert files.is_temporary(name)
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    filled(tmp_path, [])
    assert images_of(tmp_path) == {".new.jpg.124.tmp"}  # another server may be at it


def test_a_folder_that_can_not_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="--collect"):
        Inbox(Collecting(folder=tmp_path / "file"), Metrics())


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    monkeypatch.setattr("partgcd.serving.inbox.write_bytes", lambda *_: gate.wait(10))
    metrics = Counted()
    inbox = Inbox(Collecting(folder=tmp_path), metrics)
    for number in range(40):
        inbox.offer(b"%d" % number, answer())
    assert metrics.results.count("busy") >= 7
    gate.set()
    inbox.close()
    inbox.offer(b"late", answer())


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp", "gif", "tiff", "ppm"])
def test_images_of_every_kind_are_kept(client_of: ClientOf, tmp_path: Path, kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "teal").save(file, kind)
    client = client_of(collect={"folder": tmp_path / "in", "what": "all"})
    assert client.post("/v1/classify", files=[("image", file.getvalue())]).status_code == 200
    client.app.state.service.inbox.close()  # type: ignore[attr-defined]
    (entry,) = scan(tmp_path / "in").entries
    assert (tmp_path / "in" / entry.path).read_bytes() == file.getvalue()


def test_the_server_collects_and_training_can_read_it(
    client_of: ClientOf, photos: dict[str, bytes], tmp_path: Path
) -> None:
    client = client_of(collect={"folder": tmp_path / "in", "what": "unfamiliar"})
    files = [
        ("image", ("../../evil.png", photos["grey"])),
        ("image", ("r.png", photos["red"])),
        ("image", b"x"),
    ]
    assert client.post("/v1/classify", files=files).status_code == 200
    client.app.state.service.inbox.close()  # type: ignore[attr-defined]
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {
        hashlib.sha256(photos["grey"]).hexdigest() + ".png", LINES,
    }  # fmt: skip
    assert len(scan(tmp_path / "in").entries) == 1


def test_nothing_is_kept_unless_asked_for(client: TestClient, photos: dict[str, bytes]) -> None:
    client.post("/v1/classify", content=photos["grey"], headers=PNG)
    assert client.app.state.service.inbox is None  # type: ignore[attr-defined]
