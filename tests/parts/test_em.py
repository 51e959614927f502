from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from partgcd.parts.em import WEIGHT_FLOOR, EMResult, Mixture, fit_mixtures, fit_shared, initial_mixture
from partgcd.parts.mixture import log_joint

FLOOR = 1e-6
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def blobs(
    sizes: list[int], k: int, d: int, seed: int = 0, offset: float = 0.0, spread: float = 1.0
) -> tuple[Tensor, Tensor, Mixture]:
    """Flat patches of overlapping blobs, class sizes, and a start from each class's own random points."""
    g = torch.Generator().manual_seed(seed)
    classes, means = [], []
    for size in sizes:
        centres = torch.randn(k, d, generator=g) * spread + offset
        part = torch.randint(k, (size,), generator=g)
        scale = 0.5 + torch.rand(k, d, generator=g)
        x = centres[part] + torch.randn(size, d, generator=g) * scale[part]
        classes.append(x)
        means.append(x[torch.arange(k) % size] if size else centres)
    mu = torch.stack(means)
    start = Mixture(torch.full((len(sizes), k), -math.log(k)), mu, torch.ones_like(mu))
    return torch.cat(classes), torch.tensor(sizes), start


def sklearn_fit(x: Tensor, start: Mixture, c: int, iterations: int) -> tuple[GaussianMixture, float]:
    model = GaussianMixture(
        start.components,
        covariance_type="diag",
        max_iter=iterations,
        tol=1e-30,
        reg_covar=FLOOR,
        weights_init=start.log_pi[c].exp().double().numpy() / float(start.log_pi[c].exp().double().sum()),
        means_init=start.mu[c].double().numpy(),
        precisions_init=1.0 / start.var[c].double().numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x.double().numpy())
    return model, float(model.score(x.double().numpy()))


