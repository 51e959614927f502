"""One pass of the torch predictor over the run's own images: what novelty is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.discovery.predict import predict
from partgcd.export.novelty import (
    RatioScale,
    fit_scale,
    left_out_ratios,
    novelty,
    threshold,
)
from partgcd.export.source import Source
from partgcd.parts.maps import attention_filter
from partgcd.parts.mixture import sample_rows

MOST_IMAGES = 4000
"""Images looked at; of a larger run a seeded sample."""

BATCH = 32


@dataclass(frozen=True)
class Calibration:
    """What the pass found.

    Attributes:
        rows: [M] rows of the catalog that were looked at.
        scale: of the likelihood ratio; None without mixtures.
        threshold, unlabelled: of the novelty score, and how many images it was set on.
        agreement: share of unlabelled images that get the class the run gave them.
        margin: [M] difference of the class head's two best probabilities.
    """

    rows: NDArray[np.int64]
    scale: RatioScale | None
    threshold: float
    unlabelled: int
    agreement: float
    margin: NDArray[np.float32]


@torch.no_grad()
def calibrate(source: Source, progress: Callable[[str, int, int], None]) -> Calibration:
    """Scale and threshold of the novelty score from at most MOST_IMAGES images of the run."""
    settings, parts = source.settings, source.parts
    rows = sample_rows(len(source.catalog), MOST_IMAGES, settings.seed)
    fused, best, patches, counts = [], [], [], []
    for start in range(0, len(rows), BATCH):
        progress("calibrating", start, len(rows))
        tokens = source.tokens(rows[start : start + BATCH])
        found = predict(source.model, parts, tokens, settings.parts, settings.discovery)
        fused.append(found.fused)
        best.append(found.overall.topk(2, dim=1).values)
        if found.points is not None:
            mask = (
                attention_filter(found.attention)
                if settings.parts.attention_filter
                else torch.ones_like(found.attention, dtype=torch.bool)
            )
            patches.append(found.points[mask])
            counts.append(mask.sum(dim=1))
    progress("calibrating", len(rows), len(rows))
    probabilities, top = torch.cat(fused), torch.cat(best)
    predicted = probabilities.argmax(dim=1)
    ratio, scale = None, None
    if parts is not None:
        ratio = left_out_ratios(
            parts, torch.cat(patches), torch.cat(counts), predicted, _candidates(source, rows),
            settings.parts, settings.seed,
        )  # fmt: skip
        scale = fit_scale(ratio, predicted, probabilities.shape[1])
    unlabelled = ~source.catalog.labelled[rows]
    if not unlabelled.any():  # a sample of a run with hardly any
        unlabelled[:] = True
    scores = novelty(probabilities, ratio, scale).numpy()
    agreement = (predicted.numpy() == source.predicted[rows])[unlabelled].mean()
    return Calibration(
        rows, scale, threshold(scores[unlabelled]), int(unlabelled.sum()), float(agreement),
        (top[:, 0] - top[:, 1]).numpy(),
    )  # fmt: skip


def _candidates(source: Source, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Position in ``rows`` and class of the images that the last bank was fitted on."""
    last = source.run.read_epochs()[-1][1]
    position = np.full(len(source.catalog), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    found = position[last["candidate_rows"]]
    return (
        torch.from_numpy(found[found >= 0]),
        torch.from_numpy(last["candidate_classes"][found >= 0].astype(np.int64)),
    )
