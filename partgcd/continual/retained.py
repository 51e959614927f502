"""From a champion to the start of the next training: which classes go on, and each one's rows.

Letters: C the champion's columns, O classes that go on, N images, D dimensions of the class token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from partgcd.continual.champion import ChampionModel, Predictions
from partgcd.export.manifest import ClassEntry
from partgcd.parts.bank import GMMBank
from partgcd.registry.overlay import Overlay


@dataclass(frozen=True)
class Retained:
    """The classes that go on, with what people decided about them built in.

    Attributes:
        classes: [O] by their new column; merged ones are one, split ones two.
        members: [M] new column of each exemplar, -1 where its class does not go on.
        sources: [O] the champion's column whose mixture each one goes on with.
        dropped: classes without an exemplar, which can't be held on to.
        taught: classes that a person shows by example; their columns come next, and new ones after them.
    """

    classes: list[ClassEntry]
    members: NDArray[np.int64]
    sources: list[int]
    dropped: list[ClassEntry]
    taught: list[ClassEntry] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        """Of the classes that have labelled images in the next training, by column."""
        return [entry.id for entry in (*self.classes, *self.taught)]


@dataclass(frozen=True)
class Reference:
    """A champion before a training goes on from it.

    Attributes:
        exemplars: its opinion of its memory.
        predictions: its opinion of the N images at hand, new photos and remembered ones.
        served: what its bundle answers of them, with its logit adjustment.
        labels: [N] class index of remembered images, -1 for new photos.
    """

    known: ChampionModel
    overlay: Overlay
    retained: Retained
    exemplars: Predictions
    predictions: Predictions
    served: Predictions
    labels: NDArray[np.int64]


def retained_classes(known: ChampionModel, overlay: Overlay, exemplars: Predictions) -> Retained:
    """Which classes go on: those that the overlay answers with and that have an exemplar to be held to.

    Args:
        exemplars: the champion's opinion of its own exemplars.
    """
    memory = known.memory
    columns = len(known.bundle.manifest.classes)
    one_hot = np.zeros((len(memory.classes), columns), dtype=np.float32)
    one_hot[np.arange(len(one_hot)), memory.classes] = 1.0
    places = overlay(one_hot, exemplars.cls.numpy()).argmax(axis=1)
    by_id = {entry.id: entry.index for entry in known.bundle.manifest.classes}
    keep = [entry for entry in overlay.classes if (places == entry.index).any()]
    renumbered = {entry.index: index for index, entry in enumerate(keep)}
    members = np.array([renumbered.get(int(place), -1) for place in places], dtype=np.int64)
    sources = []
    for entry in keep:
        own = memory.classes[places == entry.index]
        sources.append(by_id.get(entry.id, int(np.bincount(own).argmax())))
    classes = [entry.model_copy(update={"index": index}) for index, entry in enumerate(keep)]
    return Retained(classes, members, sources, [entry for entry in overlay.classes if entry not in keep])


def start_tensors(
    known: ChampionModel,
    retained: Retained,
    exemplars: Predictions,
    clusters: list[tuple[Tensor, Tensor | None]],
) -> tuple[dict[str, Tensor], GMMBank | None]:
    """Everything trained and the bank, with a row for each class that goes on and for each cluster.

    Args:
        clusters: centre of the class tokens, and of the part features, of the first images of each class that is
            taught or new.
    """
    tensors = {name: value.clone() for name, value in known.model.trainable_state().items()}
    for name, own in (("prototypes.weight", exemplars.cls), ("part_prototypes.weight", exemplars.part)):
        if name not in tensors or own is None:
            continue
        weight = tensors[name]
        norm = weight.norm(dim=1).mean()
        rows = []
        for index, (entry, source) in enumerate(zip(retained.classes, retained.sources, strict=True)):
            same = known.bundle.manifest.classes[source].id == entry.id
            whole = np.unique(known.memory.classes[retained.members == index])
            if same and len(whole) == 1:
                rows.append(weight[source])
            else:  # merged or split: its exemplars say where it lies
                mean = own[torch.from_numpy(retained.members == index)].mean(dim=0)
                rows.append(normalize(mean, dim=0) * norm)
        for whole_centre, part_centre in clusters:
            centre = whole_centre if name == "prototypes.weight" or part_centre is None else part_centre
            rows.append(normalize(centre, dim=0) * norm)
        tensors[name] = torch.stack(rows)
    if known.parts is None:
        return tensors, None
    bank = known.parts.bank
    old = bank.select(torch.tensor(retained.sources, dtype=torch.long))
    new = GMMBank.all_shared(bank.shared, len(clusters))
    joined = GMMBank(
        torch.cat([old.log_pi, new.log_pi]), torch.cat([old.mu, new.mu]), torch.cat([old.var, new.var]),
        bank.shared, torch.cat([old.fitted, new.fitted]),
    )  # fmt: skip
    return tensors, joined


def targets_of(overlay: Overlay, retained: Retained, predictions: Predictions, classes: int) -> Tensor:
    """What the champion says of N images, over ``classes`` columns of the next model: [N, classes]."""
    answers = overlay(predictions.fused.numpy(), predictions.cls.numpy())
    places = {entry.id: entry.index for entry in overlay.classes}
    picked = [places[entry.id] for entry in retained.classes]
    targets = np.zeros((len(answers), classes), dtype=np.float32)
    targets[:, : len(picked)] = answers[:, picked]
    targets /= np.maximum(targets.sum(axis=1, keepdims=True), 1e-6)
    return torch.from_numpy(targets)
