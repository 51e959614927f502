"""The attack of ``benchmarks/attack.py`` in its small form, against a server of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "attack.py"


def test_hostile_clients_stop_neither_the_server_nor_its_stop(bundle: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(8):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (200, 300, 3), dtype=np.uint8)).save(file, "JPEG")
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(file.getvalue())
    words = [
        str(SCRIPT), str(tmp_path / "photos"), str(bundle), "--seconds", "2", "--out", str(tmp_path / "found.json"),
        "--only", "many scans", "comments", "float", "flat png",
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, timeout=200,
        capture_output=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "found.json").read_text())["one address"]
    honest, hostile = found["honest"], found["hostile"]
    assert honest["statuses"]["200"] > 0 and honest["broken"] == 0
    for statuses in (honest["statuses"], hostile["statuses"]):
        assert set(statuses) <= {"200", "422", "429", "503"}
    assert found["429_503_without_retry_after"] == 0
    assert found["memory_mb"]["peak"] < found["memory_mb"]["bound"]
    assert found["exit_code"] == 0 and set(found["healthz"]) == {"200"}
