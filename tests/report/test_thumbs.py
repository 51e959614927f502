from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from partgcd.parts.tint import part_colour, rgb
from partgcd.report.colours import category_colour
from partgcd.report.thumbs import ImageBudget, part_overlay, part_shares, thumbnail

GREY = np.full((3, 224, 224), 128, np.uint8)


def opened(uri: str) -> NDArray[np.float64]:
    prefix, data = uri.split(",", 1)
    assert prefix == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.format == "JPEG"
    return np.asarray(image, dtype=np.float64)


@pytest.mark.parametrize(("side", "expected"), [(224, 112), (112, 112), (64, 64)])
def test_thumbnail_is_at_most_112_pixels(side: int, expected: int) -> None:
    assert opened(thumbnail(np.zeros((3, side, side), np.uint8))).shape == (expected, expected, 3)


def test_thumbnail_shows_the_image() -> None:
    pixels = np.zeros((3, 224, 224), np.uint8)
    pixels[0, :, :112] = 250
    image = opened(thumbnail(pixels))
    assert image[:, :50, 0].mean() > 230 and image[:, 60:, 0].mean() < 20


def test_overlay_tints_each_half_with_the_colour_of_its_part() -> None:
    maps = np.zeros((4, 4, 2), np.float32)
    maps[:, :2, 0], maps[:, 2:, 1] = 1.0, 1.0
    image = opened(part_overlay(GREY, maps.reshape(16, 2), None, (4, 4)))
    for slot, half in ((0, image[:, 5:40]), (1, image[:, 72:107])):
        tint = half.mean(axis=(0, 1))
        assert np.argmax(tint) == np.argmax(rgb(part_colour(slot)))


def test_overlay_is_stronger_where_the_model_looks() -> None:
    maps = np.ones((16, 1), np.float32)
    attention = np.zeros((4, 4), np.float32)
    attention[:, :2] = 1 / 8
    image = opened(part_overlay(GREY, maps, attention.reshape(16), (4, 4)))
    colourful = np.ptp(image, axis=2)
    assert colourful[:, 5:40].mean() > 2 * colourful[:, 72:107].mean()


@pytest.mark.parametrize("attention", [None, np.zeros(16, np.float32)])
def test_overlay_takes_maps_without_attention_or_mass(attention: NDArray[np.float32] | None) -> None:
    assert opened(part_overlay(GREY, np.zeros((16, 3), np.float32), attention, (4, 4))).shape == (112, 112, 3)


def test_part_shares_weigh_patches_by_attention() -> None:
    maps = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
    assert part_shares(maps, None) == pytest.approx([0.5, 0.5])
    assert part_shares(maps, np.array([[0.3, 0.1]], np.float32)) == pytest.approx([0.75, 0.25])


def test_budget_refuses_what_does_not_fit_and_keeps_the_rest() -> None:
    budget = ImageBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    assert not budget.take(1)


def test_neighbouring_colours_differ() -> None:
    for colours in ([part_colour(k) for k in range(32)], [category_colour(c) for c in range(200)]):
        values = np.array([rgb(colour) for colour in colours], dtype=float)
        assert (np.abs(np.diff(values, axis=0)).sum(axis=1) > 60).all()
