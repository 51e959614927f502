"""Pictures of all modes, depths and containers: each decodes to its plain form, or is refused with a reason."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partgcd.data.decode import BrokenImage, decode

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
EXAMPLES = int(os.environ.get("PARTGCD_EXAMPLES", "400"))


@pytest.fixture(scope="module")
def pictures() -> Any:
    """The generator, which benchmarks/decoding.py shares."""
    pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("pictures")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("part", range(4))
def test_every_picture_is_its_plain_form_or_refused_with_a_reason(pictures: Any, part: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(part, EXAMPLES, 4):
        made = pictures.draw_picture(seed)
        try:
            found = np.asarray(decode(made.data)).astype(float)
        except BrokenImage as broken:
            assert made.name.startswith("TIFF"), f"{seed} {made.name}: {broken.reason}"
            assert broken.reason.startswith("a TIFF ") and ": save " in broken.reason, (
                f"{seed} {made.name}: {broken.reason}"
            )
            outcomes["refused"] += 1
            continue
        assert found.shape == made.plain.shape, f"{seed} {made.name}"
        wrong = np.abs(found - made.plain)
        assert wrong.max() <= made.most and wrong.mean() <= made.mean, (
            f"{seed} {made.name}: {wrong.max():.2f}"
        )
        outcomes["equal"] += 1
    assert outcomes["equal"] > 4 * outcomes["refused"]
