from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partgcd.parts.bank import GMMBank
from partgcd.parts.maps import part_maps
from partgcd.parts.mixture import Mixture
from partgcd.parts.slots import align_slots, permute

C, K, D = 3, 5, 4


def noisy_copies(seed: int) -> tuple[Mixture, Mixture]:
    """A shared mixture and class mixtures that each scatter around it, slot by slot."""
    g = torch.Generator().manual_seed(seed)
    shared = Mixture(torch.full((K,), 0.2).log(), torch.randn(K, D, generator=g) * 3, torch.ones(K, D))
    mu = shared.mu + 0.3 * torch.randn(C, K, D, generator=g)
    log_pi = torch.log_softmax(torch.randn(C, K, generator=g), -1)
    return shared, Mixture(log_pi, mu, torch.rand(C, K, D, generator=g) + 0.5)


@settings(max_examples=40, deadline=None)
@given(orders=st.lists(st.permutations(range(K)), min_size=C, max_size=C), seed=st.integers(0, 20))
def test_realigning_permuted_components_gives_back_mixture_and_part_maps(
    orders: list[list[int]], seed: int
) -> None:
    shared, mixture = noisy_copies(seed)
    aligned = permute(mixture, align_slots(mixture, shared.mu))
    mixed = permute(mixture, torch.tensor(orders))
    again = permute(mixed, align_slots(mixed, shared.mu))
    patches, classes = torch.randn(4, 6, D), torch.tensor([0, 1, 2, 1])
    maps = []
    for one in (aligned, again):
        bank = GMMBank(one.log_pi, one.mu, one.var, shared, torch.ones(C, dtype=torch.bool))
        maps.append(part_maps(bank, patches, classes))
    for name in ("log_pi", "mu", "var"):
        assert torch.equal(getattr(aligned, name), getattr(again, name))
    assert torch.equal(maps[0], maps[1])


def test_components_go_to_the_slot_of_the_nearest_reference_mean() -> None:
    reference = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    mu = reference[[2, 0, 1]].unsqueeze(0) + 0.5
    mixture = Mixture(torch.full((1, 3), 1 / 3).log(), mu, torch.ones_like(mu))
    assert align_slots(mixture, reference).tolist() == [[1, 2, 0]]


def test_each_class_may_have_its_own_reference() -> None:
    _, mixture = noisy_copies(1)
    order = torch.stack([torch.randperm(K) for _ in range(C)])
    mixed = permute(mixture, order)
    assert torch.equal(permute(mixed, align_slots(mixed, mixture.mu)).mu, mixture.mu)


def test_no_two_components_share_a_slot_even_when_one_slot_is_nearest_to_both() -> None:
    reference = torch.tensor([[0.0], [100.0]])
    mu = torch.tensor([[[1.0], [2.0]]])
    mixture = Mixture(torch.full((1, 2), 0.5).log(), mu, torch.ones_like(mu))
    assert align_slots(mixture, reference).tolist() == [[0, 1]]


def test_no_classes_give_no_slots() -> None:
    empty = Mixture(torch.zeros(0, K), torch.zeros(0, K, D), torch.ones(0, K, D))
    assert align_slots(empty, torch.zeros(K, D)).shape == (0, K)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_alignment_on_a_gpu_is_that_of_the_cpu() -> None:
    shared, mixture = noisy_copies(3)
    on_gpu = align_slots(mixture.to("cuda"), shared.mu.to("cuda"))
    assert on_gpu.is_cuda and torch.equal(on_gpu.cpu(), align_slots(mixture, shared.mu))
