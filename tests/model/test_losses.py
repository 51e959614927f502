from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from partgcd.config.tree import LossSettings
from partgcd.model.losses import (
    alpha_at,
    base_loss,
    classification_distilled,
    classification_supervised,
    contrast_supervised,
    contrast_unsupervised,
    mean_entropy,
    part_discrepancy,
    teacher_temperature,
)

B, C, D, K = 4, 3, 5, 3
LABELS = torch.tensor([0, -1, 2, 0])
PRESENT = torch.tensor(
    [
        [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]],
        [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]],
    ],
    dtype=torch.bool,
)


def cosines(batch: int = B, seed: int = 0) -> Tensor:
    values = torch.rand(2, batch, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values * 2 - 1


def vectors(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def softmax(row: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in row]
    return [power / sum(powers) for power in powers]


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# Closed forms


def test_supervised_classification_is_the_mean_cross_entropy_of_both_views() -> None:
    cosine = cosines()
    expected = [
        -math.log(softmax(cosine[view, image].tolist(), 0.1)[int(LABELS[image])])
        for view in range(2)
        for image in (0, 2, 3)
    ]
    value = classification_supervised(cosine, LABELS, 0.1)
    assert value.item() == pytest.approx(sum(expected) / 6, rel=1e-12)


def test_distilled_classification_teaches_each_view_by_the_other() -> None:
    cosine = cosines()
    expected = 0.0
    for student, teacher in ((0, 1), (1, 0)):
        for image in range(B):
            target = softmax(cosine[teacher, image].tolist(), 0.05)
            answer = softmax(cosine[student, image].tolist(), 0.1)
            expected -= sum(t * math.log(a) for t, a in zip(target, answer, strict=True)) / (2 * B)
    assert classification_distilled(cosine, 0.1, 0.05).item() == pytest.approx(expected, rel=1e-12)


def test_no_gradient_reaches_the_teacher() -> None:
    cosine = cosines().requires_grad_()
    classification_distilled(cosine, 0.1, 0.05).backward()
    student = cosine.detach().clone().requires_grad_()
    target = (cosine.detach() / 0.05).softmax(-1).flip(0)
    (-(target * (student / 0.1).log_softmax(-1)).sum(-1).mean()).backward()
    torch.testing.assert_close(cosine.grad, student.grad)


def test_mean_entropy_is_the_distance_of_the_mean_prediction_from_uniform() -> None:
    cosine = cosines()
    rows = [softmax(row, 0.1) for row in cosine.flatten(0, 1).tolist()]
    mean = [sum(row[c] for row in rows) / len(rows) for c in range(C)]
    expected = sum(p * math.log(p) for p in mean) + math.log(C)
    assert mean_entropy(cosine, 0.1).item() == pytest.approx(expected, rel=1e-12)


def test_mean_entropy_is_zero_at_uniform_and_log_c_at_collapse() -> None:
    balanced = torch.eye(C, dtype=torch.float64).expand(2, C, C)
    assert mean_entropy(balanced, 0.1).item() == pytest.approx(0.0, abs=1e-12)
    collapsed = torch.zeros(2, B, C, dtype=torch.float64)
    collapsed[..., 1] = 1
    assert mean_entropy(collapsed, 0.001).item() == pytest.approx(math.log(C))


def test_mean_entropy_has_a_finite_gradient_where_predictions_underflow() -> None:
    collapsed = torch.zeros(2, B, C)
    collapsed[..., 1] = 1
    collapsed.requires_grad_()
    mean_entropy(collapsed, 0.001).backward()
    assert collapsed.grad is not None and collapsed.grad.isfinite().all()


def test_unsupervised_contrast_is_info_nce_over_all_other_samples() -> None:
    h = vectors(2, B, D)
    rows = [unit(row) for row in h.flatten(0, 1).tolist()]
    expected = 0.0
    for anchor in range(2 * B):
        positive = (anchor + B) % (2 * B)
        others = [math.exp(dot(rows[anchor], rows[n]) / 0.3) for n in range(2 * B) if n != anchor]
        expected -= math.log(math.exp(dot(rows[anchor], rows[positive]) / 0.3) / sum(others)) / (2 * B)
    assert contrast_unsupervised(h, 0.3).item() == pytest.approx(expected, rel=1e-12)


def test_supervised_contrast_is_supcon_over_labelled_samples() -> None:
    h = vectors(2, B, D)
    rows = [unit(row) for row in h.flatten(0, 1).tolist()]
    label = LABELS.tolist() * 2
    samples = [n for n in range(2 * B) if label[n] >= 0]
    expected = 0.0
    for anchor in samples:
        others = [n for n in samples if n != anchor]
        denominator = sum(math.exp(dot(rows[anchor], rows[n]) / 0.3) for n in others)
        positives = [n for n in others if label[n] == label[anchor]]
        for n in positives:
            share = math.exp(dot(rows[anchor], rows[n]) / 0.3) / denominator
            expected -= math.log(share) / len(positives) / len(samples)
    assert contrast_supervised(h, LABELS, 0.3).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("with_positive", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_part_discrepancy_contrasts_parts_present_in_both_views(with_positive: bool, normalise: bool) -> None:
    v = vectors(2, B, K, D)
    terms = []
    for first, second in ((0, 1), (1, 0)):
        for image in range(B):
            kept = [k for k in range(K) if PRESENT[0, image, k] and PRESENT[1, image, k]]
            if len(kept) < 2:
                continue
            for k in kept:
                scale = unit if normalise else list
                anchor = scale(v[first, image, k].tolist())
                power = {n: math.exp(dot(anchor, scale(v[second, image, n].tolist())) / 0.5) for n in kept}
                below = sum(power[n] for n in kept if n != k or with_positive)
                terms.append(-math.log(power[k] / below))
    value = part_discrepancy(v, PRESENT, 0.5, with_positive, normalise)
    assert len(terms) == 2 * (3 + 2)
    assert value.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_part_discrepancy_survives_sums_of_unnormalised_patches() -> None:
    v = (vectors(2, B, K, D) * 1e3).float().requires_grad_()
    value = part_discrepancy(v, PRESENT, 1.0, False, normalise=False)
    value.backward()
    assert value.isfinite() and v.grad is not None and v.grad.isfinite().all()


# Gradients, batches without labels, symmetries

TERMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "classification_supervised": (lambda x: classification_supervised(x, LABELS, 0.5), (2, B, C)),
    "mean_entropy": (lambda x: mean_entropy(x, 0.5), (2, B, C)),
    "contrast_unsupervised": (lambda x: contrast_unsupervised(x, 0.5), (2, B, D)),
    "contrast_supervised": (lambda x: contrast_supervised(x, LABELS, 0.5), (2, B, D)),
    "part_discrepancy": (lambda x: part_discrepancy(x, PRESENT, 0.5, False), (2, B, K, D)),
    "part_discrepancy_info_nce": (lambda x: part_discrepancy(x, PRESENT, 0.5, True, False), (2, B, K, D)),
}


@pytest.mark.parametrize("name", TERMS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    term, shape = TERMS[name]
    assert torch.autograd.gradcheck(term, (vectors(*shape).requires_grad_(),))


EMPTY: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "no label, classification": (
        lambda x: classification_supervised(x, torch.full((B,), -1), 0.1),
        (2, B, C),
    ),
    "no label, contrast": (lambda x: contrast_supervised(x, torch.full((B,), -1), 0.07), (2, B, D)),
    "one label, contrast": (
        lambda x: contrast_supervised(x, torch.tensor([-1, 1, -1, -1]), 0.07),
        (2, B, D),
    ),
    "no part": (
        lambda x: part_discrepancy(x, torch.zeros(2, B, K, dtype=torch.bool), 0.1, False),
        (2, B, K, D),
    ),
    "one part": (
        lambda x: part_discrepancy(x, torch.arange(K).expand(2, B, K) == 1, 0.1, True),
        (2, B, K, D),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_term_without_anything_to_count_is_zero_with_a_zero_gradient(name: str, dtype: torch.dtype) -> None:
    term, shape = EMPTY[name]
    values = vectors(*shape).to(dtype).requires_grad_()
    result = term(values)
    assert result.item() == 0.0 and result.dtype == dtype
    result.backward()
    assert values.grad is not None and torch.equal(values.grad, torch.zeros_like(values))


def test_classification_with_one_labelled_image_is_its_cross_entropy() -> None:
    cosine = cosines()
    labels = torch.tensor([-1, 1, -1, -1])
    expected = sum(-math.log(softmax(cosine[view, 1].tolist(), 0.1)[1]) for view in range(2)) / 2
    assert classification_supervised(cosine, labels, 0.1).item() == pytest.approx(expected)


def test_unlabelled_images_do_not_touch_the_supervised_terms() -> None:
    cosine, h = cosines().requires_grad_(), vectors(2, B, D).requires_grad_()
    (classification_supervised(cosine, LABELS, 0.1) + contrast_supervised(h, LABELS, 0.1)).backward()
    assert cosine.grad is not None and h.grad is not None
    assert not cosine.grad[:, 1].any() and not h.grad[:, 1].any()
    assert cosine.grad[:, 0].any() and h.grad[:, 0].any()


def test_absent_parts_get_no_gradient() -> None:
    v = vectors(2, B, K, D).requires_grad_()
    part_discrepancy(v, PRESENT, 0.1, False).backward()
    assert v.grad is not None
    counted = (PRESENT[0] & PRESENT[1]) & ((PRESENT[0] & PRESENT[1]).sum(-1, keepdim=True) >= 2)
    assert torch.equal(v.grad.abs().sum(-1).bool(), counted.expand(2, -1, -1))


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [1, 2, 3, 0]])
def test_terms_do_not_depend_on_the_order_of_images_or_views(order: list[int]) -> None:
    cosine, h, v = cosines(), vectors(2, B, D), vectors(2, B, K, D)

    def terms(rows: list[int], views: list[int]) -> list[float]:
        def turn(values: Tensor) -> Tensor:
            return values[views][:, rows]

        found = base_loss(turn(cosine), turn(h), LABELS[rows], LossSettings(), 0.05)
        discrepancy = part_discrepancy(turn(v), turn(PRESENT), 0.1, False)
        return [value.item() for value in [*found.values(), discrepancy]]

    assert terms(order, [1, 0]) == pytest.approx(terms([0, 1, 2, 3], [0, 1]), rel=1e-12)


def test_part_discrepancy_does_not_depend_on_the_order_of_parts() -> None:
    v = vectors(2, B, K, D)
    turned = part_discrepancy(v[:, :, [2, 0, 1]], PRESENT[:, :, [2, 0, 1]], 0.1, False)
    assert turned.item() == pytest.approx(part_discrepancy(v, PRESENT, 0.1, False).item(), rel=1e-12)


def test_losses_keep_full_precision_under_autocast_and_for_half_inputs() -> None:
    cosine, h, v = cosines().float(), vectors(2, B, D).float(), vectors(2, B, K, D).float()

    def total(dtype: torch.dtype) -> Tensor:
        terms = base_loss(cosine.to(dtype), h.to(dtype), LABELS, LossSettings(), 0.05)
        return torch.stack([*terms.values(), part_discrepancy(v.to(dtype), PRESENT, 0.1, False)])

    plain = total(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = total(torch.float32)
        half = total(torch.bfloat16)
    assert torch.equal(cast, plain)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0.1, atol=0.1)


# The sum of terms, and the schedules


def test_base_loss_weighs_its_terms_by_lambda() -> None:
    settings = LossSettings(supervised_weight=0.25, mean_entropy_weight=2.0)
    terms = {
        name: value.item()
        for name, value in base_loss(cosines(), vectors(2, B, D), LABELS, settings, 0.05).items()
    }
    unlabelled = terms["cls_unsupervised"] + 2 * terms["mean_entropy"]
    assert terms["cls"] == pytest.approx(0.25 * terms["cls_supervised"] + 0.75 * unlabelled)
    assert terms["rep"] == pytest.approx(0.25 * terms["rep_supervised"] + 0.75 * terms["rep_unsupervised"])
    assert terms["cls_supervised"] > 0 and terms["rep_supervised"] > 0


def test_base_loss_keeps_lambda_for_a_batch_without_labels_and_drops_it_for_data_without() -> None:
    none = torch.full((B,), -1)
    batch = base_loss(cosines(), vectors(2, B, D), none, LossSettings(), 0.05)
    data = base_loss(cosines(), vectors(2, B, D), none, LossSettings(), 0.05, labelled_exist=False)
    assert batch["rep"].item() == pytest.approx(0.65 * data["rep"].item())
    assert batch["cls"].item() == pytest.approx(0.65 * data["cls"].item())


@pytest.mark.parametrize(
    ("progress", "expected"), [(0, 0.07), (15, 0.055), (30, 0.04), (31, 0.04), (200, 0.04)]
)
def test_teacher_temperature_falls_along_a_cosine(progress: float, expected: float) -> None:
    assert teacher_temperature(progress, LossSettings(), 200) == pytest.approx(expected)


def test_teacher_temperature_falls_slowly_at_first() -> None:
    settings = LossSettings()
    assert 0.07 - teacher_temperature(5, settings, 200) < (0.07 - 0.04) / 6
    assert teacher_temperature(0, LossSettings(teacher_warmup=0.0), 200) == 0.04


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0.0), (0.5, 0.5), (1, 1.0), (2, 2.0), (19, 2.0)])
def test_alpha_rises_linearly_from_zero(epoch: float, expected: float) -> None:
    assert alpha_at(epoch, 20, 2.0, 0.1) == pytest.approx(expected)


def test_alpha_without_warm_up_is_whole_at_once() -> None:
    assert alpha_at(0, 20, 2.0, 0.0) == 2.0
