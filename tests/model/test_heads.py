from __future__ import annotations

import pytest
import torch
from torch import nn

from partgcd.model.heads import PartAdapter, Projector, Prototypes


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(seed: int = 0) -> list[nn.Module]:
    generator = seeded(seed)
    return [Projector(8, 16, 4, generator), Prototypes(5, 8, generator), PartAdapter(3, 8, 12, generator)]


def parameters(modules: list[nn.Module]) -> torch.Tensor:
    return torch.cat([value.flatten() for module in modules for value in module.parameters()])


def test_shapes_carry_any_leading_dimensions() -> None:
    projector, prototypes, adapter = build()
    assert projector(torch.randn(2, 7, 8)).shape == (2, 7, 4)
    assert prototypes(torch.randn(2, 7, 8)).shape == (2, 7, 5)
    assert adapter(torch.randn(2, 7, 3, 8)).shape == (2, 7, 8)


def test_initial_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = parameters(build())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(parameters(build()), first)
    assert not torch.equal(parameters(build(seed=1)), first)


def test_mlps_start_with_zero_biases_and_small_weights() -> None:
    for layer in Projector(64, 128, 32, seeded()).layers:
        if isinstance(layer, nn.Linear):
            assert not layer.bias.any()
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_prototypes_start_as_long_as_the_baselines() -> None:
    norms = Prototypes(50, 384, seeded()).weight.norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 3**-0.5), rtol=0.15, atol=0)


def test_cosine_ignores_the_length_of_features_and_prototypes() -> None:
    prototypes = Prototypes(5, 8, seeded())
    features = torch.randn(6, 8, generator=seeded(3))
    cosine = prototypes.cosine(features)
    expected = torch.cosine_similarity(features[:, None], prototypes.weight[None], dim=-1)
    torch.testing.assert_close(cosine, expected)
    with torch.no_grad():
        prototypes.weight.mul_(torch.arange(1, 6)[:, None])
    torch.testing.assert_close(prototypes.cosine(features * 7), cosine)
    torch.testing.assert_close(prototypes.unit().norm(dim=1), torch.ones(5))


def test_cosine_keeps_full_precision_under_autocast() -> None:
    prototypes = Prototypes(5, 8, seeded())
    features = torch.randn(6, 8, generator=seeded(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = prototypes(features)
        half = prototypes(features.bfloat16())
    assert torch.equal(cast, prototypes(features))
    assert half.dtype == torch.float32
    assert prototypes(features.double()).dtype == torch.float64


def test_the_adapter_tells_slots_apart() -> None:
    adapter = PartAdapter(3, 8, 12, seeded())
    parts = torch.randn(4, 3, 8, generator=seeded(5))
    assert not torch.allclose(adapter(parts), adapter(parts[:, [1, 0, 2]]))
