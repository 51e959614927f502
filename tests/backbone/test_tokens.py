from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partgcd.backbone.load import load_backbone
from partgcd.backbone.tokens import CHUNK, Material, TokenStore, fill, generations
from partgcd.config.tree import BackboneSettings
from partgcd.data.pixels import PixelStore
from partgcd.run.device import autocast

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scene():
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 160, CPU)
    side, images = 183, 70
    flat = np.random.default_rng(0).integers(0, 256, images * 3 * side * side, dtype=np.uint8)
    index = np.array([[i * 3 * side * side, side, side] for i in range(images)])
    return backbone, PixelStore(flat, index), np.arange(images, dtype=np.uint64) + 7


def _fill(store, scene, generation, seed, tick=lambda done, total: None):
    backbone, pixels, keys = scene
    return fill(store, Material(backbone, pixels, keys, autocast("fp32", CPU), CPU), generation, seed, tick)


def _open(folder, scene, slots=1, stamp="a"):
    backbone, pixels, _ = scene
    tokens, dim = backbone.trunk(torch.zeros(1, 3, 160, 160, dtype=torch.uint8)).shape[1:]
    return TokenStore(folder, len(pixels), slots, (tokens, dim), stamp)


def test_stored_tokens_are_the_trunks(tmp_path, scene):
    backbone, pixels, _ = scene
    store = _open(tmp_path, scene)
    assert _fill(store, scene, generations(1, 1, 70, 0.0), None)
    rows = np.array([69, 0, 33])
    direct = backbone.trunk(torch.from_numpy(pixels.centre(rows, 160)))
    assert torch.allclose(store.read(rows, CPU), direct, rtol=2e-3, atol=2e-3)
    assert not _fill(store, scene, generations(1, 1, 70, 0.0), None)


def test_an_interrupted_fill_ends_bit_identical(tmp_path, scene):
    whole = _open(tmp_path / "whole", scene, slots=2)
    wanted = generations(1, 2, 70, 0.0)
    _fill(whole, scene, wanted, 5)

    def stop(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fill(_open(tmp_path / "cut", scene, slots=2), scene, wanted, 5, stop)
    again = _open(tmp_path / "cut", scene, slots=2)
    assert 0 < len(again.missing(wanted)) < wanted.size
    _fill(again, scene, wanted, 5)
    rows = np.arange(70)
    for slot in (0, 1):
        assert torch.equal(again.read(rows, CPU, slot), whole.read(rows, CPU, slot))
    assert not torch.equal(whole.read(rows, CPU, 0), whole.read(rows, CPU, 1))


def test_another_stamp_starts_empty(tmp_path, scene):
    _fill(_open(tmp_path, scene), scene, generations(1, 1, 70, 0.0), None)
    assert len(_open(tmp_path, scene, stamp="b").missing(generations(1, 1, 70, 0.0))) == 2


@given(slots=st.integers(1, 6), rows=st.integers(1, 1000), share=st.floats(0, 1), epoch=st.integers(1, 50))
def test_a_share_of_the_pool_moves_on_every_epoch(slots, rows, share, epoch):
    now, later = generations(epoch, slots, rows, share), generations(epoch + 1, slots, rows, share)
    assert now.shape == (slots, -(-rows // CHUNK))
    step = later - now
    assert ((step == 0) | (step == 1)).all()
    if epoch == 1:
        assert (now == 0).all()
    if share == 1:
        assert (step == 1).all()
    if share == 0:
        assert (step == 0).all()
