from __future__ import annotations

import numpy as np
import pytest

from partgcd.report import embed as module
from partgcd.report.embed import embed


def groups(count: int, dimensions: int = 20) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, dimensions)) * 4
    return centres[np.arange(count) % 3] + rng.normal(size=(count, dimensions))


def test_near_features_stay_near() -> None:
    flat = embed(groups(90), 0)
    assert flat.method == "t-SNE"
    means = np.stack([flat.points[c::3].mean(axis=0) for c in range(3)])
    nearest = np.linalg.norm(flat.points[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == np.arange(90) % 3).mean() > 0.98


def test_equal_seed_gives_equal_points() -> None:
    np.testing.assert_array_equal(embed(groups(60), 3).points, embed(groups(60), 3).points)


def test_many_rows_use_principal_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TSNE_LIMIT", 50)
    assert embed(groups(50), 0).method == "t-SNE"
    assert embed(groups(51), 0).method == "PCA"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 10])
@pytest.mark.parametrize("dimensions", [1, 2, 60])
def test_any_small_shape_gives_finite_points(count: int, dimensions: int) -> None:
    points = embed(groups(count, dimensions), 0).points
    assert points.shape == (count, 2)
    assert np.isfinite(points).all() and (np.abs(points) <= 1.0 + 1e-5).all()


def test_equal_or_unusable_rows_give_finite_points() -> None:
    features = groups(20)
    features[3] = np.nan
    features[4] = np.inf
    assert np.isfinite(embed(features, 0).points).all()
    assert np.isfinite(embed(np.ones((20, 4)), 0).points).all()
