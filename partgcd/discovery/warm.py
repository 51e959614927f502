"""Going on from a trained model instead of beginning anew: what a fit is given, and a loss against forgetting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from partgcd.backbone.load import Backbone
from partgcd.cluster.novel_samples import Expected
from partgcd.config.tree import Settings
from partgcd.methods.method import Batch, Term
from partgcd.model.module import DiscoveryModel, restored
from partgcd.parts.bank import GMMBank
from partgcd.parts.projection import Projection

_FOUND = 0.5
"""How much an image that was clustered into a new class counts, beside a remembered one's 1."""


@dataclass(frozen=True)
class Teacher:
    """What images are held to beside the objective: the former model's answers, and the new classes found so far.

    Without the latter training gives known classes most of the images of look-alike new ones back, whatever their
    prototypes were set to.

    Attributes:
        targets: [N, C] probabilities; no new class has any.
        weights: [N] how much it counts for an image, 0 where it knew no better.
        strength: of the term beside the objective.
        found: [N] the new class that an image was clustered into, -1 for none; goes before its target.
    """

    targets: Tensor
    weights: Tensor
    strength: float
    found: Tensor

    def to(self, device: torch.device) -> Teacher:
        """The same on another device."""
        return Teacher(self.targets.to(device), self.weights.to(device), self.strength, self.found.to(device))

    def follow(self, clusters: Tensor, labels: Tensor, old: int) -> Teacher:
        """The same with other ``clusters`` [N]: of unlabelled images the new classes among them, ``old`` and up."""
        return replace(self, found=torch.where((labels < 0) & (clusters >= old), clusters, -1))

    def pick(self, rows: Tensor) -> Teacher:
        """Of the images ``rows``, found ones taught what they were found to be."""
        found, targets = self.found[rows], self.targets[rows]
        new = found >= 0
        taught = one_hot(found.clamp_min(0), targets.shape[1]).to(targets)
        return Teacher(
            torch.where(new[:, None], taught, targets),
            torch.where(new, torch.full_like(self.weights[rows], _FOUND), self.weights[rows]),
            self.strength,
            found,
        )

    def terms(self, batch: Batch, temperature: float) -> list[Term]:
        """The term against forgetting, of each head that the batch has."""
        terms = [Term("memory", self.loss(batch.cosine, temperature), self.strength)]
        if batch.parts is not None:
            part = self.loss(batch.parts.cosine, temperature)
            terms.append(Term("part_memory", part, self.strength, of_parts=True))
        return terms

    def loss(self, cosine: Tensor, temperature: float) -> Tensor:
        """Cross-entropy of the student's answers in both views, cosines [2, B, C], to the targets [B, C]."""
        logits = cosine.float() / temperature
        each = -(self.targets * logits.log_softmax(dim=-1)).sum(dim=-1).mean(dim=0)
        return (each * self.weights).sum() / self.weights.sum().clamp_min(1e-6)


@dataclass(frozen=True)
class WarmStart:
    """The state that a fit begins with.

    Attributes:
        tensors: everything trained, by the model's own names, with a row a class.
        bank, projection: the mixtures, with a row a class; None for the global baseline.
        teacher: None trains without holding on to former answers.
        expected: sizes of known classes and the number of images of others; None where nothing is known of them.
        backbone: loaded already, on the device; its block becomes the model's.
        replay: [M, T, Dt] half-precision trunk tokens of the last M images of the catalog, which have no pixels.
    """

    tensors: dict[str, Tensor]
    bank: GMMBank | None
    projection: Projection | None
    teacher: Teacher | None
    replay: NDArray[np.float16] | None
    expected: Expected | None = None
    backbone: Backbone | None = None

    @property
    def classes(self) -> int:
        """C, old and new classes together."""
        return int(self.tensors["prototypes.weight"].shape[0])

    def model(self, backbone: Backbone, settings: Settings) -> DiscoveryModel:
        """A model with this state."""
        parts = self.bank.log_pi.shape[1] if self.bank is not None else None
        return restored(backbone, self.tensors, parts, settings)
