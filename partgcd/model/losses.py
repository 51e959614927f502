"""The training objective, term by term: Eqs. 1 to 3 and 11 and the contrastive losses of the supplement.

Letters: B images of a batch in two views, C classes, d dimensions of the contrastive space, K parts,
D dimensions of a part feature. ``cosine`` holds W^T f of both views, without a temperature.

Every term is a scalar in float32 (float64 where the input is), also under autocast, and is defined for any
batch: where nothing counts, such as a batch without a labelled image, it is an exact zero that still has a
graph. No term waits for the device: what does not count is masked, never cut out.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from partgcd.config.tree import LossSettings


def _exact(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _without_autocast(values: Tensor) -> AbstractContextManager[object]:
    """Autocast would round the matrix products inside to bfloat16."""
    return torch.autocast(values.device.type, enabled=False)


def _mean_where(counted: Tensor, values: Tensor) -> Tensor:
    """Mean of ``values`` where ``counted``; zero, with a graph, where nothing is."""
    return values.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def _log_share(similarity: Tensor, allowed: Tensor) -> Tensor:
    """Log of exp(similarity) over its sum along the last dimension, the sum running over ``allowed`` entries.

    A row that allows nothing is summed whole instead, because a log-sum-exp over nothing has no gradient; the
    caller masks such rows out.
    """
    allowed = allowed | ~allowed.any(dim=-1, keepdim=True)
    return similarity - similarity.masked_fill(~allowed, -math.inf).logsumexp(dim=-1, keepdim=True)


def classification_supervised(cosine: Tensor, labels: Tensor, tau_s: float) -> Tensor:
    """Cross-entropy of the labelled images, both views averaged (Eq. 1).

    Shape: cosine [2, B, C]; labels [B] int64, class index or -1 for an unlabelled image.
    """
    logits = _exact(cosine) / tau_s
    both = labels.expand(logits.shape[0], -1)
    total = F.cross_entropy(logits.flatten(0, 1), both.flatten(), ignore_index=-1, reduction="sum")
    return total / (both >= 0).sum().clamp(min=1)


def classification_distilled(cosine: Tensor, tau_s: float, tau_t: float) -> Tensor:
    """Each view's sharpened, detached prediction supervises the other view; mean of both directions (Eq. 2).

    Shape: cosine [2, B, C].
    """
    logits = _exact(cosine)
    teacher = (logits.detach() / tau_t).softmax(dim=-1).flip(0)
    return -(teacher * (logits / tau_s).log_softmax(dim=-1)).sum(dim=-1).mean()


def mean_entropy(cosine: Tensor, tau_s: float) -> Tensor:
    """How far the mean prediction is from uniform: log C minus its entropy, in nats (zeta of Eq. 3).

    The mean runs over both views of the batch; minimising the term maximises the mean prediction's entropy.
    Zero at uniform, log C where everything is one class (Assran et al., 2022, as SimGCD uses it).

    Shape: cosine [2, B, C].
    """
    log_p = (_exact(cosine) / tau_s).log_softmax(dim=-1).flatten(0, 1)
    # In the log domain, because the gradient of p log p is infinite where p underflows to zero.
    log_mean = log_p.logsumexp(dim=0) - math.log(log_p.shape[0])
    return (log_mean.exp() * log_mean).sum() + math.log(log_p.shape[1])


def contrast_unsupervised(h: Tensor, tau_u: float) -> Tensor:
    """Two-view InfoNCE over the whole batch (supplement, L^u_rep).

    As in the baseline's public code, the sum over n of the supplement's formula runs over the batch of both
    views: 2B anchors, the positive of each is its other view, the denominator holds all other 2B - 1 samples
    (the positive too).

    Shape: h [2, B, d], L2-normalised inside.
    """
    views, batch, _ = h.shape
    with _without_autocast(h):
        rows = F.normalize(_exact(h), dim=-1).flatten(0, 1)
        similarity = rows @ rows.T / tau_u
    index = torch.arange(views * batch, device=h.device)
    log_share = _log_share(similarity, index[:, None] != index)
    return -log_share[index, index.roll(batch)].mean()


def contrast_supervised(h: Tensor, labels: Tensor, tau_c: float) -> Tensor:
    """Supervised contrast over the labelled images in both views (supplement, L^s_rep).

    Anchors are the 2 * B_l labelled samples; the positives of one are all others of its class, its other view
    among them, and its denominator holds all labelled samples but itself. A single labelled image has nothing
    to be told from: the term is zero.

    Shape: h [2, B, d], L2-normalised inside; labels [B] int64, -1 for an unlabelled image.
    """
    with _without_autocast(h):
        rows = F.normalize(_exact(h), dim=-1).flatten(0, 1)
        similarity = rows @ rows.T / tau_c
    label = labels.repeat(h.shape[0])
    labelled = label >= 0
    itself = torch.eye(len(label), dtype=torch.bool, device=h.device)
    allowed = labelled[:, None] & labelled & ~itself
    positive = allowed & (label[:, None] == label)
    log_share = _log_share(similarity, allowed).masked_fill(~positive, 0.0)
    return _mean_where(labelled, -log_share.sum(dim=1) / positive.sum(dim=1).clamp(min=1))


def part_discrepancy(
    v: Tensor, present: Tensor, temperature: float, positive_in_denominator: bool, normalise: bool = True
) -> Tensor:
    """Part discrepancy (Eq. 11): a part resembles itself in the other view, not the other parts.

    Only parts present in both views count, as anchors and in the denominator alike; an image with fewer than
    two such parts adds nothing. Both views take the anchor's place in turn; the mean runs over the counted
    pairs of image and part. Eq. 11 itself has the positive outside the denominator, no temperature and ``v``
    as it is; unnormalised sums of patches overflow exp, which is why ``normalise`` is the default.

    Shape: v [2, B, K, D]; present [2, B, K] bool.
    """
    with _without_autocast(v):
        parts = F.normalize(_exact(v), dim=-1) if normalise else _exact(v)
        similarity = parts[0] @ parts[1].transpose(-1, -2) / temperature  # [B, K of view 0, K of view 1]
    both = present[0] & present[1]
    counted = both & (both.sum(dim=-1, keepdim=True) >= 2)
    allowed = counted[:, :, None] & counted[:, None, :]
    if not positive_in_denominator:
        allowed = allowed & ~torch.eye(v.shape[2], dtype=torch.bool, device=v.device)
    one_way = _log_share(similarity, allowed).diagonal(dim1=-2, dim2=-1)
    other_way = _log_share(similarity.transpose(-1, -2), allowed).diagonal(dim1=-2, dim2=-1)
    return _mean_where(counted, -(one_way + other_way) / 2)


def base_loss(
    cosine: Tensor,
    h: Tensor,
    labels: Tensor,
    settings: LossSettings,
    tau_t: float,
    labelled_exist: bool = True,
) -> dict[str, Tensor]:
    """The parametric baseline's objective on one feature, global or part (Eqs. 3 and 12), with all its terms.

    ``labelled_exist`` says whether the data set has any labelled image: without one lambda is 0. A batch that
    merely happens to hold none keeps lambda, so that its terms weigh the same as in every other batch.

    Returns scalars: ``cls_supervised``, ``cls_unsupervised``, ``mean_entropy``, ``rep_supervised``,
    ``rep_unsupervised``; ``cls`` = lambda * cls_supervised + (1 - lambda) * (cls_unsupervised +
    w * mean_entropy) and ``rep`` = lambda * rep_supervised + (1 - lambda) * rep_unsupervised. The objective
    is ``cls`` + ``rep``; the paper's ablation takes them apart.

    Shape: cosine [2, B, C]; h [2, B, d]; labels [B] int64, -1 for an unlabelled image.
    """
    share = settings.supervised_weight if labelled_exist else 0.0
    terms = {
        "cls_supervised": classification_supervised(cosine, labels, settings.student_temperature),
        "cls_unsupervised": classification_distilled(cosine, settings.student_temperature, tau_t),
        "mean_entropy": mean_entropy(cosine, settings.student_temperature),
        "rep_supervised": contrast_supervised(h, labels, settings.supervised_temperature),
        "rep_unsupervised": contrast_unsupervised(h, settings.unsupervised_temperature),
    }
    unlabelled = terms["cls_unsupervised"] + settings.mean_entropy_weight * terms["mean_entropy"]
    terms["cls"] = share * terms["cls_supervised"] + (1 - share) * unlabelled
    terms["rep"] = share * terms["rep_supervised"] + (1 - share) * terms["rep_unsupervised"]
    return terms


def teacher_temperature(progress: float, settings: LossSettings, epochs: int) -> float:
    """tau_t after ``progress`` epochs (may be fractional): cosine from start to end over the warm-up."""
    warmup = settings.teacher_warmup * epochs
    if progress >= warmup:
        return settings.teacher_temperature
    falling = (1 + math.cos(math.pi * progress / warmup)) / 2
    return settings.teacher_temperature + falling * (
        settings.teacher_temperature_start - settings.teacher_temperature
    )


def alpha_at(epoch: float, epochs: int, alpha: float, warmup: float) -> float:
    """Weight of the part branch at ``epoch`` (may be fractional): linear from 0 over its warm-up share."""
    rising = warmup * epochs
    return alpha if epoch >= rising else alpha * epoch / rising
