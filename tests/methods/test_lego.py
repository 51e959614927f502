from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from partgcd.methods.lego import ADJUSTMENT, WEIGHT, local_entropy
from partgcd.run.folder import RunFolder

RunOf = Callable[..., RunFolder]


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(each) for each in logits))
    return [each - total for each in logits]


def test_only_unlabelled_images_that_are_surely_old_count() -> None:
    # Logits are cosines over 0.05; image 0 is surely old, 1 surely new, 2 unsure, 3 labelled; two views alike.
    one = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    mean = [0.5, 0.25, 0.25]
    term = local_entropy(
        torch.stack([one, one]), torch.tensor([True, True, True, False]), 2, torch.tensor(mean), 0.1
    )
    logits = [10.0, 0.0, 0.0]
    adjusted = [each + ADJUSTMENT * math.log(share) for each, share in zip(logits, mean, strict=True)]
    pairs = zip(log_softmax(logits), log_softmax(adjusted), strict=True)
    wanted = -sum(math.exp(target) * student for target, student in pairs) / 4
    assert float(term) == pytest.approx(wanted, rel=1e-4)


def test_a_run_descends_the_term_with_its_weight(run_of: RunOf) -> None:
    loss = run_of("legogcd").read_metrics()[-1]["loss"]
    wanted = loss["cls"] + loss["rep"] + WEIGHT * loss["local_entropy"]
    assert loss["total"] == pytest.approx(wanted, rel=1e-5)
