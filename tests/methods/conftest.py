from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import TINY, write_photos

from partgcd.config.load import load_settings
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

RunOf = Callable[..., RunFolder]


@pytest.fixture
def run_of(tmp_path: Path) -> RunOf:
    """A finished run of a method over two labelled classes of 6 and 12 unlabelled images of three kinds."""

    def made(method: str, *assignments: str) -> RunFolder:
        torch.set_num_threads(1)
        data = tmp_path / "photos"
        if not data.exists():
            for kind, name in enumerate(("ash", "birch")):
                write_photos(data / name, {kind: 6})
            write_photos(data / "unlabelled", {0: 4, 1: 4, 2: 4}, 100)
        settings = load_settings(
            assignments=[*TINY, f"discovery.method={method}", "train.epochs=2", *assignments]
        )
        run = RunFolder.create(
            tmp_path / f"run-{len(list(tmp_path.iterdir()))}", settings, data, Task(data).request()
        )
        discover(run, settings, SoloWorld(run, torch.device("cpu")))
        return run

    return made
