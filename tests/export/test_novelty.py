from __future__ import annotations

import numpy as np
import pytest
import torch

from partgcd.config.tree import PartSettings
from partgcd.discovery.predict import PartModel
from partgcd.export.novelty import (
    NEAREST,
    fit_scale,
    joint_features,
    knn_distance,
    left_out_ratios,
    log_ratio,
    novelty,
    threshold,
)
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import Projection

CLASSES, PARTS, DIM, PATCHES = 3, 2, 4, 12
SHARED = Mixture(torch.full((PARTS,), -0.7), torch.zeros(PARTS, DIM), torch.full((PARTS, DIM), 4.0))
SETTINGS = PartSettings(count=2, min_patches=10)


def images_of(classes: torch.Tensor, seed: int, shift: float = 3.0) -> torch.Tensor:
    """Patches [N, P, d] of images whose class c moves dimension c by ``shift``."""
    points = torch.randn(len(classes), PATCHES, DIM, generator=torch.Generator().manual_seed(seed))
    points[torch.arange(len(classes)), :, classes] += shift
    return points


def fitted(points: torch.Tensor, classes: torch.Tensor) -> PartModel:
    mu = torch.stack([points[classes == c].flatten(0, 1).mean(0) for c in range(CLASSES)])
    bank = GMMBank(
        torch.full((CLASSES, PARTS), -0.7), mu[:, None].repeat(1, PARTS, 1), torch.ones(CLASSES, PARTS, DIM),
        SHARED, torch.ones(CLASSES, dtype=torch.bool),
    )  # fmt: skip
    return PartModel(bank, Projection(torch.zeros(DIM), torch.zeros(DIM, 0)))


def test_the_ratio_is_written_out_for_one_image() -> None:
    classes = torch.tensor([0, 1, 2]).repeat(20)
    parts = fitted(images_of(classes, 0), classes)
    points = images_of(torch.tensor([1]), 5)
    attention = torch.tensor([[0.5] * 3 + [0.1] * 9])  # the first three lie above the mean
    normal = torch.distributions.Normal
    own = normal(parts.bank.mu[1, 0], 1.0).log_prob(points[0]).sum(1)
    everyone = normal(torch.zeros(DIM), 2.0).log_prob(points[0]).sum(1)
    expected = (own - everyone)[:3].mean()
    found = log_ratio(parts, points, attention, torch.tensor([1]), use_filter=True)
    assert found.shape == (1,) and abs(float(found[0] - expected)) < 1e-2  # -0.7 is log 1/2, nearly
    unfiltered = log_ratio(parts, points, attention, torch.tensor([1]), use_filter=False)
    assert abs(float(unfiltered[0] - (own - everyone).mean())) < 1e-2


def test_ratios_without_leaving_out_would_be_too_good() -> None:
    classes = torch.arange(CLASSES).repeat_interleave(4)
    points = images_of(classes, 1)
    rows = torch.arange(len(classes))
    per_image = torch.full((len(classes),), PATCHES)
    parts = fitted(points, classes)
    settings = SETTINGS.model_copy(update={"prior_strength": 1.0})
    left_out = left_out_ratios(parts, points.flatten(0, 1), per_image, classes, (rows, classes), settings, 0)
    fresh = images_of(classes, 99)
    alike = log_ratio(parts, fresh, torch.ones(len(classes), PATCHES), classes, True)
    assert left_out.shape == (len(classes),) and torch.isfinite(left_out).all()
    assert float(left_out.mean()) < float(alike.mean()) + 1.0
    again = left_out_ratios(parts, points.flatten(0, 1), per_image, classes, (rows, classes), settings, 0)
    assert torch.equal(left_out, again)


