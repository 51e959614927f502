from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.discovery.sampler import epoch_batches

FLAGS = st.lists(st.booleans(), min_size=1, max_size=60).map(lambda flags: np.array(flags))


@given(labelled=FLAGS, size=st.integers(1, 70), seed=st.integers(0, 2**31 - 1), epoch=st.integers(1, 500))
def test_batches_are_whole_hold_rows_of_the_catalog_and_depend_on_seed_and_epoch_alone(
    labelled: np.ndarray, size: int, seed: int, epoch: int
) -> None:
    batches = epoch_batches(labelled, size, seed, epoch)
    width = min(size, len(labelled))
    assert batches.shape == (len(labelled) // width, width) and batches.dtype == np.int64
    assert batches.min() >= 0 and batches.max() < len(labelled)
    np.random.default_rng().random()
    assert np.array_equal(batches, epoch_batches(labelled, size, seed, epoch))


def test_epochs_and_seeds_draw_other_batches() -> None:
    labelled = np.arange(100) < 30
    first = epoch_batches(labelled, 20, 0, 1)
    assert not np.array_equal(first, epoch_batches(labelled, 20, 0, 2))
    assert not np.array_equal(first, epoch_batches(labelled, 20, 1, 1))
    # (seed, epoch) and (epoch, seed) are two streams
    assert not np.array_equal(epoch_batches(labelled, 20, 2, 1), epoch_batches(labelled, 20, 1, 2))


@pytest.mark.parametrize("known", [50, 300, 1000, 1900])
def test_about_half_of_what_is_drawn_is_labelled(known: int) -> None:
    labelled = np.arange(2000) < known
    drawn = epoch_batches(labelled, 100, 3, 1)
    assert drawn.shape == (20, 100)
    assert labelled[drawn].mean() == pytest.approx(0.5, abs=0.05)


def test_images_of_a_kind_are_drawn_alike() -> None:
    labelled = np.arange(40) < 10
    counts = np.zeros(40)
    for epoch in range(1, 401):
        counts += np.bincount(epoch_batches(labelled, 8, 0, epoch).ravel(), minlength=40)
    assert counts[:10] == pytest.approx(counts[:10].mean(), rel=0.15)
    assert counts[10:] == pytest.approx(counts[10:].mean(), rel=0.25)


@pytest.mark.parametrize("flag", [True, False])
def test_with_one_kind_alone_every_image_counts_the_same(flag: bool) -> None:
    drawn = epoch_batches(np.full(1000, flag), 50, 0, 1)
    assert np.bincount(drawn.ravel(), minlength=1000).max() < 10
    assert len(np.unique(drawn)) > 550  # 1 - 1/e of them


def test_a_catalog_smaller_than_a_batch_makes_one_short_step() -> None:
    assert epoch_batches(np.array([True, False, False]), 128, 0, 1).shape == (1, 3)
