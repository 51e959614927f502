"""LegoGCD (Cao et al. 2024): SimGCD, and unlabelled images that surely are of an old class are held to it.

Its local entropy regularisation: a soft cross-entropy of the prediction with itself at a lower temperature, under a
logit adjustment by the running mean of predictions, over the images whose best class is an old one with `SURE` at
least. The constants are the authors'.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partgcd.methods.method import Batch, Course, Method, Moment, Scene, Term
from partgcd.methods.simgcd import global_terms

WEIGHT = 2.0
SURE = 0.7
TEMPERATURE = 0.05
ADJUSTMENT = 0.4
"""Weight of the logit adjustment."""
MOMENTUM = 0.999
"""Of the running mean of predictions."""


def local_entropy(
    cosine: Tensor, unlabelled: Tensor, old: int, mean: Tensor, student_temperature: float
) -> Tensor:
    """The term, a scalar: mean over all views of what the sure ones add.

    Shape:
        cosine: [2, B, C]; unlabelled: [B] bool; mean: [C], the running mean of predictions.
    """
    cosine = cosine.float()
    sureness, best = (cosine / student_temperature).softmax(dim=-1).max(dim=-1)
    sure = (sureness >= SURE) & (best < old) & unlabelled
    target = (cosine / TEMPERATURE).softmax(dim=-1)
    adjusted = cosine / TEMPERATURE + ADJUSTMENT * mean.log()
    return (-(target * adjusted.log_softmax(dim=-1)).sum(dim=-1) * sure).mean()


class _RunningMean:
    """Of the predictions, softmax of the bare cosines as the authors have it: [C]."""

    def __init__(self, scene: Scene) -> None:
        classes = scene.model.prototypes.weight.shape[0]
        self.scene = scene
        self.value = torch.full((classes,), 1 / classes, device=scene.labels.device)

    def terms(self, batch: Batch, moment: Moment) -> list[Term]:
        loss = self.scene.settings.loss
        found = local_entropy(
            batch.cosine, batch.labels < 0, self.scene.old, self.value, loss.student_temperature
        )
        predicted = batch.cosine.detach().float().softmax(dim=-1).flatten(0, 1).mean(dim=0)
        self.value = MOMENTUM * self.value + (1 - MOMENTUM) * predicted
        return [*global_terms(batch, moment, loss), Term("local_entropy", found, WEIGHT)]

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.value}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.value = tensors["mean"].to(self.value)


def begin(scene: Scene) -> Course:
    """Terms with a running mean of predictions."""
    mean = _RunningMean(scene)
    return Course(mean.terms, state=mean.state, restore=mean.restore)


METHOD = Method("legogcd", "SimGCD that holds sure images of old classes to them (Cao 2024)", begin=begin)
