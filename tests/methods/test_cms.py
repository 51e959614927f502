from __future__ import annotations

from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
import torch

from partgcd.methods.cms import shift
from partgcd.run.folder import RunFolder

RunOf = Callable[..., RunFolder]


def test_a_shift_goes_half_way_to_the_others_and_not_to_itself() -> None:
    memory = torch.eye(2)
    half = 2**-0.5
    moved = shift(memory, memory, torch.arange(2))
    assert torch.allclose(moved, torch.tensor([[half, half], [half, half]]))


def test_a_run_descends_contrast_alone_and_answers_with_its_clusters(run_of: RunOf) -> None:
    run = run_of("cms")
    loss = run.read_metrics()[-1]["loss"]
    wanted = 0.35 * loss["rep_supervised"] + 0.65 * loss["rep_unsupervised"]
    assert loss["total"] == pytest.approx(wanted, rel=1e-5)
    assert len(set(pq.read_table(run.predictions)["class_id"].to_pylist())) > 1 and run.model.exists()
