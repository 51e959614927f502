from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from partgcd.methods import ema
from partgcd.model.losses import classification_distilled
from partgcd.run.folder import RunFolder

RunOf = Callable[..., RunFolder]


def test_a_teacher_that_is_the_student_is_simgcd() -> None:
    cosine = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))
    same = float(ema.distilled_from(cosine, cosine, 0.05, 0.1))
    assert same == pytest.approx(float(classification_distilled(cosine, 0.1, 0.05)), rel=1e-6)
    assert float(ema.distilled_from(cosine.flip(2), cosine, 0.05, 0.1)) != pytest.approx(same, rel=1e-3)


def test_without_memory_the_run_is_simgcds_and_with_it_another(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_of("simgcd").read_metrics()[-1]["loss"]
    slow = run_of("simgcd-ema").read_metrics()[-1]["loss"]
    assert slow["cls_unsupervised"] != plain["cls_unsupervised"]
    monkeypatch.setattr(ema, "MOMENTUM", 0.0)
    assert run_of("simgcd-ema").read_metrics()[-1]["loss"]["total"] == pytest.approx(plain["total"], rel=1e-4)
