from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.cluster.shares import class_shares, size_spread

TAIL = [60, 40, 25, 15, 10]


def labels_of(sizes: list[int], unlabelled: int = 400) -> Tensor:
    return torch.tensor(
        [number for number, size in enumerate(sizes) for _ in range(size)] + [-1] * unlabelled
    )


def predictions(labels: Tensor, classes: int, spread: float, falling: bool = True) -> Tensor:
    """Log-probabilities of as many images as ``labels`` whose classes' masses fall, or rise, from the first on."""
    generator = torch.Generator().manual_seed(0)
    bias = spread * torch.linspace(1, -1, classes) * (1 if falling else -1)
    return (torch.randn(len(labels), classes, generator=generator) + bias).log_softmax(dim=1)


def spread_of(shares: Tensor) -> float:
    return float(shares.log().std(correction=0))


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_shares_are_the_predicted_masses_to_the_power(power: float) -> None:
    labels = labels_of([5, 5])
    log_p = predictions(labels, 6, 1.0)
    shares = class_shares(log_p, labels, 2, power)
    assert shares is not None
    torch.testing.assert_close(shares, log_p.double().exp().sum(dim=0) ** power)


@pytest.mark.parametrize(
    ("sizes", "power"),
    [([20, 9, 5], 0.0), ([12] * 10, "auto"), ([12], "auto"), ([], "auto"), ([14, 13, 12, 11, 10], "auto")],
)
def test_all_get_the_same_where_nothing_says_otherwise(sizes: list[int], power: float) -> None:
    labels = labels_of(sizes)
    assert class_shares(predictions(labels, 12, 2.0), labels, len(sizes), power) is None


def test_auto_spreads_the_shares_as_labels_and_predictions_say() -> None:
    labels = labels_of(TAIL)
    # the five of the tail fall as their labels do; five more classes spread further
    bias = torch.cat([torch.tensor(TAIL).double().log(), torch.linspace(-3, 3, 5).double()])
    log_p = bias.log_softmax(dim=0).expand(len(labels), -1)
    mass = log_p.exp().sum(dim=0)
    unlabelled = log_p[labels < 0].exp().sum(dim=0)
    spread = size_spread(torch.tensor(TAIL), unlabelled[:5])
    assert 0 < spread < spread_of(mass)
    shares = class_shares(log_p, labels, 5, "auto")
    assert shares is not None and spread_of(shares) == pytest.approx(spread)
    assert torch.equal(shares.argsort(), mass.argsort()), "the rare stay the rare ones"


def test_no_class_is_made_rarer_than_it_is_predicted() -> None:
    labels = labels_of(TAIL)
    # five new classes of one size, so that all ten together spread less than the labelled five
    bias = torch.cat([torch.tensor(TAIL).double().log(), torch.full((5,), 3.0).double()])
    log_p = bias.log_softmax(dim=0).expand(len(labels), -1)
    shares = class_shares(log_p, labels, 5, "auto")
    assert shares is not None
    torch.testing.assert_close(shares, log_p.exp().sum(dim=0))


def test_classes_of_which_more_was_labelled_are_no_tail_by_that() -> None:
    labels = labels_of(TAIL)
    assert class_shares(predictions(labels, 10, 1.0, falling=False), labels, 5, "auto") is None
    assert class_shares(predictions(labels, 10, 1.0), labels, 5, "auto") is not None


def test_a_class_that_nothing_is_predicted_to_leaves_the_shares_finite() -> None:
    labels = labels_of([60, 10], 30)
    log_p = torch.tensor([[0.0, -5.0, -torch.inf]] * len(labels))
    shares = class_shares(log_p, labels, 2, "auto")
    assert shares is not None and bool(torch.isfinite(shares).all())


def draws(seed: int, true: np.ndarray, mean: float) -> tuple[Tensor, Tensor]:
    """Labelled images drawn at random, about ``mean`` a class, and masses that err by a third on average."""
    random = np.random.default_rng(seed)
    sizes = random.poisson(true / true.mean() * mean)
    return torch.from_numpy(sizes), torch.from_numpy(true * np.exp(random.normal(0, 0.3, len(true))))


@pytest.mark.parametrize("mean", [8, 30])
def test_the_spread_of_a_tail_is_its_own(mean: int) -> None:
    """Sizes e^x with x even over a width w spread by w / sqrt(12)."""
    true = np.exp(np.linspace(np.log(10), np.log(100), 200))
    found = [size_spread(*draws(seed, true, mean)) for seed in range(50)]
    assert np.mean(found) == pytest.approx(np.log(10) / np.sqrt(12), rel=0.1)


@pytest.mark.parametrize("mean", [8, 30])
def test_labels_drawn_at_random_from_equal_classes_are_no_tail(mean: int) -> None:
    found = [size_spread(*draws(seed, np.ones(40), mean)) for seed in range(200)]
    assert np.median(found) < 0.05


def test_labels_drawn_unevenly_from_equal_classes_are_hardly_one() -> None:
    random = np.random.default_rng(0)
    sizes = torch.from_numpy(np.exp(np.linspace(np.log(4), np.log(40), 40)).round().astype(int))
    found = [size_spread(sizes, torch.from_numpy(np.exp(random.normal(0, 0.3, 40)))) for _ in range(200)]
    assert np.median(found) < 0.2 * np.log(10) / np.sqrt(12)
