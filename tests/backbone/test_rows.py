"""Packed rows: everything chosen is there once, in its image's order, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from partgcd.backbone.rows import rows_of


def table(rows: list[list[bool]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool).reshape(len(rows), -1)


CHOICES = st.integers(1, 6).flatmap(
    lambda patches: st.lists(
        st.lists(st.booleans(), min_size=patches, max_size=patches), min_size=1, max_size=5
    )
)


@given(CHOICES)
def test_packed_values_are_the_chosen_ones_in_order(choice: list[list[bool]]) -> None:
    chosen = table(choice)
    values = torch.arange(1.0, chosen.numel() + 1).reshape(chosen.shape)
    packed = rows_of(chosen).of(values)
    assert packed.shape == (len(chosen), max(1, int(chosen.sum(1).max())))
    for row, kept, pick in zip(values, packed, chosen, strict=True):
        assert kept.tolist() == row[pick].tolist() + [0.0] * (packed.shape[1] - int(pick.sum()))


def test_values_with_more_dimensions_keep_them() -> None:
    values = torch.rand(2, 3, 4, 5)
    packed = rows_of(table([[False, True, True], [True, False, False]])).of(values)
    assert packed.shape == (2, 2, 4, 5)
    assert torch.equal(packed[0], values[0, 1:]) and torch.equal(packed[1, 0], values[1, 0])
    assert not packed[1, 1].any()


def test_the_gradient_reaches_the_chosen_patches_alone() -> None:
    chosen = table([[True, False, True], [False, False, True]])
    values = torch.rand(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(rows_of(chosen).of(values).sum(), values)
    assert torch.equal(gradient, chosen.float())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_type_of_numbers_is_kept(kind: torch.dtype) -> None:
    assert rows_of(table([[True, False]])).of(torch.ones(1, 2, dtype=kind)).dtype == kind
