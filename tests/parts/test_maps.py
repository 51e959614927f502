from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from partgcd.parts.bank import GMMBank
from partgcd.parts.maps import attention_filter, foreground_weight, part_features, part_maps, present
from partgcd.parts.mixture import Mixture

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def random_bank(c: int, k: int, d: int, offset: float = 0.0) -> GMMBank:
    g = torch.Generator().manual_seed(0)
    mu = torch.randn(c, k, d, generator=g) + offset
    var = torch.rand(c, k, d, generator=g) * 2 + 0.5
    log_pi = torch.log_softmax(torch.randn(c, k, generator=g), -1)
    return GMMBank(log_pi, mu, var, Mixture(log_pi[0], mu[0], var[0]), torch.ones(c, dtype=torch.bool))


def naive(bank: GMMBank, patches: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """Eq. 9 as it is written, in float64."""
    mu, var = bank.mu.double()[classes][:, None], bank.var.double()[classes][:, None]
    x = patches.double()[:, :, None]
    log_n = -0.5 * ((x - mu) ** 2 / var + var.log() + math.log(2 * math.pi)).sum(-1)
    joint = ((bank.log_pi.double()[classes][:, None] + log_n) / temperature).exp()
    return joint / joint.sum(-1, keepdim=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [1.0, 7.5])
@pytest.mark.parametrize(("d", "offset"), [(6, 0.0), (64, 0.0), (16, 1e3)])
def test_responsibilities_are_those_of_the_formula(
    d: int, offset: float, temperature: float, device: str
) -> None:
    bank = random_bank(5, 4, d, offset)
    g = torch.Generator().manual_seed(1)
    patches, classes = torch.randn(6, 9, d, generator=g) + offset, torch.tensor([0, 4, 2, 2, 1, 3])
    maps = part_maps(bank.to(device), patches.to(device), classes.to(device), temperature).cpu()
    assert maps.shape == (6, 9, 4)
    torch.testing.assert_close(maps.sum(-1), torch.ones(6, 9))
    torch.testing.assert_close(
        maps.double(), naive(bank, patches, classes, temperature), rtol=1e-4, atol=2e-5
    )


def test_patches_far_from_every_part_still_get_responsibilities() -> None:
    bank = random_bank(1, 3, 64)
    maps = part_maps(bank, torch.full((1, 2, 64), 1e4), torch.tensor([0]))
    assert bool(maps.isfinite().all())
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 2))


def test_a_higher_temperature_is_softer() -> None:
    bank, patches, classes = random_bank(2, 4, 32), torch.randn(2, 50, 32), torch.tensor([0, 1])
    sharp, soft = (part_maps(bank, patches, classes, t).amax(-1).mean() for t in (1.0, 20.0))
    assert float(soft) < float(sharp) - 0.1


@pytest.mark.parametrize("normalise", [False, True])
def test_part_features_are_the_weighted_sums(normalise: bool) -> None:
    maps, patches = torch.rand(2, 5, 3).softmax(-1), torch.randn(2, 5, 4)
    weight = torch.tensor([[1.0, 0, 1, 1, 0], [0, 0, 1, 0, 0]])
    want = torch.einsum("bp,bpk,bpd->bkd", weight, maps, patches)
    if normalise:
        want = want / want.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(part_features(maps, patches, weight, normalise), want)
    torch.testing.assert_close(part_features(maps, patches, weight.bool(), normalise), want)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_part_features(normalise: bool, weighted: bool) -> None:
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 5, 3, generator=g, dtype=torch.float64).softmax(-1).requires_grad_()
    patches = torch.randn(2, 5, 4, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(2, 5, generator=g, dtype=torch.float64) if weighted else None
    assert torch.autograd.gradcheck(lambda m, p: part_features(m, p, weight, normalise), (maps, patches))


def test_part_features_of_half_patches_are_float32_under_autocast_and_reach_the_patches() -> None:
    maps = torch.rand(1, 6, 2).softmax(-1)
    patches = torch.randn(1, 6, 4, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = part_features(maps, patches, None, False)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, maps.transpose(1, 2) @ patches.float())
    features.sum().backward()
    assert patches.grad is not None and patches.grad.dtype == torch.bfloat16


def test_an_absent_part_has_a_finite_gradient() -> None:
    maps = torch.zeros(1, 4, 2)
    maps[..., 0] = 1.0
    patches = torch.randn(1, 4, 3, requires_grad=True)
    features = part_features(maps, patches, None, True)
    assert torch.equal(features[0, 1], torch.zeros(3))
    features.sum().backward()
    assert patches.grad is not None and bool(patches.grad.isfinite().all())


def test_a_part_is_present_from_the_threshold_on() -> None:
    maps = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]])
    assert present(maps, 2.0).tolist() == [[True, False, False]]
    assert present(maps, 0.75).tolist() == [[True, True, False]]
    assert present(maps, 0.0).tolist() == [[True, True, True]]


def test_presence_counts_patches_of_the_mean_weight() -> None:
    maps = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]])
    weight = torch.tensor([[0.8, 0.0, 0.4, 0.6]])  # mass 1.2, 0.45 and 0.15, of patches of 0.6: 2, 0.75, 0.25
    assert present(maps, 1.9, weight).tolist() == [[True, False, False]]
    assert present(maps, 0.7, weight).tolist() == [[True, True, False]]
    assert present(maps, 0.7, weight / 100).tolist() == [[True, True, False]], "half-seen patches are patches"
    assert present(maps, 0.7, torch.ones(1, 4)).tolist() == present(maps, 0.7).tolist()
    assert present(maps, 0.0, torch.zeros(1, 4)).tolist() == [[False, False, False]]


def test_the_attention_filter_keeps_what_reaches_the_mean() -> None:
    attention = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.9]])
    assert attention_filter(attention).tolist() == [[False, True, True], [False, False, True]]


@pytest.mark.parametrize("p", [3, 49, 196, 1369])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_even_attention_keeps_every_patch(p: int, dtype: torch.dtype) -> None:
    assert bool(attention_filter(torch.full((2, p), 1 / p, dtype=dtype)).all())


def test_the_foreground_weighs_nothing_at_the_mean_and_all_at_twice_the_mean() -> None:
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.2], [0.0, 0.1, 0.1, 0.9], [0.1, 0.25, 0.15, 0.1]])
    wanted = torch.tensor([[0, 0, 0.5, 0], [0, 0, 0, 1], [0, 2 / 3, 0, 0]])
    torch.testing.assert_close(foreground_weight(attention), wanted, atol=1e-6, rtol=0)


def test_the_foreground_has_no_weight_that_the_filter_drops_and_no_step_at_its_edge() -> None:
    attention = torch.rand(50, 30, generator=torch.Generator().manual_seed(0)) ** 4
    weight = foreground_weight(attention)
    assert not weight[~attention_filter(attention)].any()
    moved = foreground_weight(attention * (1 + 1e-5 * torch.randn(50, 30)))
    torch.testing.assert_close(moved, weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize("level", [0.0, 0.25])
def test_even_attention_has_no_foreground(level: float) -> None:
    assert not foreground_weight(torch.full((2, 4), level)).any()
