"""How unlike everything known an image is, and from which score on it is called novel.

    novelty = -log p - 0.5 z,    z = (r - mean_c) / std_c

p is the fused probability of the image's class c. r is how much better the mixture of c explains the image than
the mixture of all patches does: the mean over attention-filtered patches of log p(f | c) - log p(f | all). The
likelihood alone mostly tells how common a patch's texture and background are; the ratio takes that out (Ren et
al., 2019). mean_c and std_c are those of r over the run's images of class c. Without mixtures the score is -log p.

The threshold is a quantile of the scores of *unlabelled* images. They are the nearest to images never seen that a
run has: nobody told the model their class. Labelled images are answered far more surely than new ones of the same
classes, and a threshold set on them called a third to a half of those novel. The r used for it comes, for each
image, from mixtures fitted again without that image. The last block did see the unlabelled images: on two sets of
photographs 5.9% and 6.4% of images kept out of training were above the quantile at 5%, and 3.8% and 4.9% above the
one at 4%, which is therefore taken where 5% is stated. It speaks of images taken in the way the run's were, of old
and discovered classes in like proportions; of other cameras, other proportions, or discovered classes that mix
several kinds it can't know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from partgcd.config.tree import PartSettings
from partgcd.discovery.predict import PartModel
from partgcd.parts.bank import GMMBank, log_likelihood
from partgcd.parts.em import fit_mixtures
from partgcd.parts.exact import exact_products
from partgcd.parts.maps import attention_filter
from partgcd.parts.mixture import Mixture, log_joint

RATIO_WEIGHT = 0.5
"""Weight of z beside -log p."""

FALSE_ALARM_RATE = 0.05
"""Stated share of new images of known classes that are called novel."""

CALIBRATED_AT = 0.04
"""Share of the run's unlabelled images above the threshold; see above for why it is less than what is stated."""

NEAREST = 3
"""Remembered images that an image is compared with."""

FOLDS = 5
"""Groups of images that are left out in turn; each refit sees four fifths of what the bank saw."""

_PRIOR_IMAGES = 50.0
"""How many images' worth of the values over all classes a class's mean and variance are drawn towards."""


class RatioScale(NamedTuple):
    """Mean and standard deviation [C] of r over the images of each class."""

    mean: Tensor
    std: Tensor


def log_ratio(
    parts: PartModel, points: Tensor, attention: Tensor, classes: Tensor, use_filter: bool
) -> Tensor:
    """r of each image: mean log p(f | its class) - log p(f | all classes) over its filtered patches, in nats.

    Shape: points [B, P, d] (projected), attention [B, P], classes [B] -> [B].
    """
    own = log_likelihood(parts.bank, points, classes).logsumexp(dim=-1)
    shared = parts.bank.shared
    with exact_products(points.device):
        everyone = log_joint(
            Mixture(*(value.unsqueeze(0) for value in (shared.log_pi, shared.mu, shared.var))), points
        ).logsumexp(dim=-1)
    weight = attention_filter(attention).to(own.dtype) if use_filter else torch.ones_like(own)
    return ((own - everyone) * weight).sum(dim=1) / weight.sum(dim=1)


def novelty(fused: Tensor, ratio: Tensor | None, scale: RatioScale | None) -> Tensor:
    """The score [B], above the threshold for a novel image. Shape: fused [B, C], ratio [B]."""
    confidence, classes = fused.max(dim=1)
    score = -confidence.clamp_min(1e-12).log()
    if ratio is None or scale is None:
        return score
    return score - RATIO_WEIGHT * (ratio - scale.mean[classes]) / scale.std[classes]


def joint_features(cls: Tensor, part: Tensor | None) -> Tensor:
    """Class tokens and part features [N, D], both of unit norm, side by side: [N, F] of unit norm."""
    return cls if part is None else normalize(torch.cat([cls, 0.5 * part], dim=1), dim=1)


