from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.discovery.shares import class_shares, size_spread


def labels_of(sizes: list[int], unlabelled: int = 50) -> Tensor:
    return torch.tensor(
        [number for number, size in enumerate(sizes) for _ in range(size)] + [-1] * unlabelled
    )


def predictions(classes: int, spread: float) -> Tensor:
    """Log-probabilities of 400 images whose classes' masses spread more the larger ``spread`` is."""
    generator = torch.Generator().manual_seed(0)
    bias = spread * torch.linspace(-1, 1, classes)
    return (torch.randn(400, classes, generator=generator) + bias).log_softmax(dim=1)


def spread_of(shares: Tensor) -> float:
    return float(shares.log().std(correction=0))


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_shares_are_the_predicted_masses_to_the_power(power: float) -> None:
    log_p = predictions(6, 1.0)
    shares = class_shares(log_p, labels_of([5, 5]), 2, power)
    assert shares is not None
    torch.testing.assert_close(shares, log_p.double().exp().sum(dim=0) ** power)


@pytest.mark.parametrize(
    ("sizes", "power"),
    [([5, 9, 20], 0.0), ([12] * 10, "auto"), ([12], "auto"), ([], "auto"), ([11, 13, 12, 14, 10], "auto")],
)
def test_all_get_the_same_where_nothing_says_otherwise(sizes: list[int], power: float) -> None:
    assert class_shares(predictions(12, 2.0), labels_of(sizes), len(sizes), power) is None


def test_auto_spreads_the_shares_as_labelled_classes_spread() -> None:
    labels = labels_of([60, 40, 25, 15, 10])
    spread = size_spread(labels, 5)
    wide, narrow = predictions(10, 3.0), predictions(10, 0.1)
    shares = class_shares(wide, labels, 5, "auto")
    assert shares is not None and spread_of(shares) == pytest.approx(spread)
    mass = wide.double().exp().sum(dim=0)
    assert torch.equal(shares.argsort(), mass.argsort()), "the rare stay the rare ones"
    shares = class_shares(narrow, labels, 5, "auto")
    assert shares is not None
    # No class is made rarer than it is predicted.
    torch.testing.assert_close(shares, narrow.double().exp().sum(dim=0))


def test_a_class_that_nothing_is_predicted_to_leaves_the_shares_finite() -> None:
    log_p = torch.tensor([[0.0, -torch.inf, -5.0]] * 9)
    shares = class_shares(log_p, labels_of([60, 10], 0), 2, "auto")
    assert shares is not None and bool(torch.isfinite(shares).all())


@pytest.mark.parametrize("mean", [5, 20])
def test_labels_drawn_at_random_from_equal_classes_are_no_tail(mean: int) -> None:
    draws = np.random.default_rng(0).poisson(mean, (200, 40))
    spreads = [size_spread(labels_of(sizes.tolist()), 40) for sizes in draws]
    raw = [np.log(sizes[sizes > 0]).std() for sizes in draws]
    assert np.median(spreads) < 0.6 * np.median(raw)


def test_the_spread_of_a_tail_is_its_own() -> None:
    """Sizes e^x with x even over a width w spread by w / sqrt(12); labels drawn from them show the same."""
    sizes = np.exp(np.linspace(np.log(10), np.log(100), 200))
    assert size_spread(labels_of(sizes.round().astype(int).tolist()), 200) == pytest.approx(
        np.log(10) / np.sqrt(12), rel=0.1
    )
    drawn = np.random.default_rng(0).poisson(sizes).tolist()
    assert size_spread(labels_of(drawn), 200) == pytest.approx(np.log(10) / np.sqrt(12), rel=0.1)
