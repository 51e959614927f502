from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.cluster import prototypes as module
from partgcd.cluster.prototypes import calibrated_prototypes


def example(images: int = 30, classes: int = 4, dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(images, dim, generator=generator)
    return features, (3 * torch.randn(images, classes, generator=generator)).softmax(1)


def naive(features: Tensor, q: Tensor, top: int) -> np.ndarray:
    unit = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    q_ = q.double().numpy()
    rows = []
    for c in range(q.shape[1]):
        members = [i for i in range(len(q_)) if q_[i].argmax() == c]
        members = members or sorted(range(len(q_)), key=lambda i: -q_[i, c])[:top]
        weights = q_[members, c] if q_[members, c].sum() > 0 else np.ones(len(members))
        rows.append((weights[:, None] * unit[members]).sum(0) / weights.sum())
    return np.stack(rows)


@pytest.mark.parametrize("chunk", [8192, 7])
def test_prototypes_are_means_weighted_by_the_prediction(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    features, q = example()
    found = calibrated_prototypes(features, q, 3, normalise=False)
    np.testing.assert_allclose(found.numpy(), naive(features, q, 3), atol=1e-6)


def test_normalised_prototypes_point_the_same_way_with_unit_norm() -> None:
    features, q = example()
    literal = calibrated_prototypes(features, q, 3, normalise=False)
    unit = calibrated_prototypes(features, q, 3)
    torch.testing.assert_close(unit, literal / literal.norm(dim=1, keepdim=True))
    assert (literal.norm(dim=1) < 1).all()


def test_an_empty_class_takes_the_images_most_probable_for_it() -> None:
    features, q = example()
    q[:, 1] = torch.linspace(0.001, 0.01, len(q))[
        torch.randperm(len(q), generator=torch.Generator().manual_seed(3))
    ]
    found = calibrated_prototypes(features, q, 4, normalise=False)
    np.testing.assert_allclose(found.numpy(), naive(features, q, 4), atol=1e-6)


def test_an_impossible_class_takes_the_first_images_alike() -> None:
    features, q = example()
    q[:, 1] = 0
    found = calibrated_prototypes(features, q, 2, normalise=False)[1]
    torch.testing.assert_close(found, torch.nn.functional.normalize(features[:2], dim=1).mean(0))


def test_more_wanted_than_there_are_images_takes_all() -> None:
    features, q = example(images=3, classes=5)
    assert calibrated_prototypes(features, q, 10).isfinite().all()


def test_prototypes_of_no_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        calibrated_prototypes(torch.empty(0, 4), torch.empty(0, 3), 2)
