from __future__ import annotations

import pytest
import torch

from partgcd.parts.bank import GMMBank, log_likelihood
from partgcd.parts.mixture import Mixture


def random_bank(
    c: int = 4, k: int = 3, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32
) -> GMMBank:
    g = torch.Generator().manual_seed(seed)

    def mixture(*shape: int) -> Mixture:
        weight = torch.rand(*shape, generator=g, dtype=dtype) + 0.1
        log_pi = (weight / weight.sum(-1, keepdim=True)).log()
        mu = torch.randn(*shape, d, generator=g, dtype=dtype)
        return Mixture(log_pi, mu, torch.rand(*shape, d, generator=g, dtype=dtype) + 0.2)

    classes = mixture(c, k)
    return GMMBank(classes.log_pi, classes.mu, classes.var, mixture(k), torch.arange(c) % 2 == 0)


def test_log_likelihood_is_that_of_torch_distributions() -> None:
    bank = random_bank(dtype=torch.float64)
    patches, classes = torch.randn(6, 7, 5, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2, 0])
    got = log_likelihood(bank, patches, classes)
    for b, c in enumerate(classes.tolist()):
        normal = torch.distributions.Normal(bank.mu[c], bank.var[c].sqrt())
        want = bank.log_pi[c] + normal.log_prob(patches[b, :, None]).sum(-1)
        torch.testing.assert_close(got[b], want)


def test_log_likelihood_is_float32_for_half_patches_and_under_autocast() -> None:
    bank, patches, classes = random_bank(), torch.randn(2, 4, 5), torch.tensor([1, 2])
    plain = log_likelihood(bank, patches, classes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(log_likelihood(bank, patches, classes), plain)
    assert log_likelihood(bank, patches.half(), classes).dtype == torch.float32


def test_precision_settings_survive() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        log_likelihood(random_bank(), torch.randn(1, 2, 5), torch.tensor([0]))
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_select_picks_classes_in_order() -> None:
    bank = random_bank()
    part = bank.select(torch.tensor([2, 0, 2]))
    assert torch.equal(part.mu, bank.mu[[2, 0, 2]]) and torch.equal(part.fitted, bank.fitted[[2, 0, 2]])
    assert part.shared is bank.shared


def test_a_bank_before_any_fit_is_the_shared_mixture() -> None:
    bank = GMMBank.all_shared(random_bank().shared, 6)
    assert bank.mu.shape == (6, 3, 5) and not bool(bank.fitted.any())
    assert all(torch.equal(bank.var[c], bank.shared.var) for c in range(6))


def test_tensors_round_trip_through_safetensors() -> None:
    from safetensors.torch import load, save

    bank = random_bank()
    back = GMMBank.from_tensors(load(save(bank.to_tensors())))
    for name, tensor in bank.to_tensors().items():
        assert torch.equal(tensor, back.to_tensors()[name]), name
    assert back.fitted.dtype == torch.bool


def test_foreign_tensors_are_refused() -> None:
    tensors = random_bank().to_tensors()
    with pytest.raises(ValueError, match=r"shared\.mu"):
        GMMBank.from_tensors({name: t for name, t in tensors.items() if name != "shared.mu"})
    with pytest.raises(ValueError, match="fit together"):
        GMMBank.from_tensors(tensors | {"fitted": torch.ones(9)})
    with pytest.raises(ValueError, match=r"log_pi \[\.\.\., K\]"):
        GMMBank.from_tensors(tensors | {"mu": torch.ones(4, 2, 5)})
