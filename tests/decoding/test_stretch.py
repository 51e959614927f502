from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from partgcd.decoding.begun import BrokenImage
from partgcd.decoding.stretch import stretched


def plainly(values: np.ndarray) -> np.ndarray:
    """From the smallest to the largest, in one piece."""
    wide = values.astype(np.float64)
    usable = np.isfinite(wide)
    low, high = wide[usable].min(), wide[usable].max()
    scaled = np.rint((wide - low) * (255.0 / (high - low) if high > low else 0.0))
    return np.where(usable, scaled, 0).astype(np.uint8)


CLEAN = {
    "even": np.random.default_rng(0).random((60, 50)) * 7 - 3,
    "normal": np.random.default_rng(1).normal(size=(60, 50)),
    "long tail": np.random.default_rng(2).exponential(size=(60, 50)) ** 3,
    "two values": np.random.default_rng(3).integers(0, 2, (60, 50)) * 1000.0,
    "one pixel": np.pad(np.ones((1, 1)), 20),
    "few values": np.random.default_rng(4).integers(0, 5, (60, 50)) ** 4.0,
    "flat": np.full((60, 50), 7.0),
    "around -9999": np.linspace(-9999, -9000, 3000).reshape(60, 50),
    "holes": np.where(
        np.random.default_rng(5).random((60, 50)) < 0.3, np.nan, np.linspace(0, 9, 3000).reshape(60, 50)
    ),
    "infinite": np.where(np.eye(60, 50) > 0, np.inf, np.linspace(0, 9, 3000).reshape(60, 50)),
    "more than a block": np.linspace(-1, 1, (1 << 20) + 5)[None],
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_picture_without_outliers_is_stretched_over_its_whole_range(name: str) -> None:
    values = CLEAN[name].astype(np.float32)
    with np.errstate(invalid="ignore"):
        assert (stretched(values) == plainly(values)).all()


MARKS = (-9999.0, -32768.0, -3.4028235e38, 3.4028235e38, 1e33, -99999.0)


@pytest.mark.parametrize(
    "mark", [*MARKS, (-9999.0, -3.4028235e38), (-3.4028235e38, 3.4028235e38), (-9999.0, np.nan)]
)
@pytest.mark.parametrize("share", [0.0005, 0.6])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_marks_of_no_data_are_known(mark: float | tuple[float, ...], share: float, kind: type) -> None:
    marks = mark if isinstance(mark, tuple) else (mark,)
    values = (np.random.default_rng(0).random(10_000) * 255).astype(kind)
    wanted = plainly(np.concatenate([values[len(marks) * int(share * 10_000 / len(marks)) :]]))
    each = int(share * 10_000 / len(marks))
    for place, value in enumerate(marks):
        values[place * each : (place + 1) * each] = value
    found = stretched(values.reshape(100, 100)).reshape(-1)
    assert not found[: each * len(marks)].any() and (found[each * len(marks) :] == wanted).all()


@pytest.mark.parametrize("outlier, becomes", [(70_000.0, 255), (-5_000.5, 0)])
def test_a_few_values_far_from_all_others_are_cut(outlier: float, becomes: int) -> None:
    values = np.random.default_rng(0).random(10_000).astype(np.float32) * 255
    wanted = plainly(values[9:])
    values[:9] = outlier
    found = stretched(values)
    assert (found[:9] == becomes).all() and (found[9:] == wanted).all()


def test_what_the_file_names_as_no_data_is_none() -> None:
    values = np.linspace(0, 9, 1000, dtype=np.float32)
    values[::7] = 4.5
    found = stretched(values, no_data=4.5)
    assert not found[::7].any()
    assert stretched(values, no_data=float("nan")).max() == 255


def test_nothing_but_no_data_is_broken() -> None:
    for values in (np.full((9, 9), np.nan), np.full((9, 9), np.inf)):
        with pytest.raises(BrokenImage, match="no finite pixel value"):
            stretched(values.astype(np.float32))
    with pytest.raises(BrokenImage, match="no finite pixel value"):
        stretched(np.full((9, 9), 3, np.float32), no_data=3)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9))),
    st.none() | st.floats(width=32),
)
def test_any_values_make_a_picture_or_say_why_not(values: np.ndarray, no_data: float | None) -> None:
    with np.errstate(all="ignore"):
        try:
            found = stretched(values, no_data)
        except BrokenImage:
            return
    assert found.dtype == np.uint8 and found.shape == values.shape
    assert not found[~np.isfinite(values)].any()
