from __future__ import annotations

import numpy as np
import pytest
import torch

from partgcd.backbone.device_pixels import DevicePixels, to_device
from partgcd.data.pixels import PixelStore
from partgcd.data.views import random_crops

CPU = torch.device("cpu")
SIZE = 20


@pytest.fixture(scope="module")
def store() -> PixelStore:
    """Eighty images of different shapes."""
    draw = np.random.default_rng(0)
    places, offset = [], 0
    for _ in range(80):
        height, width = (int(side) for side in draw.integers(SIZE, 3 * SIZE, 2))
        places.append((offset, height, width))
        offset += 3 * height * width
    return PixelStore(draw.integers(0, 256, offset, dtype=np.uint8), np.array(places, np.int64))


@pytest.mark.parametrize("rows", [np.array([7]), np.array([3, 3, 79, 0]), np.arange(80)])
def test_crops_are_those_of_the_store(store: PixelStore, rows: np.ndarray) -> None:
    keys = rows.astype(np.uint64) * 77
    crops = random_crops(1, 2, 3, keys, 0, store.shape(rows), SIZE)
    assert len(rows) == 1 or crops.flip.any()
    wanted = store.crop(rows, crops.top, crops.left, crops.flip, SIZE)
    found = DevicePixels(store, CPU).crop(rows, crops, SIZE)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), wanted)


def test_only_a_gpu_holds_pixels(store: PixelStore) -> None:
    assert not DevicePixels.fits(store, CPU)


def test_an_array_of_any_layout_becomes_a_tensor() -> None:
    array = np.arange(6).reshape(2, 3)[:, ::-1]
    assert to_device(array, CPU).tolist() == [[2, 1, 0], [5, 4, 3]]
