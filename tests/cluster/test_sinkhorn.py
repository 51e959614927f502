from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from partgcd.cluster import sinkhorn as module
from partgcd.cluster.sinkhorn import pin_labelled, sinkhorn


def scores(images: int, classes: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(images, classes, generator=torch.Generator().manual_seed(seed)) * scale


def naive(log_p: Tensor, shares: list[float], iterations: int) -> np.ndarray:
    """The supplement's alternating scalings on the matrix itself."""
    p = log_p.double().exp().numpy()
    e = np.ones(p.shape[1])
    for _ in range(iterations):
        d = 1 / (p @ e)
        e = len(p) * np.array(shares) / (p.T @ d)
    return p * e / (p @ e)[:, None]


@given(
    images=st.integers(4, 40),
    classes=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    scale=st.floats(0.1, 5),
    weights=st.one_of(st.none(), st.lists(st.floats(0.2, 3), min_size=6, max_size=6)),
)
@settings(max_examples=30, deadline=None)
def test_columns_reach_their_marginals_and_rows_are_probabilities(
    images: int, classes: int, seed: int, scale: float, weights: list[float] | None
) -> None:
    marginals = None if weights is None else torch.tensor(weights[:classes])
    q = sinkhorn(scores(images, classes, seed, scale), 5000, 1e-3, marginals).double().exp()
    torch.testing.assert_close(q.sum(1), torch.ones(images, dtype=torch.float64), rtol=0, atol=1e-5)
    share = torch.ones(classes) if marginals is None else marginals
    torch.testing.assert_close(q.sum(0), images * (share / share.sum()).double(), rtol=1.1e-3, atol=0)


@pytest.mark.parametrize("shares", [[0.25] * 4, [0.1, 0.2, 0.3, 0.4]])
@pytest.mark.parametrize("iterations", [0, 1, 10])
def test_agrees_with_the_scalings_of_the_supplement(shares: list[float], iterations: int) -> None:
    log_p = scores(30, 4)
    q = sinkhorn(log_p.double(), iterations, 0.0, torch.tensor(shares, dtype=torch.float64)).exp()
    np.testing.assert_allclose(q.numpy(), naive(log_p, shares, iterations), rtol=1e-9)


def test_a_balanced_prediction_stays_as_it_is() -> None:
    log_p = torch.full((4, 4), 0.1 / 3).fill_diagonal_(0.9).log()
    torch.testing.assert_close(sinkhorn(log_p), log_p)


def test_rows_are_probabilities_when_the_iterations_run_out() -> None:
    q = sinkhorn(scores(50, 5, scale=20), iterations=1, tolerance=0.0).exp()
    torch.testing.assert_close(q.sum(1), torch.ones(50))


def test_only_differences_within_a_row_matter() -> None:
    logits = scores(20, 4)
    torch.testing.assert_close(
        sinkhorn(logits + torch.arange(20.0)[:, None]), sinkhorn(logits), atol=1e-4, rtol=0
    )


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sinkhorn(scores(50, 5))
    monkeypatch.setattr(module, "CHUNK", 7)
    torch.testing.assert_close(sinkhorn(scores(50, 5)), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_input_is_kept_unless_it_may_be_overwritten(overwrite: bool) -> None:
    log_p = scores(20, 4)
    before = log_p.clone()
    log_q = sinkhorn(log_p, overwrite=overwrite)
    assert torch.equal(log_p, log_q if overwrite else before)
    assert (log_p.data_ptr() == log_q.data_ptr()) == overwrite


def test_an_impossible_class_gets_nothing_and_the_others_share_its_mass() -> None:
    log_p = scores(40, 4)
    log_p[:, 2] = -math.inf
    q = sinkhorn(log_p, 500).exp()
    torch.testing.assert_close(q.sum(0), torch.tensor([40 / 3, 40 / 3, 0, 40 / 3]), rtol=2e-3, atol=0)


def test_a_zero_marginal_empties_a_class_even_for_an_image_that_knows_no_other() -> None:
    log_p = scores(40, 3)
    log_p[0] = torch.tensor([-math.inf, 0.0, -math.inf])
    q = sinkhorn(log_p, 500, marginals=torch.tensor([1.0, 0.0, 1.0])).exp()
    assert not q[:, 1].any()
    torch.testing.assert_close(q.sum(0), torch.tensor([20.0, 0.0, 20.0]), rtol=2e-3, atol=0)


def test_an_image_that_knows_nothing_follows_the_marginals() -> None:
    log_p = torch.zeros(10, 4)
    log_p[3] = -math.inf
    marginals = torch.tensor([0.1, 0.2, 0.3, 0.4])
    q = sinkhorn(log_p, 100, marginals=marginals).exp()
    torch.testing.assert_close(q[3], marginals, rtol=2e-3, atol=0)
    assert sinkhorn(torch.full((3, 2), -math.inf)).exp().tolist() == [[0.5, 0.5]] * 3


@given(seed=st.integers(0, 10**6), exponent=st.integers(0, 38), holes=st.floats(0, 0.9))
@settings(max_examples=30, deadline=None)
def test_huge_and_missing_scores_never_give_nan(seed: int, exponent: int, holes: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_p = (torch.rand(12, 5, generator=generator) * 6 - 3) * 10.0**exponent
    log_p[torch.rand(12, 5, generator=generator) < holes] = -math.inf
    q = sinkhorn(log_p.clamp(max=3e38), 20).exp()
    torch.testing.assert_close(q.sum(1), torch.ones(12))


def test_a_class_is_not_lost_where_scores_span_more_than_float32_holds() -> None:
    q = sinkhorn(torch.tensor([[3e38, -3e38]] * 4), 20).exp()
    torch.testing.assert_close(q, torch.full((4, 2), 0.5), rtol=2e-3, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_of_a_diverged_model_are_refused(bad: float) -> None:
    log_p = scores(4, 3)
    log_p[2, 1] = bad
    with pytest.raises(ValueError, match="diverged"):
        sinkhorn(log_p)


@pytest.mark.parametrize("marginals", [[1.0, 1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, math.nan, 1.0]])
def test_marginals_that_are_no_distribution_are_refused(marginals: list[float]) -> None:
    with pytest.raises(ValueError, match="marginals"):
        sinkhorn(scores(4, 3), marginals=torch.tensor(marginals))


def test_no_images_give_no_rows() -> None:
    assert sinkhorn(torch.empty(0, 3)).shape == (0, 3)


def test_pinning_makes_labelled_images_certain_and_leaves_the_rest() -> None:
    q = scores(4, 3).softmax(1)
    pinned = pin_labelled(q, torch.tensor([-1, 2, -1, 0]))
    assert pinned[1].tolist() == [0, 0, 1] and pinned[3].tolist() == [1, 0, 0]
    assert torch.equal(pinned[[0, 2]], q[[0, 2]])
    assert not torch.equal(q[1], pinned[1])
