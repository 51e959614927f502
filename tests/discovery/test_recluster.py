"""Which clusters prototypes are set to, in a training that begins anew and in one that goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.cluster.novel_samples import Expected
from partgcd.config.tree import Settings
from partgcd.discovery.recluster import recluster, settle
from partgcd.discovery.refresh import Features

SettingsOf = Callable[..., Settings]


class Alone:
    """A world of one."""

    rank, size = 0, 1

    def broadcast(self, values: Tensor) -> Tensor:
        return values

    def all_gather(self, values: Tensor) -> Tensor:
        return values


def look_alikes() -> tuple[Tensor, Tensor]:
    """Two known classes with 20 remembered images each; 10 more of each, and 20 that look like the first. [80, 8]."""
    axes, draw = np.eye(8), np.random.default_rng(3)
    kinds = [axes[0], axes[1], axes[0], axes[1], axes[0] + 0.5 * axes[4]]
    rows = np.concatenate([
        kind + 0.05 * draw.normal(size=(count, 8)) for kind, count in zip(kinds, (20, 20, 10, 10, 20), strict=True)
    ])  # fmt: skip
    labels = np.concatenate([np.repeat([0, 1], 20), np.full(40, -1)])
    return torch.nn.functional.normalize(torch.from_numpy(rows).float(), dim=1), torch.from_numpy(labels)


def setup_of(labels: Tensor, classes: int, expected: Expected | None) -> Any:
    model = SimpleNamespace(prototypes=lambda features: features[:, :classes])
    return SimpleNamespace(model=model, labels=labels, old=2, classes=classes, expected=expected)


def test_during_training_look_alikes_are_told_by_number_whatever_the_prototypes_say(
    settings_of: SettingsOf,
) -> None:
    rows, labels = look_alikes()
    setup = setup_of(labels, 3, Expected(np.array([30, 30]), 20))
    assert (setup.model.prototypes(rows).argmax(dim=1)[60:] == 0).all()
    found = recluster(setup, Features(rows, rows), settings_of(), Alone(), 2)  # type: ignore[arg-type]
    assert (found[:20] == 0).all() and (found[20:40] == 1).all(), "labels hold"
    assert int((found[60:] == 2).sum()) >= 18 and int((found[40:60] == 2).sum()) <= 2


@pytest.mark.parametrize("new", [2, 3])
def test_the_last_clustering_goes_on_from_the_heads_answers(settings_of: SettingsOf, new: int) -> None:
    """Where they gave the look-alikes a class of their own, mostly, it gets the others; where not, none."""
    rows, labels = look_alikes()
    heads = torch.full((80, new), 0.01)
    heads[:, 0] = 0.99
    heads[20:40] = heads[50:60] = torch.tensor([0.01, 0.99, 0.01][:new])
    if new == 3:
        heads[64:] = torch.tensor([0.01, 0.01, 0.98])
    setup = setup_of(labels, new, Expected(np.array([30, 30]), 20 if new == 3 else 0))
    found = settle(setup, Features(rows, rows), heads, rows, settings_of(), Alone())  # type: ignore[arg-type]
    assert found.tolist() == [0] * 20 + [1] * 20 + [0] * 10 + [1] * 10 + [2 if new == 3 else 0] * 20