def knn_distance(features: Tensor, remembered: Tensor, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """How far each image is from what is remembered, and which remembered image is the nearest.

    The distance is 1 - mean cosine to the NEAREST remembered images, in 0..2.

    On the photographs of classes left out of two sets (5 to 10 of them beside as many known ones) it told unknown
    classes better than the novelty score did; unlike that it needs the remembered images.

    Shape: features [N, F], remembered [M, F], both of unit norm -> [N] and [N].

    Args:
        own: [N] which remembered image an image is itself, and thus not compared with; -1 for none.
    """
    found, which = [], []
    for start in range(0, len(features), 1024):
        cosine = features[start : start + 1024] @ remembered.T
        if own is not None:
            same = own[start : start + 1024]
            rows = (same >= 0).nonzero()[:, 0]
            cosine[rows, same[rows]] = -torch.inf
        count = min(NEAREST, max(len(remembered) - 1, 1))
        best = cosine.topk(count, dim=1)
        found.append(1 - best.values.clamp_min(-1.0).mean(dim=1))
        which.append(best.indices[:, 0])
    if not found:
        return features.new_empty(0), torch.empty(0, dtype=torch.long)
    return torch.cat(found), torch.cat(which)


def fit_scale(ratio: Tensor, predicted: Tensor, classes: int) -> RatioScale:
    """Scale of each of C classes from the r [N] of images with class index ``predicted`` [N].

    A class with few images is drawn towards the mean and the spread of all; one with none has just those.
    """
    counts = torch.bincount(predicted, minlength=classes).to(ratio.dtype)
    sums = torch.zeros(classes, dtype=ratio.dtype).index_add_(0, predicted, ratio)
    apart = ratio - (sums / counts.clamp_min(1))[predicted]
    within = apart.square().mean()
    mean = (sums + _PRIOR_IMAGES * ratio.mean()) / (counts + _PRIOR_IMAGES)
    squares = torch.zeros_like(sums).index_add_(0, predicted, (ratio - mean[predicted]).square())
    variance = (squares + _PRIOR_IMAGES * within) / (counts + _PRIOR_IMAGES)
    return RatioScale(mean, variance.sqrt().clamp_min(1e-6))


def threshold(scores: NDArray[np.floating], rate: float = CALIBRATED_AT) -> float:
    """The score that at most a share ``rate`` of ``scores`` [N] lies above, N at least 1."""
    return float(np.quantile(scores.astype(np.float64), 1.0 - rate, method="higher"))


def left_out_ratios(
    parts: PartModel,
    patches: Tensor,
    per_image: Tensor,
    predicted: Tensor,
    candidates: tuple[Tensor, Tensor],
    settings: PartSettings,
    seed: int,
) -> Tensor:
    """r [N] of the run's images, each under mixtures that were fitted without it.

    Args:
        patches: [M, d] filtered patches in the mixtures' space, ``per_image`` [N] of each image in a row.
        predicted: [N] class index.
        candidates: rows and classes of the images that the bank was fitted on.
        seed: deals the images into the FOLDS groups.
    """
    images, bank = len(per_image), parts.bank
    dealt = np.random.Generator(np.random.Philox(key=[seed, 0x0F01D])).permutation(images) % FOLDS
    fold = torch.from_numpy(dealt)
    owner = torch.repeat_interleave(torch.arange(images), per_image)
    shared = log_joint(bank.shared.repeat(1), patches.unsqueeze(0))[0].logsumexp(dim=-1)
    own = torch.empty_like(shared)
    for group in range(FOLDS):
        mixture = _without(fold == group, bank, patches, per_image, candidates, settings)
        for index in range(bank.log_pi.shape[0]):
            rows = ((fold == group) & (predicted == index))[owner].nonzero()[:, 0]
            one = Mixture(*(v[index : index + 1] for v in (mixture.log_pi, mixture.mu, mixture.var)))
            own[rows] = log_joint(one, patches[rows].unsqueeze(0))[0].logsumexp(dim=-1)
    total = torch.zeros(images, dtype=own.dtype).index_add_(0, owner, own - shared)
    return total / per_image.clamp_min(1)


def _without(
    left_out: Tensor,
    bank: GMMBank,
    patches: Tensor,
    per_image: Tensor,
    candidates: tuple[Tensor, Tensor],
    settings: PartSettings,
) -> Mixture:
    """The class mixtures as the fit loop makes them, from candidates that are not ``left_out`` [N]."""
    rows, classes = (value[~left_out[candidates[0]]] for value in candidates)
    order = torch.argsort(classes, stable=True)
    rows, classes = rows[order], classes[order]
    ends = per_image.cumsum(0)
    picked = torch.cat(
        [torch.arange(int(ends[row] - per_image[row]), int(ends[row])) for row in rows.tolist()]
    )
    count = bank.log_pi.shape[0]
    sizes = torch.zeros(count, dtype=torch.long).index_add_(0, classes, per_image[rows])
    result = fit_mixtures(
        patches[picked],
        sizes,
        bank.shared.repeat(count),
        iterations=settings.em_iterations,
        tolerance=settings.em_tolerance,
        variance_floor=settings.variance_floor * float(bank.shared.var.mean()),
        prior=bank.shared if settings.prior_strength > 0 else None,
        prior_strength=settings.prior_strength,
    )
    keep, shared = (sizes >= settings.min_patches).view(-1, 1), bank.shared
    return Mixture(
        torch.where(keep, result.mixture.log_pi, shared.log_pi),
        torch.where(keep[..., None], result.mixture.mu, shared.mu),
        torch.where(keep[..., None], result.mixture.var, shared.var),
    )
