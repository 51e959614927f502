"""The process that decodes, spoken to as a server does."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image

from partgcd.config.tree import DataSettings
from partgcd.data import decode_process as module
from partgcd.data.decode import decode
from partgcd.data.decode_process import ABOUT, BROKEN, GRANT, HEAD, IMAGE, NEEDS, READY, VIEW, frame
from partgcd.data.pixels import evaluation_view

SETTINGS = DataSettings(image_size=64)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(
        [sys.executable, "-P", "-m", "partgcd.data.decode_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield made
    made.kill()
    made.wait()


def receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    start = stream.read(HEAD)
    return start[:1], stream.read(int.from_bytes(start[1:], "big"))


def about(**other: Any) -> bytes:
    told = {"max_megapixels": 50, "seconds": 20, "data": SETTINGS.model_dump(mode="json"), **other}
    return frame(ABOUT, json.dumps(told).encode())


def test_a_job_is_answered_in_two_steps(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin and process.stdout
    assert receive(process.stdout) == (READY, b"")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 70, 3), dtype=np.uint8)).save(file, "PNG")
    data = file.getvalue()
    for granted in (10**8, 0, 10**8):
        process.stdin.write(about() + frame(IMAGE, data))
        process.stdin.flush()
        kind, content = receive(process.stdout)
        assert kind == NEEDS and int.from_bytes(content, "big") > 90 * 70 * 3
        process.stdin.write(frame(GRANT, granted.to_bytes(8, "big")))
        process.stdin.flush()
        kind, content = receive(process.stdout)
        if granted:
            assert (kind, content) == (VIEW, evaluation_view(decode(data), SETTINGS).tobytes())
        else:
            assert kind == BROKEN
    process.stdin.write(about(max_megapixels=0.001) + frame(IMAGE, data))
    process.stdin.flush()
    kind, content = receive(process.stdout)
    assert kind == BROKEN and content.startswith(b"too many pixels")
    process.stdin.close()
    assert process.wait(20) == 0 and process.stdout.read() == b""


@pytest.mark.parametrize(
    "sent", [b"", b"A", frame(ABOUT, b"{}")[:-1], about(), about() + frame(IMAGE, b"x" * 9)[:-2]]
)
def test_it_ends_with_its_input(process: subprocess.Popen[bytes], sent: bytes) -> None:
    assert process.stdin and process.stdout
    receive(process.stdout)
    process.stdin.write(sent)
    process.stdin.close()
    assert process.wait(20) == 0


def test_it_is_light() -> None:
    heavy = {"torch", "pyarrow", "onnxruntime", "scipy"}
    code = f"import sys, {module.__name__}; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
