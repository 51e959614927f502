from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings
from partgcd.data.ingest import ingest
from partgcd.data.pixels import PixelStore, evaluation_view, planes, resize, short_side
from partgcd.data.scan import scan

SETTINGS = DataSettings(image_size=32, crop_ratio=0.8)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[PixelStore, list[np.ndarray]]:
    root = tmp_path_factory.mktemp("pixels")
    images = [noise(60, 50, 1), noise(40, 90, 2), noise(300, 33, 3)]
    (root / "data").mkdir()
    for number, image in enumerate(images):
        image.save(root / "data" / f"{number}.png")
    ingest(scan(root / "data"), root / "store", SETTINGS)
    return PixelStore.open(root / "store"), [planes(resize(image, SETTINGS)) for image in images]


@pytest.mark.parametrize(
    "size, wanted",
    [
        ((60, 50), (48, 40)),
        ((50, 60), (40, 48)),
        ((8, 8), (40, 40)),
        ((1000, 10), (160, 40)),
        ((10, 41), (40, 160)),
    ],
)
def test_the_short_side_is_fixed_and_the_long_one_limited(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert short_side(SETTINGS) == 40
    assert resize(noise(*size), SETTINGS).size == wanted


def test_the_resize_is_pillows_bicubic_of_the_middle() -> None:
    image = noise(500, 50)
    middle = image.crop((150, 0, 350, 50))
    assert resize(image, SETTINGS).tobytes() == middle.resize((160, 40), Image.Resampling.BICUBIC).tobytes()


def test_crops_are_slices_of_the_resized_image(stored: tuple[PixelStore, list[np.ndarray]]) -> None:
    store, wanted = stored
    assert len(store) == 3
    assert store.shape(np.array([2, 0])).tolist() == [[40, 160], [40, 48]]
    rows, top, left = np.array([1, 0, 1, 2]), np.array([3, 8, 0, 0]), np.array([8, 0, 1, 128])
    flip = np.array([False, True, True, False])
    found = store.crop(rows, top, left, flip, 32)
    assert found.shape == (4, 3, 32, 32) and found.dtype == np.uint8
    for number, (row, y, x, mirrored) in enumerate(zip(rows, top, left, flip, strict=True)):
        cut = wanted[row][:, y : y + 32, x : x + 32]
        assert (found[number] == (cut[:, :, ::-1] if mirrored else cut)).all(), number
    out = np.zeros_like(found)
    assert store.crop(rows, top, left, flip, 32, out=out) is out and (out == found).all()


def test_centre_is_the_evaluation_view(stored: tuple[PixelStore, list[np.ndarray]]) -> None:
    store, _ = stored
    images = [noise(60, 50, 1), noise(40, 90, 2), noise(300, 33, 3)]
    wanted = np.stack([evaluation_view(image, SETTINGS) for image in images])
    assert (store.centre(np.arange(3), 32) == wanted).all()
    assert store.centre(np.arange(0), 32).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("top, left, size", [(-1, 0, 32), (0, -1, 32), (9, 0, 32), (0, 17, 32), (0, 0, 41)])
def test_a_crop_that_leaves_its_image_is_refused(
    stored: tuple[PixelStore, list[np.ndarray]], top: int, left: int, size: int
) -> None:
    with pytest.raises(ValueError, match="leaves image 0 of 40 x 48"):
        stored[0].crop(np.array([0]), np.array([top]), np.array([left]), np.array([False]), size)
    with pytest.raises(IndexError):
        stored[0].centre(np.array([3]), 32)


@pytest.mark.parametrize("damage", ["pixels", "index", "about", "gone", "pickle"])
def test_a_damaged_store_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "data").mkdir()
    noise(40, 40).save(tmp_path / "data" / "a.png")
    store = tmp_path / "store"
    ingest(scan(tmp_path / "data"), store, SETTINGS)
    if damage == "pixels":
        (store / "pixels.u8").write_bytes((store / "pixels.u8").read_bytes()[:-1])
    elif damage == "index":
        (store / "index.npy").write_bytes(b"nothing")
    elif damage == "about":
        (store / "store.json").write_text(json.dumps([1]))
    elif damage == "pickle":
        np.save(store / "index.npy", np.array([{}], object), allow_pickle=True)
    else:
        (store / "pixels.u8").unlink()
    with pytest.raises(UserError, match="is unusable") as caught:
        PixelStore.open(store)
    assert caught.value.code == 1 and "\n" not in str(caught.value)
    # The next ingest does not trust it either, and builds it anew.
    ingest(scan(tmp_path / "data"), store, SETTINGS)
    assert len(PixelStore.open(store)) == 1
