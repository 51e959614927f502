"""The command line in this process: exit code, stdout and stderr, as a shell would see them."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def light_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle that verifies and has classes, but an empty graph: ``light_bundle("name", ["c-1", "c-2"])``."""
    from onnx import helper

    from partgcd.config.tree import Settings
    from partgcd.export import bundle as files
    from partgcd.export.manifest import Manifest

    def write(name: str, ids: list[str], seen: int = 0) -> Path:
        from safetensors.numpy import save

        folder = tmp_path / name
        folder.mkdir()
        for file in files.required_files(False):
            (folder / file).write_bytes(f"{file} of {name}".encode())
        graph = helper.make_model(helper.make_graph([], name, [], []))
        (folder / files.GRAPH).write_bytes(graph.SerializeToString())
        keys = np.arange(seen, dtype=np.uint64)
        (folder / files.EXEMPLARS).write_bytes(save({"keys": keys, "seen": keys}))
        classes = [
            {"index": index, "id": one, "name": f"name {index}", "kind": "old", "labelled": 3, "assigned": 4}
            for index, one in enumerate(ids)
        ]
        manifest = Manifest.model_validate({
            "format": "partgcd bundle", "schema_version": 1, "method": "simgcd", "classes": classes, "parts": None,
            "backbone": {"name": "n", "kind": "vit", "grid": (2, 2), "dim": 4, "trunk_dim": 4, "weights": "0" * 64,
                         "licence": "l", "lineage": "l"},
            "preprocessing": {"image_size": 64, "crop_ratio": 0.9, "short_side": 71, "max_aspect": 4.0,
                              "max_megapixels": 9.0, "mean": (0, 0, 0), "std": (1, 1, 1)},
            "projection": None, "fusion": {"temperature": 0.1, "part_weight": 1.0}, "agreement": 1.0,
            "novelty": {"threshold": 1.0, "false_alarm_rate": 0.05, "calibration_images": 1, "ratio_weight": 0.0,
                        "folds": 0},
            "graph": {"precision": "fp32", "opset": 20, "input": "pixels", "outputs": ["global"]},
            "parity": {"images": 1, "batches": [1], "largest_difference": 0.0, "tolerance": 1e-4}, "cost": None,
            "accuracy": None, "exemplars": {"per_class": 1, "thumbnails": False},
            "provenance": {"run": name, "created": "t", "exported": "t", "partgcd": "0", "git": None, "versions": {},
                           "seed": 0, "data": "0" * 64, "images": {}},
            "settings": Settings.model_validate(
                {"data": {"image_size": 64, "crop_ratio": 0.9, "max_aspect": 4.0, "max_megapixels": 9.0},
                 "discovery": {"method": "simgcd"}}
            ).model_dump(), "files": {},
        })  # fmt: skip
        files.write_manifest(folder, manifest.model_copy(update={"files": files.list_files(folder)}))
        return folder

    return write


@pytest.fixture
def bound() -> Iterator[None]:
    """Inside, permission bits bind root as they bind everybody else."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    before, now = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, before) == 0 and libc.capget(head, now) == 0
    now[0] &= ~0b1110  # effective: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(head, now) == 0
    yield
    assert libc.capset(head, before) == 0
