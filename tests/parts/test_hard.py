from __future__ import annotations

import pytest
import torch

from partgcd.parts.bank import GMMBank
from partgcd.parts.hard import fit_hard
from partgcd.parts.maps import part_maps
from partgcd.parts.mixture import Mixture


@pytest.fixture
def groups() -> tuple[torch.Tensor, torch.Tensor, Mixture]:
    """Two classes with three clear groups each, and a third class with too few patches."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 3, 8, generator=draw) * 3
    rows = (centres[:, :, None] + 0.05 * torch.randn(2, 3, 20, 8, generator=draw)).reshape(120, 8)
    few = torch.randn(2, 8, generator=draw)
    start = Mixture(
        torch.zeros(3, 3).log_softmax(dim=1),
        torch.cat([centres + 0.3, torch.zeros(1, 3, 8)]),
        torch.ones(3, 3, 8),
    )
    return torch.cat([rows, few]), torch.tensor([60, 60, 2]), start


def test_centres_are_those_of_the_groups_in_the_order_they_started(
    groups: tuple[torch.Tensor, torch.Tensor, Mixture],
) -> None:
    patches, sizes, start = groups
    found = fit_hard(patches, sizes, start)
    wanted = patches[:120].reshape(2, 3, 20, 8).mean(dim=2)
    assert torch.allclose(found.mu[:2], wanted, atol=1e-4)
    assert torch.equal(found.mu[2], start.mu[2])


def test_maps_name_the_nearest_centre(groups: tuple[torch.Tensor, torch.Tensor, Mixture]) -> None:
    patches, sizes, start = groups
    found = fit_hard(patches, sizes, start)
    shared = Mixture(found.log_pi[0], found.mu[0], found.var[0])
    bank = GMMBank(found.log_pi, found.mu, found.var, shared, torch.ones(3, dtype=torch.bool))
    images = patches[:120].reshape(2, 60, 8)
    maps = part_maps(bank, images, torch.tensor([0, 1]))
    nearest = torch.cdist(images, found.mu[:2]).argmin(dim=2)
    assert torch.equal(maps.argmax(dim=2), nearest)
    assert float(maps.amax(dim=2).min()) > 0.999
