"""The whole circle on real photographs: train, export, serve and collect, rediscover, and a new class answers."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

_BACKBONE = "offline/vit-small"
KNOWN = ["Cantaloupe", "Granny_Smith", "Red_Bell_Pepper", "Watermelon"]
UNSEEN = ["Yellow_Bell_Pepper", "Royal_Gala"]


@pytest.fixture(scope="module")
def photos(photo_sets: Path) -> Path:
    return photo_sets / "grocery16"


def classify(port: int, photo: Path) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/classify", photo.read_bytes(), {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        assert answer.status == 200, told
        return told
    finally:
        connection.close()


def best_id(told: dict[str, Any]) -> str:
    """The class id of the only image's best answer."""
    return str(told["results"][0]["top"][0]["id"])


@pytest.mark.photos
def test_photos_of_unseen_classes_become_a_class_that_answers(
    photos: Path, partgcd: Any, serving: Any, tmp_path: Path
) -> None:
    for name in KNOWN:
        for number, photo in enumerate(sorted((photos / name).iterdir())):
            place = tmp_path / "data" / (name if number % 2 else "unlabelled") / f"{name} {photo.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photo, place)
    flags = [
        "--backbone",
        _BACKBONE,
        "--image-size",
        "98",
        "--epochs",
        "8",
        "--view-pool",
        "2",
        "--classes",
        "4",
    ]
    for command in (
        ["train", "--data", tmp_path / "data", "--out", tmp_path / "run", *flags],
        ["export", tmp_path / "run", "--out", tmp_path / "bundle"],
        ["registry", "init", tmp_path / "models"],
        ["registry", "add", tmp_path / "models", tmp_path / "bundle"],
    ):
        ended = partgcd(*command, limit=600)
        assert ended.code == 0, ended.err
    unseen = {name: sorted((photos / name).iterdir())[:24] for name in UNSEEN}
    kept = ["--collect", tmp_path / "inbox", "--collect-rate", "6000"]
    with serving(tmp_path / "models", *kept) as port:
        before = {best_id(classify(port, photo)) for files in unseen.values() for photo in files}
        deadline = time.monotonic() + 60
        while len(list((tmp_path / "inbox").glob("*.jpg"))) < 48 and time.monotonic() < deadline:
            time.sleep(0.2)
        look = [
            "rediscover",
            "--registry",
            tmp_path / "models",
            "--new",
            tmp_path / "inbox",
            "--new-classes",
            "2",
        ]
        ended = partgcd(*look, "--promote", "always", limit=600)
        assert ended.code == 0 and "version 2" in ended.out, ended.out + ended.err
        listed = partgcd("classes", "list", tmp_path / "models", "--format", "jsonl")
        ids = [json.loads(line)["id"] for line in listed.out.splitlines()]
        new = set(ids[4:])
        assert len(ids) == 6 and before <= set(ids[:4])
        version, deadline = "", time.monotonic() + 60
        promoted = json.loads((tmp_path / "models" / "versions" / "000002" / "version.json").read_text())[
            "bundle"
        ]
        while version != promoted and time.monotonic() < deadline:
            told = classify(port, unseen[UNSEEN[0]][0])
            version = told["model_version"]
        assert version == promoted, "the server follows the champion by itself"
        after = [best_id(classify(port, photo)) for files in unseen.values() for photo in files]
        assert sum(one in new for one in after) > len(after) / 3