def assert_close(a: EMResult, b: EMResult, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for name in ("log_pi", "mu", "var"):
        torch.testing.assert_close(getattr(a.mixture, name), getattr(b.mixture, name), rtol=rtol, atol=atol)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("k", "d", "sizes"), [(5, 64, [700, 300, 41, 513]), (3, 8, [900, 20]), (4, 384, [600])]
)
def test_equals_scikit_learn_from_the_same_start(k: int, d: int, sizes: list[int], device: str) -> None:
    x, n, start = blobs(sizes, k, d, spread=0.5)
    result = fit_mixtures(x.to(device), n, start.to(device), 8, -math.inf, FLOOR)
    assert result.iterations_run.tolist() == [8] * len(sizes)
    for c, patches in enumerate(torch.split(x, sizes)):
        model, score = sklearn_fit(patches, start, c, 8)
        mine = Mixture(*(t[c].cpu() for t in (result.mixture.log_pi, result.mixture.mu, result.mixture.var)))
        told = float(torch.logsumexp(log_joint(mine, patches), -1).mean())
        assert told == pytest.approx(score, rel=1e-4)
        assert float(result.log_likelihood[-1, c]) == pytest.approx(model.lower_bound_, rel=1e-4)
        if sizes[c] > 100:  # a handful of points around a component amplifies float32 rounding
            torch.testing.assert_close(mine.mu, torch.from_numpy(model.means_).float(), rtol=1e-3, atol=1e-3)
            variances = torch.from_numpy(model.covariances_).float()
            torch.testing.assert_close(mine.var, variances, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_log_likelihood_never_falls(dtype: torch.dtype, offset: float) -> None:
    x, n, start = blobs([400, 90, 257, 1000], 5, 16, seed=3, offset=offset)
    start = Mixture(start.log_pi.to(dtype), start.mu.to(dtype), start.var.to(dtype))
    told = fit_mixtures(x.to(dtype), n, start, 40, -math.inf, FLOOR).log_likelihood
    slack = 1e-9 if dtype == torch.float64 else 2e-5
    assert told.shape == (40, 4)
    assert float(told.diff(dim=0).min()) >= -slack
    assert bool((told[-1] > told[0] + 0.1).all())


def test_log_likelihood_never_falls_with_an_active_variance_floor() -> None:
    x, n, start = blobs([300, 60], 6, 8, seed=5)
    start = Mixture(start.log_pi.double(), start.mu.double(), start.var.double() * 2)
    result = fit_mixtures(x.double(), n, start, 40, -math.inf, 0.9)
    assert bool((result.mixture.var == 0.9).any())
    assert float(result.log_likelihood.diff(dim=0).min()) >= -1e-9


def test_far_from_the_origin_float32_fits_as_well_as_near_it() -> None:
    x, n, start = blobs([500, 200], 4, 32, seed=1)
    x = (x * 64).round() / 64  # exact in float32 after the shift too
    start = Mixture(start.log_pi, (start.mu * 64).round() / 64, start.var)
    near = fit_mixtures(x, n, start, 10, -math.inf, FLOOR)
    far = fit_mixtures(
        x + 1024.0, n, Mixture(start.log_pi, start.mu + 1024.0, start.var), 10, -math.inf, FLOOR
    )
    torch.testing.assert_close(far.mixture.mu - 1024.0, near.mixture.mu, rtol=0, atol=2e-3)
    torch.testing.assert_close(far.mixture.var, near.mixture.var, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_memory_budget_changes_nothing(device: str) -> None:
    sizes = [20, 2100, 0, 37, 260, 255, 1, 700, 19, 21]
    x, n, start = blobs(sizes, 4, 12, seed=7)
    fits = [
        fit_mixtures(x.double().to(device), n, start.to(device), 6, -math.inf, FLOOR, memory_budget=budget)
        for budget in (1, 64 * 1024, 2**30)
    ]
    for other in fits[1:]:
        assert_close(fits[0], other)
        torch.testing.assert_close(
            fits[0].log_likelihood, other.log_likelihood, rtol=1e-6, atol=1e-6, equal_nan=True
        )


def test_a_class_is_fitted_alone_as_it_is_among_others() -> None:
    x, n, start = blobs([300, 80, 900], 3, 10, seed=2)
    together = fit_mixtures(x, n, start, 12, 1e-4, FLOOR)
    for c, patches in enumerate(torch.split(x, n.tolist())):
        own = Mixture(start.log_pi[c : c + 1], start.mu[c : c + 1], start.var[c : c + 1])
        alone = fit_mixtures(patches, n[c : c + 1], own, 12, 1e-4, FLOOR)
        assert int(alone.iterations_run) == int(together.iterations_run[c])
        torch.testing.assert_close(alone.mixture.mu[0], together.mixture.mu[c], rtol=1e-3, atol=1e-4)


def test_an_empty_class_keeps_its_start() -> None:
    x, n, start = blobs([50, 0, 30], 3, 4)
    result = fit_mixtures(x, n, start, 5, 1e-6, FLOOR)
    for name in ("log_pi", "mu", "var"):
        assert torch.equal(getattr(result.mixture, name)[1], getattr(start, name)[1])
    assert bool(result.log_likelihood[:, 1].isnan().all())
    assert int(result.iterations_run[1]) == 0


def test_no_patches_at_all_returns_the_start() -> None:
    _, n, start = blobs([0, 0], 3, 4)
    result = fit_mixtures(torch.zeros(0, 4), n, start, 5, 1e-6, FLOOR)
    assert torch.equal(result.mixture.mu, start.mu)


def test_a_dead_component_keeps_its_slot() -> None:
    x, n, start = blobs([200], 3, 4)
    mu = start.mu.clone()
    mu[0, 1] = 500.0
    result = fit_mixtures(x, n, Mixture(start.log_pi, mu, start.var), 10, -math.inf, FLOOR)
    assert torch.allclose(result.mixture.mu[0, 1], mu[0, 1])
    assert torch.allclose(result.mixture.var[0, 1], start.var[0, 1])
    assert float(result.mixture.log_pi[0, 1].exp()) == pytest.approx(WEIGHT_FLOOR, rel=1e-3)
    assert float(result.mixture.log_pi.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(result.log_likelihood.diff(dim=0).min()) >= -2e-5


def test_converged_classes_stop_and_repeat_their_last_likelihood() -> None:
    x, n, start = blobs([600, 600], 2, 6, seed=11, spread=20.0)
    slow, _, slow_start = blobs([600], 2, 6, seed=12, spread=0.1)
    x = torch.cat([x[:600], slow])
    mu = torch.stack([start.mu[0], slow_start.mu[0]])
    result = fit_mixtures(x, n, Mixture(start.log_pi, mu, start.var), 60, 1e-5, FLOOR)
    fast_run, slow_run = result.iterations_run.tolist()
    assert fast_run < slow_run == len(result.log_likelihood)
    assert bool((result.log_likelihood[fast_run - 1 :, 0] == result.log_likelihood[fast_run - 1, 0]).all())


@pytest.mark.parametrize("strength", [0.0, 4.0, math.inf])
def test_map_adaptation_moves_by_the_relevance_factor(strength: float) -> None:
    x, n, start = blobs([120, 500], 3, 5, seed=4)
    x = x.double()
    prior = Mixture(
        torch.tensor([0.2, 0.3, 0.5]).log().double(),
        torch.randn(3, 5).double(),
        torch.rand(3, 5).double() + 1,
    )
    start = Mixture(start.log_pi.double(), start.mu.double(), start.var.double())
    got = fit_mixtures(x, n, start, 1, 0.0, FLOOR, prior=prior, prior_strength=strength).mixture
    for c, patches in enumerate(torch.split(x, n.tolist())):
        one = Mixture(start.log_pi[c], start.mu[c], start.var[c])
        r = torch.softmax(log_joint(one, patches), -1)
        owned = r.sum(0)
        a = owned / (owned + strength)
        mean, square = r.T @ patches / owned[:, None], r.T @ patches.square() / owned[:, None]
        pi = a * owned / len(patches) + (1 - a) * prior.log_pi.exp()
        mu = a[:, None] * mean + (1 - a[:, None]) * prior.mu
        second = a[:, None] * square + (1 - a[:, None]) * (prior.var + prior.mu.square())
        torch.testing.assert_close(got.log_pi[c].exp(), pi / pi.sum())
        torch.testing.assert_close(got.mu[c], mu)
        torch.testing.assert_close(got.var[c], second - mu.square())


def test_equal_calls_give_equal_bits() -> None:
    x, n, start = blobs([300, 41, 90], 4, 24)
    a, b = (fit_mixtures(x, n, start, 6, 1e-4, FLOOR) for _ in range(2))
    assert torch.equal(a.mixture.mu, b.mixture.mu) and torch.equal(a.mixture.var, b.mixture.var)


def test_the_number_of_threads_changes_nothing_and_is_left_alone() -> None:
    x, n, start = blobs([300, 41, 90, 2000], 4, 24)
    before = torch.get_num_threads()
    fits = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            fits.append(fit_mixtures(x, n, start, 6, 1e-4, FLOOR, memory_budget=2**17))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in fits[1:]:
        assert torch.equal(fits[0].mixture.mu, other.mixture.mu)
        assert torch.equal(fits[0].log_likelihood, other.log_likelihood)


def test_autocast_does_not_reach_the_fit() -> None:
    x, n, start = blobs([300], 3, 32)
    plain = fit_mixtures(x, n, start, 4, -math.inf, FLOOR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = fit_mixtures(x, n, start, 4, -math.inf, FLOOR)
    assert torch.equal(plain.mixture.mu, cast.mixture.mu)


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_patches_are_fitted_in_float32(device: str) -> None:
    x, n, start = blobs([300, 70], 3, 16)
    x = x.bfloat16()
    half = fit_mixtures(x.to(device), n, start.to(device), 4, -math.inf, FLOOR)
    full = fit_mixtures(x.float().to(device), n, start.to(device), 4, -math.inf, FLOOR)
    assert half.mixture.mu.dtype == torch.float32
    assert_close(half, full)


def test_a_floor_for_each_dimension_is_kept() -> None:
    x, n, start = blobs([100], 8, 3)
    floor = torch.tensor([0.1, 2.0, 1e-6])
    var = fit_mixtures(x, n, start, 10, -math.inf, floor).mixture.var[0]
    assert bool((var >= floor).all()) and bool((var[:, 1] == 2.0).any()) and bool((var[:, 0] < 2.0).any())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": torch.tensor([9, 2])}, "sum to 11"),
        ({"sizes": torch.tensor([10])}, "1 classes"),
        ({"variance_floor": 0.0}, "floor"),
        ({"iterations": 0}, "iterations"),
        ({"prior_strength": 3.0}, "prior_strength"),
    ],
)
def test_contradicting_arguments_are_refused(change: dict[str, object], message: str) -> None:
    x, n, start = blobs([6, 4], 2, 3)
    arguments: dict[str, object] = {
        "patches": x, "sizes": n, "start": start, "iterations": 2, "tolerance": 0.0, "variance_floor": FLOOR
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        fit_mixtures(**(arguments | change))  # type: ignore[arg-type]


def test_the_shared_fit_finds_separate_blobs() -> None:
    g = torch.Generator().manual_seed(0)
    centres = torch.eye(4, 6) * 10
    part = torch.arange(4).repeat_interleave(torch.tensor([400, 300, 200, 100]))
    x = centres[part] + torch.randn(1000, 6, generator=g)
    shared = fit_shared(x, 4, seed=0, iterations=20, tolerance=1e-5, variance_floor=FLOOR)
    order = torch.cdist(centres, shared.mu).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    torch.testing.assert_close(shared.mu[order], centres, rtol=0, atol=0.4)
    torch.testing.assert_close(
        shared.log_pi[order].exp(), torch.tensor([0.4, 0.3, 0.2, 0.1]), rtol=0, atol=1e-3
    )
    torch.testing.assert_close(shared.var, torch.ones(4, 6), rtol=0, atol=0.4)
    again = fit_shared(x, 4, 0, 20, 1e-5, FLOOR, start=shared)
    torch.testing.assert_close(again.mu, shared.mu, rtol=0, atol=1e-3)


def test_the_start_is_seeded_and_sub_sampled() -> None:
    x, _, _ = blobs([3000], 5, 6)
    a, b = (initial_mixture(x, 5, seed=1, variance_floor=FLOOR, sample=500) for _ in range(2))
    other = initial_mixture(x, 5, seed=2, variance_floor=FLOOR, sample=500)
    assert torch.equal(a.mu, b.mu) and not torch.equal(a.mu, other.mu)
    assert float(a.log_pi.exp().sum()) == pytest.approx(1.0)
    assert np.isfinite(a.var.numpy()).all()
    with pytest.raises(ValueError, match="3 patches"):
        initial_mixture(x[:3], 5, seed=1, variance_floor=FLOOR)
