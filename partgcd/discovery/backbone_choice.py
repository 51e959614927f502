"""``backbone.name=auto`` without a GPU: the offline backbone in whose features this run's own photos sort best."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.backbone.load import load_backbone
from partgcd.backbone.weights import offline_names, weights_status
from partgcd.cluster.feature_scores import FEWEST_CLASSES, hidden_class_accuracy, neighbour_structure
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.pixels import PixelStore
from partgcd.discovery.setup import stopping_ticker
from partgcd.model.module import DiscoveryModel
from partgcd.run.device import apply_threads
from partgcd.run.world import World

_OF_A_CLASS = 20
_IMAGES = 600
_BATCH = 32


def choose_backbone(settings: Settings, catalog: Catalog, world: World) -> Settings:
    """``settings`` with the backbone named, where they leave it open and there is something to choose from.

    Only backbones whose weights are here are compared. The choice and what it was made by stand in run.json; a run that
    goes on keeps the one it began with.

    Raises:
        Interrupted: a stop was asked for.
    """
    asked = settings.backbone
    if (
        asked.name != "auto"
        or asked.weights is not None
        or asked.random_weights
        or world.device.type != "cpu"
    ):
        return settings
    info = world.folder.info()
    name = info.get("backbone_choice", {}).get("name")
    here = [each for each in offline_names() if weights_status(each) is not None]
    begun = "backbone" in info  # without a choice, by a program that made none
    if name is None and not begun and len(here) > 1 and world.rank == 0:
        record = _compared(settings, catalog, here, world)
        world.folder.update(backbone_choice=record)
        name = record["name"]
    # Rank 0 chooses for all; without a choice the name stays open and is what `resolve_name` makes of it.
    name = world.all_gather_object(name)[0]
    return (
        settings.model_copy(update={"backbone": asked.model_copy(update={"name": name})})
        if name
        else settings
    )


def _compared(settings: Settings, catalog: Catalog, names: list[str], world: World) -> dict[str, Any]:
    """The best of ``names`` and what it was chosen by, as JSON."""
    began = time.perf_counter()
    apply_threads(settings.train)
    labels, seed = catalog.labels, settings.seed
    if len(np.unique(labels[labels >= 0])) >= FEWEST_CLASSES:
        by, rows = "hidden labelled classes", _labelled_rows(labels, seed)
    else:
        by, rows = "neighbours in common", _some(np.arange(len(catalog)), seed)
        if len(rows) < 3:  # nothing to go by
            return {"name": names[0], "by": by, "scores": {}, "seconds": 0.0}
    scores: dict[str, float] = {}
    for name, own in _features(settings, rows, names, world).items():
        hidden = hidden_class_accuracy(own, labels[rows], seed)
        scores[name] = neighbour_structure(own, seed) if hidden is None else hidden
    best = max(scores, key=lambda name: scores[name])
    each_one = ", ".join(f"{name} {100 * value:.0f}%" for name, value in scores.items())
    world.progress("backbone", len(names), len(names), f"{best}, chosen by {by}: {each_one}")
    return {"name": best, "by": by, "scores": {name: round(value, 4) for name, value in scores.items()},
            "seconds": round(time.perf_counter() - began, 2)}  # fmt: skip


def _labelled_rows(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Labelled images, at most 20 of a class, and of at most as many classes as 600 images allow."""
    draw = np.random.default_rng([seed, 0xBB])
    classes = draw.permutation(np.unique(labels[labels >= 0]))[: _IMAGES // _OF_A_CLASS]
    rows = [draw.permutation(np.flatnonzero(labels == each))[:_OF_A_CLASS] for each in classes.tolist()]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)


def _some(rows: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    draw = np.random.default_rng([seed, 0xBC])
    return np.sort(draw.permutation(rows)[:_IMAGES])


@torch.no_grad()
def _features(
    settings: Settings, rows: NDArray[np.int64], names: list[str], world: World
) -> dict[str, NDArray[np.float32]]:
    """Class tokens [n, D] of unit norm by backbone, of the evaluation views of ``rows``."""
    size = settings.data.image_size
    store = PixelStore.open(world.folder.store)
    tick, found = stopping_ticker(world, "backbone"), {}
    for number, name in enumerate(names):
        named = settings.backbone.model_copy(update={"name": name})
        probe = DiscoveryModel(load_backbone(named, size, world.device), 2, None, settings)
        own = []
        for start in range(0, len(rows), _BATCH):
            tick(number * len(rows) + start, len(names) * len(rows))
            pixels = torch.from_numpy(store.centre(rows[start : start + _BATCH], size))
            cls = probe(probe.backbone.trunk(pixels), None).cls.float()
            own.append(torch.nn.functional.normalize(cls, dim=1).numpy())
        found[name] = np.concatenate(own)
    return found