def test_false_alarms_and_strangers_on_images_never_seen() -> None:
    """Known classes are drawn afresh: 5% stated, strangers found far more often."""
    generator = torch.Generator().manual_seed(3)
    classes = torch.arange(CLASSES).repeat_interleave(400)
    points = images_of(classes, 1)
    parts = fitted(points, classes)
    per_image = torch.full((len(classes),), PATCHES)

    def confident(count: int) -> torch.Tensor:
        return (0.75 + 0.2 * torch.rand(count, generator=generator))[:, None]

    def fused(who: torch.Tensor) -> torch.Tensor:
        best = confident(len(who))
        return torch.where(torch.nn.functional.one_hot(who, CLASSES).bool(), best, (1 - best) / (CLASSES - 1))

    ratio = left_out_ratios(
        parts, points.flatten(0, 1), per_image, classes, (torch.arange(len(classes)), classes), SETTINGS, 0
    )
    scale = fit_scale(ratio, classes, CLASSES)
    level = threshold(novelty(fused(classes), ratio, scale).numpy())

    def rate(seed: int, shift: float) -> float:
        seen = log_ratio(
            parts, images_of(classes, seed, shift), torch.ones(len(classes), PATCHES), classes, True
        )
        return float((novelty(fused(classes), seen, scale) > level).float().mean())

    assert 0.02 < rate(50, 3.0) < 0.07
    assert rate(51, 0.0) > 0.9


def test_the_score_falls_with_confidence_and_with_likelihood() -> None:
    scale = fit_scale(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 1, 1]), 2)
    fused = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    sure, unsure = novelty(fused, torch.tensor([2.0, 2.0]), scale)
    likely, unlikely = novelty(fused[[0, 0]], torch.tensor([9.0, -9.0]), scale)
    assert sure < unsure and likely < unlikely
    assert torch.allclose(novelty(fused, None, None), -fused.max(dim=1).values.log())
    assert torch.isfinite(novelty(torch.tensor([[0.0, 0.0]]), None, None)).all()


def test_a_class_with_no_images_takes_what_all_have() -> None:
    ratio = torch.tensor([1.0, 3.0, 5.0, 7.0])
    scale = fit_scale(ratio, torch.tensor([0, 0, 2, 2]), 3)
    assert float(scale.mean[1]) == pytest.approx(4.0) and float(scale.std[1]) == pytest.approx(1.0)
    assert scale.mean[0] < scale.mean[1] < scale.mean[2] and (scale.std > 0).all()
    alike = fit_scale(torch.ones(4), torch.tensor([0, 0, 1, 1]), 2)
    assert torch.isfinite(alike.mean).all() and (alike.std > 0).all()


@pytest.mark.parametrize("count", [1, 2, 30, 1000])
def test_at_most_the_stated_share_lies_above_the_threshold(count: int) -> None:
    scores = np.random.default_rng(0).normal(size=count)
    above = float((scores > threshold(scores, 0.05)).mean())
    assert above <= 0.05 and (count < 100 or above > 0.04)


def test_remoteness_is_one_minus_the_mean_cosine_to_the_nearest() -> None:
    generator = torch.Generator().manual_seed(0)
    features, remembered = (
        torch.nn.functional.normalize(torch.randn(count, 8, generator=generator), dim=1)
        for count in (1100, 9)
    )
    cosine = features @ remembered.T
    expected = 1 - cosine.sort(dim=1, descending=True).values[:, :NEAREST].mean(dim=1)
    found, nearest = knn_distance(features, remembered)
    assert torch.allclose(found, expected, atol=1e-6) and torch.equal(nearest, cosine.argmax(dim=1))
    own = torch.full((9,), -1)
    own[4] = 4
    found, nearest = knn_distance(remembered, remembered, own)
    others = torch.cat([remembered[:4], remembered[5:]])
    assert float(found[4]) == pytest.approx(float(knn_distance(remembered[4:5], others)[0][0]), abs=1e-6)
    assert nearest[4] != 4 and nearest[3] == 3, "an image is not its own company"
    assert [len(each) for each in knn_distance(features[:0], remembered)] == [0, 0]
    assert torch.isfinite(knn_distance(features, remembered[:1])[0]).all()


def test_class_token_and_part_stand_side_by_side() -> None:
    cls, part = torch.eye(3), torch.eye(3)
    joint = joint_features(cls, part)
    assert joint.shape == (3, 6) and torch.allclose(joint.norm(dim=1), torch.ones(3))
    assert torch.allclose(joint[:, 3:], joint[:, :3] / 2)
    assert joint_features(cls, None) is cls
