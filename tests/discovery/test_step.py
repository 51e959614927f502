from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from partgcd.backbone.load import load_backbone
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings, Settings
from partgcd.discovery.predict import PartModel
from partgcd.discovery.step import StepLoss, Trainee, Views, step_loss
from partgcd.methods import partgcd, simgcd
from partgcd.methods.method import Moment, Scene
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection
from partgcd.run.device import autocast
from partgcd.run.world import ALONE

BATCH, CLASSES, PARTS, DIM = 4, 5, 3, 8
LABELS = torch.tensor([0, 1, -1, -1])
ASSIGNED = torch.tensor([0, 1, 3, 4])
PLAIN = autocast("fp32", torch.device("cpu"))


def settings_with(*assignments: str) -> Settings:
    return load_settings(assignments=["loss.projector_hidden=16", "loss.projector_out=8", *assignments])


class Stage:
    """A fresh model with tokens of two views and a bank."""

    def __init__(self, parts: bool = True) -> None:
        backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
        self.model = DiscoveryModel(backbone, CLASSES, PARTS if parts else None, settings_with())
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (2 * BATCH, 3, 96, 96), dtype=torch.uint8, generator=generator)
        self.tokens = backbone.trunk(pixels)
        projection = fit_projection(backbone.frozen_patches(self.tokens).flatten(0, 1), DIM, 0)
        draw = torch.randn(PARTS, DIM, generator=generator)
        shared = Mixture(torch.full((PARTS,), -1.1), draw, torch.ones(PARTS, DIM))
        self.parts = PartModel(GMMBank.all_shared(shared, CLASSES), projection) if parts else None

    def loss(
        self, *assignments: str, alpha: float = 2.0, labels: Tensor = LABELS, labelled: bool = True
    ) -> StepLoss:
        settings = settings_with(*assignments)
        module = partgcd if self.parts is not None else simgcd
        course = module.begin(Scene(self.model, labels, 2, settings))
        trainee = Trainee(self.model, self.parts, course, settings, PLAIN)
        views = Views(self.tokens, ASSIGNED, torch.arange(BATCH), labels, [BATCH])
        return step_loss(trainee, views, Moment(0.05, alpha, labelled), ALONE)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


def test_the_objective_is_the_sum_of_its_terms(stage: Stage) -> None:
    terms = stage.loss("parts.pdr_weight=0.5", alpha=1.5).terms
    wanted = terms["cls"] + terms["rep"] + 1.5 * (0.5 * terms["pdr"] + terms["part_cls"] + terms["part_rep"])
    assert terms["total"] == pytest.approx(wanted, rel=1e-5)
    assert all(math.isfinite(value) for value in terms.values())


@pytest.mark.parametrize(
    ("setting", "dropped"), [("parts.classification=false", "part_cls"), ("parts.contrast=false", "part_rep")]
)
def test_ablations_drop_one_term(stage: Stage, setting: str, dropped: str) -> None:
    whole, less = stage.loss(alpha=1.0).terms, stage.loss(setting, alpha=1.0).terms
    assert less["total"] == pytest.approx(whole["total"] - whole[dropped], rel=1e-4)


def test_before_the_warm_up_the_part_branch_only_watches(stage: Stage) -> None:
    loss = stage.loss(alpha=0.0)
    assert loss.terms["total"] == pytest.approx(loss.terms["cls"] + loss.terms["rep"], rel=1e-5)
    assert loss.terms["pdr"] != 0


def test_the_baseline_has_no_part_terms() -> None:
    plain = Stage(parts=False)
    one, other = plain.loss(alpha=0.0), plain.loss(alpha=5.0)
    assert not any(name.startswith(("part_", "pdr")) for name in one.terms)
    assert one.terms == other.terms


def test_without_labels_the_supervised_terms_have_no_weight(stage: Stage) -> None:
    nobody = torch.full((BATCH,), -1)
    loss = stage.loss("loss.supervised_weight=0.35", labels=nobody, labelled=False)
    none = stage.loss("loss.supervised_weight=0", labels=nobody)
    assert loss.terms["total"] == pytest.approx(none.terms["total"], rel=1e-5)


def test_a_batch_without_a_labelled_image_is_still_finite(stage: Stage) -> None:
    loss = stage.loss(labels=torch.full((BATCH,), -1))
    assert math.isfinite(loss.terms["total"])


def test_everything_trainable_learns_and_the_trunk_does_not() -> None:
    stage = Stage()
    stage.loss().total.backward()  # type: ignore[no-untyped-call]
    for name, value in stage.model.named_parameters():
        if value.requires_grad:
            assert value.grad is not None and torch.isfinite(value.grad).all(), name
        else:
            assert value.grad is None, name
    moved = [
        name for name, value in stage.model.named_parameters() if value.grad is not None and value.grad.any()
    ]
    for part in ("backbone", "projector", "prototypes", "adapter"):
        assert any(name.startswith(part) for name in moved), part
