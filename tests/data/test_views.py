from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.data.views import mix, pool_slots, random_crops


def _keys(n: int) -> np.ndarray:
    return mix(np.arange(n, dtype=np.uint64))


@given(
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 500),
    step=st.integers(0, 10_000),
    size=st.integers(1, 64),
    extra=st.integers(0, 64),
)
def test_crops_stay_inside(seed, epoch, step, size, extra):
    shapes = np.stack([np.full(20, size + extra), np.full(20, size + 2 * extra)], axis=1)
    crops = random_crops(seed, epoch, step, _keys(20), 0, shapes, size)
    assert (crops.top >= 0).all() and (crops.top + size <= shapes[:, 0]).all()
    assert (crops.left >= 0).all() and (crops.left + size <= shapes[:, 1]).all()


def test_an_images_crop_does_not_depend_on_its_batch():
    keys, shapes = _keys(50), np.full((50, 2), 300)
    whole = random_crops(1, 2, 3, keys, 1, shapes, 224)
    part = random_crops(1, 2, 3, keys[17:31], 1, shapes[17:31], 224)
    for left, right in zip(whole, part, strict=True):
        assert np.array_equal(left[17:31], right)


@pytest.mark.parametrize("changed", [dict(seed=9), dict(epoch=9), dict(step=9), dict(view=0)])
def test_every_coordinate_matters(changed):
    keys, shapes = _keys(200), np.full((200, 2), 300)
    base = dict(seed=1, epoch=2, step=3, view=1)
    one = random_crops(keys=keys, shapes=shapes, size=224, **base)
    other = random_crops(keys=keys, shapes=shapes, size=224, **{**base, **changed})
    assert (one.top != other.top).mean() > 0.9


def test_crops_and_flips_are_uniform():
    keys, shapes = _keys(20_000), np.full((20_000, 2), 10)
    crops = random_crops(0, 0, 0, keys, 0, shapes, 7)
    counts = np.bincount(crops.top, minlength=4)
    assert len(counts) == 4 and abs(counts / 20_000 - 0.25).max() < 0.02
    assert abs(crops.flip.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(crops.top, crops.left)[0, 1]) < 0.03


@pytest.mark.parametrize("pool", [1, 2, 4, 7])
def test_pool_slots_differ_and_cover_the_pool(pool):
    first, second = pool_slots(3, 1, 5, _keys(5000), pool)
    assert set(first) == set(second) == set(range(pool))
    if pool > 1:
        assert (first != second).all()
        assert abs(np.bincount(second) / 5000 - 1 / pool).max() < 0.03
