"""A bundle as something to train on: its model in torch, its mixtures, and the images that it remembers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from partgcd.config.tree import Settings
from partgcd.discovery.predict import PartModel, predict
from partgcd.export.bundle import BANK, EXEMPLARS, WEIGHTS, Bundle, read_tensors
from partgcd.export.novelty import RatioScale, joint_features, log_ratio, novelty
from partgcd.export.source import rebuild
from partgcd.model.module import DiscoveryModel

_BATCH = 128
_VIEWS = 32


@dataclass(frozen=True)
class Memory:
    """The exemplars of a bundle.

    Attributes:
        keys: [M] of the images' content.
        classes: [M] column.
        labelled: [M] whether a person said so.
        tokens: [M, T, Dt] trunk tokens, half precision.
        held: [M] whether it is never to be trained on.
        seen: keys of all images that were trained on.
    """

    keys: NDArray[np.uint64]
    classes: NDArray[np.int64]
    labelled: NDArray[np.bool_]
    tokens: NDArray[np.float16]
    held: NDArray[np.bool_]
    seen: NDArray[np.uint64]

    def rows(self, picked: NDArray[np.bool_]) -> Memory:
        """The exemplars ``picked`` [M]."""
        return Memory(
            self.keys[picked], self.classes[picked], self.labelled[picked], self.tokens[picked],
            self.held[picked], self.seen,
        )  # fmt: skip


@dataclass(frozen=True)
class ChampionModel:
    """What a champion knows, ready to be asked and to be trained on. On the CPU where `load_champion` gives it.

    Attributes:
        model: as it was trained: without the logit adjustment, as training goes on from what it found and not from what
            it is made to say.
        logit_adjustment: [C] of its answers; None for none.
    """

    bundle: Bundle
    settings: Settings
    model: DiscoveryModel
    parts: PartModel | None
    scale: RatioScale | None
    memory: Memory
    logit_adjustment: Tensor | None = None

    def served(self) -> ChampionModel:
        """The same as its bundle answers."""
        if self.logit_adjustment is None:
            return self
        model = copy.deepcopy(self.model)
        model.set_logit_adjustment(self.logit_adjustment.to(model.prototypes.weight.device))
        return replace(self, model=model)

    def on(self, device: torch.device) -> ChampionModel:
        """The same to be asked on ``device``; what a training starts with stays where it is."""
        if device.type == "cpu":
            return self
        parts, scale = self.parts, self.scale
        return replace(
            self,
            model=copy.deepcopy(self.model).to(device),
            parts=parts._replace(bank=parts.bank.to(device), projection=parts.projection.to(device))
            if parts is not None
            else None,
            scale=RatioScale(*(each.to(device) for each in scale)) if scale is not None else None,
        )


@dataclass(frozen=True)
class Predictions:
    """What a model says of N images.

    Attributes:
        fused: [N, C] probabilities.
        cls: [N, D] class tokens of unit norm; part: [N, D] part-enhanced features, likewise, None without parts.
        novelty: [N] score.
    """

    fused: Tensor
    cls: Tensor
    part: Tensor | None
    novelty: Tensor

    @property
    def joint(self) -> Tensor:
        """What images are clustered by, [N, F] unit norm."""
        return joint_features(self.cls, self.part)

    def rows(self, picked: Tensor) -> Predictions:
        """What it says of the images ``picked``: [N] bool, or row numbers."""
        part = self.part[picked] if self.part is not None else None
        return Predictions(self.fused[picked], self.cls[picked], part, self.novelty[picked])


def load_champion(bundle: Bundle, weights: Path | None = None) -> ChampionModel:
    """Bring a bundle back to torch.

    Args:
        weights: of the frozen backbone, where it was trained with a weights file.

    Raises:
        UserError: the frozen weights are not to be had here, or the bundle is damaged.
    """
    manifest = bundle.manifest
    settings = manifest.settings
    named = settings.backbone.model_copy(update={"name": manifest.backbone.name, "weights": weights})
    settings = settings.model_copy(update={"backbone": named})
    tensors = {f"model.{name}": _torch(value) for name, value in read_tensors(bundle, WEIGHTS).items()}
    banked = (
        {name: _torch(value) for name, value in read_tensors(bundle, BANK).items()} if manifest.parts else {}
    )
    for name, value in banked.items():
        tensors[name if name.startswith(("projection.", "novelty.")) else f"bank.{name}"] = value
    scale = None
    if "novelty.mean" in tensors:
        scale = RatioScale(tensors.pop("novelty.mean"), tensors.pop("novelty.std"))
    about = {"name": manifest.backbone.name, "weights": manifest.backbone.weights}
    model, parts = rebuild(settings, about, tensors)
    adjustment, model.logit_adjustment = model.logit_adjustment, None
    found = read_tensors(bundle, EXEMPLARS)
    keys = found["keys"].astype(np.uint64)
    memory = Memory(
        keys, found["classes"].astype(np.int64), found["labelled"].astype(bool), found["tokens"],
        found.get("held", np.zeros(len(keys))).astype(bool), found.get("seen", keys).astype(np.uint64),
    )  # fmt: skip
    return ChampionModel(
        bundle,
        settings,
        model,
        parts,
        scale,
        memory,
        adjustment.detach() if adjustment is not None else None,
    )


class AnsweringModel(NamedTuple):
    """A model that is asked, on its device; without a scale novelty is of its probabilities alone."""

    model: DiscoveryModel
    parts: PartModel | None
    scale: RatioScale | None
    settings: Settings

    @classmethod
    def of(cls, known: ChampionModel, settings: Settings) -> AnsweringModel:
        """What a champion knows, asked under ``settings``."""
        return cls(known.model, known.parts, known.scale, settings)


@torch.no_grad()
def predict_all(
    answering: AnsweringModel,
    read: Callable[[NDArray[np.int64]], Tensor],
    images: int,
    autocast: Callable[[], AbstractContextManager[object]] = torch.no_grad,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Predictions:
    """What a model says of so many ``images``, whose trunk tokens ``read`` gives, by row, on its device.

    Results are on the CPU.
    """
    model, parts, scale, settings = answering
    rows = np.arange(images)
    fused, cls, part, scores = [], [], [], []
    model.eval()
    for start in range(0, len(rows), _BATCH):
        tick(start, len(rows))
        tokens = read(rows[start : start + _BATCH])
        with autocast():
            found = predict(model, parts, tokens, settings.parts, settings.discovery)
        ratio = None
        if parts is not None and found.points is not None and scale is not None:
            ratio = log_ratio(
                parts,
                found.points,
                found.attention.float(),
                found.fused.argmax(dim=1),
                settings.parts.attention_filter,
            )
        fused.append(found.fused.float().cpu())
        cls.append(normalize(found.cls.float(), dim=1).cpu())
        scores.append(novelty(found.fused.float(), ratio, scale).cpu())
        if found.feature is not None:
            part.append(normalize(found.feature.float(), dim=1).cpu())
    tick(len(rows), len(rows))
    return Predictions(torch.cat(fused), torch.cat(cls), torch.cat(part) if part else None, torch.cat(scores))


def replayed_tokens(memory: Memory, rows: NDArray[np.int64]) -> Tensor:
    """Trunk tokens [B, T, Dt] of remembered images."""
    return torch.from_numpy(memory.tokens[rows]).float()


@torch.no_grad()
def trunk_tokens(model: DiscoveryModel, pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Frozen tokens [N, T, Dt], on the CPU, of evaluation views [N, 3, S, S]; ``model`` is on ``device``."""
    found = [
        model.backbone.trunk(torch.from_numpy(pixels[start : start + _VIEWS]).to(device)).float().cpu()
        for start in range(0, len(pixels), _VIEWS)
    ]
    return torch.cat(found) if found else torch.empty(0)


def _torch(value: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(value))
