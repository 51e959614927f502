"""CMS (Choi et al. 2024, "Contrastive Mean-Shift Learning"): contrast of embeddings shifted to their neighbours.

Each embedding moves half of the way to the mean of its nearest neighbours among all images (`shift`); the contrastive
losses compare what was moved. At the end all images shift a few times and Ward's clustering groups them. The number of
classes is the run's own; the authors' search for it is left out. The constants are the authors'.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor
from torch.nn.functional import normalize

from partgcd.cluster.metrics import cluster_of_class
from partgcd.methods.method import Batch, Course, Method, Moment, Scene, Term
from partgcd.methods.simgcd import global_terms
from partgcd.model.losses import contrast_supervised, contrast_unsupervised

NEIGHBOURS = 8
OWN = 0.5
"""What an embedding keeps of itself."""
TEMPERATURE = 0.25
"""Of the contrast between views."""
SHIFTS = 3
"""Mean shifts before the last clustering; the authors go on while their score grows, which labels decide."""
_CHUNK = 1024


def shift(embeddings: Tensor, memory: Tensor, rows: Tensor | None = None) -> Tensor:
    """One mean shift of unit ``embeddings`` [M, E] towards the nearest of ``memory`` [N, E], unit norm again.

    Args:
        rows: [M] place of each embedding in the memory, which is not its own neighbour; None where unknown.
    """
    with torch.no_grad():
        similarity = embeddings @ memory.T
        if rows is not None:
            similarity.scatter_(1, rows[:, None], -2.0)
        nearest = similarity.topk(min(NEIGHBOURS, memory.shape[0] - (rows is not None)), dim=1).indices
    return normalize(OWN * embeddings + (1 - OWN) * memory[nearest].mean(dim=1), dim=1)


class _Memory:
    """Embeddings of all images, renewed once an epoch."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.embeddings: Tensor | None = None

    def embed(self, tokens: Tensor) -> Tensor:
        model = self.scene.model
        return normalize(model.projector(model(tokens, None).cls).float(), dim=1)

    def epoch(self, embeddings: Tensor) -> None:
        self.embeddings = embeddings

    def terms(self, batch: Batch, moment: Moment) -> list[Term]:
        assert self.embeddings is not None
        loss = self.scene.settings.loss
        # The classifier learns nothing before the last clustering sets it: its losses are only watched.
        terms = [
            term._replace(weight=0.0)
            for term in global_terms(batch, moment, loss)
            if not term.name.startswith("rep")
        ]
        flat, twice = normalize(batch.projected.float().flatten(0, 1), dim=1), batch.rows.repeat(2)
        moved = shift(flat, self.embeddings, twice).reshape(batch.projected.shape)
        share = loss.supervised_weight if moment.labelled else 0.0
        one = contrast_unsupervised(moved, TEMPERATURE)
        other = contrast_supervised(moved, batch.labels, loss.supervised_temperature)
        return [
            *terms,
            Term("rep_supervised", other, 0.0),
            Term("rep_unsupervised", one, 0.0),
            Term("rep", share * other + (1 - share) * one),
        ]

    def settle(self, embeddings: Tensor) -> Tensor:
        scene, moved = self.scene, embeddings
        every = torch.arange(len(moved), device=moved.device)
        for _ in range(SHIFTS):
            moved = torch.cat([shift(moved[part], moved, part) for part in torch.split(every, _CHUNK)])
        classes, labels = scene.model.prototypes.weight.shape[0], scene.labels.cpu().numpy()
        ward = (
            AgglomerativeClustering(min(classes, len(moved)))
            .fit_predict(moved.cpu().numpy())
            .astype(np.int64)
        )
        place = np.empty(classes, dtype=np.int64)
        place[cluster_of_class(labels, ward, scene.old, classes)] = np.arange(classes)
        clusters = np.where(labels >= 0, labels, place[ward])
        return torch.from_numpy(clusters).to(embeddings.device)


def begin(scene: Scene) -> Course:
    """Terms with the memory of all embeddings, and a clustering of its own at the end."""
    memory = _Memory(scene)

    def restore(tensors: dict[str, Tensor]) -> None:
        memory.embeddings = tensors["embeddings"].to(scene.labels.device)

    def state() -> dict[str, Tensor]:
        return {} if memory.embeddings is None else {"embeddings": memory.embeddings}

    return Course(
        memory.terms,
        embed=memory.embed,
        epoch=memory.epoch,
        settle=memory.settle,
        state=state,
        restore=restore,
    )


METHOD = Method("cms", "contrast of embeddings shifted towards their neighbours (Choi 2024)", begin=begin)
