"""Kills at any moment of a rediscovery, a promotion or a rename, with a server beside: the registry is always whole."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from partgcd.export.bundle import open_bundle
from partgcd.registry.naming import find_class
from partgcd.registry.roster import list_classes
from partgcd.registry.versions import Registry

pytestmark = pytest.mark.slow

LONG_KILLS = int(os.environ.get("PARTGCD_LONG_KILLS", "4"))
SHORT_KILLS = int(os.environ.get("PARTGCD_SHORT_KILLS", "10"))
LOOK = ["--new-classes", "1", "--epochs", "2", "--threads", "1", "--device", "cpu", "--promote", "always"]


@pytest.fixture(scope="module")
def ground(
    partgcd: Any,
    tiny: list[str],
    picture_folder: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with a registry of one version, ``start``, and new photos, ``new``."""
    base = tmp_path_factory.mktemp("registry")
    photos = picture_folder(base / "photos", 3, 8, (5, 5), "unlabelled")
    picture_folder(base / "all", 4, 14)
    for file in [*(base / "all").glob("red disc 1?.png"), *(base / "all").glob("ochre disc *.png")]:
        (base / "new").mkdir(exist_ok=True)
        shutil.copy(file, base / "new")
    words = [*tiny, "--classes", "3", "--view-pool", "2", "--set", "parts.min_patches=10"]
    for command in (
        ["train", *words, "--data", photos, "--out", base / "run"],
        ["export", base / "run", "--out", base / "bundle"],
        ["registry", "init", base / "start"],
        ["registry", "add", base / "start", base / "bundle"],
    ):
        ended = partgcd(*command)
        assert ended.code == 0, ended.err
    return base


def served(port: int, photo: Path) -> str:
    """The version that answers over HTTP what ``photo`` is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/classify", photo.read_bytes(), {"Content-Type": "image/png"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        assert answer.status == 200 and told["results"][0]["top"], told
        return str(told["model_version"])
    finally:
        connection.close()


@contextmanager
def reading(path: Path, serving: Any, photo: Path) -> Iterator[set[str]]:
    """Beside the block a server that follows the champion, and somebody who asks it and reads the registry.

    Gives the ids of the bundles that were seen; at the end the server answers from the champion's.
    """
    seen, wrong, stop = set[str](), list[BaseException](), threading.Event()

    def read(port: int) -> None:
        while not stop.is_set():
            try:
                seen.add(served(port, photo))
                seen.add(open_bundle(Registry(path).resolve()).id)
                list_classes(Registry(path))
            except BaseException as error:
                wrong.append(error)
                return
            stop.wait(0.01)

    with serving(path, "--poll", "0.1") as port:
        thread = threading.Thread(target=read, args=(port,))
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()
        assert not wrong, wrong
        champion, patience = open_bundle(Registry(path).resolve()).id, time.monotonic() + 60
        while served(port, photo) != champion:
            assert time.monotonic() < patience, "the server does not follow the champion"


def whole(path: Path) -> Registry:
    registry = Registry(path)
    assert registry.verify() == []
    return registry


def test_rediscovery_killed_anywhere_is_gone_on_with(
    partgcd: Any, serving: Any, ground: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    photo = next((ground / "new").iterdir())
    command = ["rediscover", "--new", ground / "new", *LOOK, "--registry"]
    undisturbed = shutil.copytree(ground / "start", tmp_path / "undisturbed")
    ended = partgcd(*command, undisturbed, watched=undisturbed)
    assert ended.code == 0 and "version 2" in ended.out, ended.err
    changes = ended.writes
    assert changes > 50
    killed = 0
    for life in count():
        if killed >= LONG_KILLS:
            return
        path = shutil.copytree(ground / "start", tmp_path / f"life {life}")
        before = [row.id for row in list_classes(Registry(path))]
        assert partgcd("classes", "rename", path, before[0], "told by a person").code == 0
        with reading(path, serving, photo) as seen:
            while True:
                stop = draw.randrange(changes) if killed < LONG_KILLS else changes * 10
                ended = partgcd(*command, path, watched=path, fatal=("", stop))
                registry = whole(path)
                if ended.code != -signal.SIGKILL:
                    break
                killed += 1
        assert ended.code == 0, ended.err
        version = registry.version("champion")
        assert version.number == 2 and version.class_ids[: len(before)] == before
        assert find_class(registry, before[0]).name == "told by a person"
        assert len(seen) <= 2 and not (path / "work").exists()


def test_moves_and_names_killed_anywhere_are_done_or_not(
    partgcd: Any, serving: Any, ground: Path, tmp_path: Path
) -> None:
    draw = random.Random(1)
    photo = next((ground / "new").iterdir())
    path = shutil.copytree(ground / "start", tmp_path / "killed")
    assert partgcd("rediscover", "--registry", path, "--new", ground / "new", *LOOK).code == 0
    one = list_classes(Registry(path))[0].id
    with reading(path, serving, photo) as seen:
        for number in range(SHORT_KILLS):
            command = draw.choice([["promote", "1"], ["promote", "2"], ["rollback"], ["rename"]])
            name = find_class(Registry(path), one).name
            aliases = Registry(path).aliases()
            words = (
                ["classes", "rename", path, one, f"name {number}"]
                if command == ["rename"]
                else ["registry", command[0], path, *command[1:]]
            )
            ended = partgcd(*words, watched=path, fatal=("", draw.randrange(5)))
            assert ended.code in (0, -signal.SIGKILL), ended.err
            registry = whole(path)
            after = registry.aliases()
            assert set(after.values()) <= {1, 2} and after["champion"] in (1, 2)
            if command == ["rename"]:
                assert find_class(registry, one).name in (name, f"name {number}") and after == aliases
            elif ended.code == 0 and command[0] == "promote":
                assert after["champion"] == int(command[1])
            ended = partgcd(*words)
            assert ended.code == 0, ended.err
    assert seen <= {version.record["bundle"] for version in whole(path).versions()}
