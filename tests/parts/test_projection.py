from __future__ import annotations

import pytest
import torch

from partgcd.parts.projection import Projection, fit_projection, project, standardise


def raw_patches(m: int = 400, width: int = 24, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=g) * torch.linspace(3, 0.1, width)[:, None]
    return torch.randn(m, width, generator=g) @ mixing + 5.0


def test_standardised_patches_have_zero_mean_and_unit_length() -> None:
    x = standardise(raw_patches())
    torch.testing.assert_close(x.mean(-1), torch.zeros(400), rtol=0, atol=1e-6)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(400))
    torch.testing.assert_close(standardise(raw_patches() * 7 + 3), x, rtol=1e-4, atol=1e-5)


def test_no_dims_keep_the_standardised_patches() -> None:
    x = raw_patches().view(4, 100, 24)
    projection = fit_projection(x.view(-1, 24), 0, 0)
    assert projection.dims == 24
    assert torch.equal(project(projection, x), standardise(x))


def test_projected_patches_are_the_leading_principal_components() -> None:
    x = raw_patches()
    projection = fit_projection(x, 6, 0)
    y = project(projection, x.view(4, 100, 24))
    assert y.shape == (4, 100, 6) and projection.dims == 6
    torch.testing.assert_close(projection.basis.T @ projection.basis, torch.eye(6), rtol=0, atol=1e-5)
    covariance = torch.cov(y.view(-1, 6).double().T)
    want = torch.linalg.eigvalsh(torch.cov(standardise(x).double().T)).flip(0)[:6]
    torch.testing.assert_close(covariance, torch.diag(want), rtol=1e-4, atol=1e-6)


def test_signs_do_not_depend_on_the_order_of_patches() -> None:
    x = raw_patches()
    a, b = fit_projection(x, 5, 0), fit_projection(x.flip(0), 5, 0)
    torch.testing.assert_close(a.basis, b.basis, rtol=0, atol=1e-4)
    largest = a.basis.gather(0, a.basis.abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())


def test_the_fit_is_seeded_and_sub_sampled() -> None:
    x = raw_patches()
    a, b = (fit_projection(x, 5, seed=3, sample=100) for _ in range(2))
    assert torch.equal(a.basis, b.basis)
    assert not torch.equal(a.basis, fit_projection(x, 5, seed=4, sample=100).basis)


@pytest.mark.parametrize(("m", "dims", "want"), [(400, 100, 24), (9, 20, 8)])
def test_more_dims_than_there_are_are_cut(m: int, dims: int, want: int) -> None:
    assert fit_projection(raw_patches(m), dims, 0).dims == want


def test_impossible_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="dims is -1"):
        fit_projection(raw_patches(), -1, 0)
    with pytest.raises(ValueError, match="at least 2"):
        fit_projection(raw_patches(1), 4, 0)


@pytest.mark.parametrize("dims", [0, 5])
def test_tensors_round_trip_through_safetensors(dims: int) -> None:
    from safetensors.torch import load, save

    projection = fit_projection(raw_patches(), dims, 0)
    back = Projection.from_tensors(load(save(projection.to_tensors())))
    assert torch.equal(project(back, raw_patches(7)), project(projection, raw_patches(7)))
    with pytest.raises(ValueError, match="basis"):
        Projection.from_tensors({"mean": projection.mean})
    with pytest.raises(ValueError, match="no patch projection"):
        Projection.from_tensors({"mean": projection.mean, "basis": projection.basis[:3]})
