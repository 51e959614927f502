"""The command line in this process: exit code, stdout and stderr, as a shell would see them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

TINY = (
    "--backbone", "test_vit", "--random-weights", "--image-size", "160", "--epochs", "1", "--batch-size", "12",
    "--threads", "1", "--device", "cpu", "--precision", "fp32", "--set", "loss.projector_hidden=32",
    "--set", "loss.projector_out=16", "--set", "parts.count=3", "--set", "parts.min_patches=20",
)  # fmt: skip


class Answer(NamedTuple):
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line a failing command leaves on stderr after its progress; no traceback anywhere."""
        assert "Traceback" not in self.out + self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("partgcd: ")]
        assert len(lines) == 1 and self.err.splitlines()[-1] == lines[0], self.err
        return lines[0].removeprefix("partgcd: ")


Partgcd = Callable[..., Answer]


@pytest.fixture
def partgcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Partgcd:
    """Runs a command line in ``tmp_path``."""
    from partgcd.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Answer:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["partgcd", *map(str, words)])
        code: object = 0
        before = torch.get_num_threads()
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            torch.set_num_threads(before)
        assert isinstance(code, int)
        found = capsys.readouterr()
        return Answer(code, found.out, found.err)

    return call


@pytest.fixture
def train(partgcd: Partgcd) -> Partgcd:
    """``partgcd train`` with the smallest settings; later words win."""
    return lambda *words: partgcd("train", *TINY, *words)


def write_pictures(folder: Path, labelled: dict[str, int], unlabelled: int) -> Path:
    draw = np.random.default_rng(0)
    names = [f"{name}/{i}.png" for name, count in labelled.items() for i in range(count)]
    names += [f"unlabelled/{i}.png" if labelled else f"{i}.png" for i in range(unlabelled)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def pictures() -> Callable[[Path, dict[str, int], int], Path]:
    """Writes a folder of noise: ``labelled`` images by class, and unlabelled ones."""
    return write_pictures


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two labelled classes of 4 and 10 unlabelled images, in ``images``."""
    return write_pictures(tmp_path / "images", {"ash": 4, "birch": 4}, 10)
