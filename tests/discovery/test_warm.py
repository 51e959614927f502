"""What a training that goes on is held to: the former answers, and the new classes found so far."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partgcd.discovery.warm import Teacher

LABELS = torch.tensor([0, 1, -1, -1, -1])


def teacher(found: list[int] | None = None) -> Teacher:
    """Of five images and classes 0 and 1; the first two are remembered, the others the champion knew no better."""
    targets = torch.tensor(
        [[1.0, 0, 0, 0], [0, 1, 0, 0], [0.6, 0.4, 0, 0], [0.6, 0.4, 0, 0], [0.6, 0.4, 0, 0]]
    )
    weights = torch.tensor([1.0, 1, 0, 0, 0])
    return Teacher(targets, weights, 1.0, torch.tensor(found or [-1] * 5))


def sure_of(classes: list[int]) -> Tensor:
    """Cosines [2, B, 4] that are sure of a class an image."""
    return torch.nn.functional.one_hot(torch.tensor(classes), 4).float().expand(2, -1, -1)


def test_unlabelled_images_of_new_clusters_are_taught_and_others_never() -> None:
    followed = teacher().follow(torch.tensor([2, 1, 2, 3, 0]), LABELS, 2)
    assert followed.found.tolist() == [-1, -1, 2, 3, -1], (
        "a remembered image in a new cluster keeps its class"
    )
    picked = followed.pick(torch.tensor([4, 3, 2, 0]))
    assert picked.targets[1:3].argmax(dim=1).tolist() == [3, 2] and picked.targets[3, 0] == 1
    assert picked.weights[0] == 0 and picked.weights[3] == 1
    assert (picked.weights[1:3] > 0).all() and (picked.weights[1:3] < 1).all(), "less than what is remembered"
    again = followed.follow(torch.tensor([0, 1, 0, 2, 3]), LABELS, 2)
    assert again.found.tolist() == [-1, -1, -1, 2, 3], "later clusters replace earlier ones"
    torch.testing.assert_close(again.pick(torch.tensor([2])).targets, teacher().targets[2:3])


@pytest.mark.parametrize("found", [None, [-1, -1, 2, 3, -1]])
def test_only_what_was_found_pulls_new_photos_to_new_classes(found: list[int] | None) -> None:
    rows = torch.arange(5)
    asked = teacher(found).pick(rows)
    as_old, as_new = (asked.loss(sure_of([0, 1, *rest]), 0.1) for rest in ([0, 0, 0], [2, 3, 0]))
    if found is None:
        assert float(as_old) == pytest.approx(float(as_new))
    else:
        assert float(as_new) < 0.1 < float(as_old)


def test_a_batch_without_anything_to_hold_on_to_costs_nothing() -> None:
    assert float(teacher().pick(torch.tensor([2, 3])).loss(sure_of([0, 0]), 0.1)) == 0.0
