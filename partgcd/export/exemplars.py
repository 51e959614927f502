"""A few images a class that stand for it: as tokens and keys, and as pictures only if asked for."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save
from torch.nn.functional import normalize

from partgcd.disk.files import write_bytes
from partgcd.export.bundle import EXEMPLARS, THUMBNAILS
from partgcd.export.novelty import joint_features, knn_distance
from partgcd.export.source import Source

PER_CLASS = 20
"""Exemplars a class, where it has as many images."""

_TOKEN_BYTES = 200_000_000
"""Largest size of all frozen tokens; with more classes than fit, a class keeps fewer exemplars."""

_FEWEST = 30  # images whose distances say what is usual for their kind of class

_SIDE, _QUALITY = 112, 80


@torch.no_grad()
def exemplar_tensors(source: Source) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.int64]]:
    """Tensors of exemplars.safetensors, and the catalog rows of the M exemplars.

    ``seen`` are the keys of all images that were trained on. Of the exemplars: ``keys`` [M] (uint64, of the
    content), ``classes`` [M], ``labelled`` [M] bool, ``cls`` [M, D] and
    ``tokens`` [M, T, Dt] of the evaluation view, both in half precision: the trainable block can be trained on
    the tokens without the images. ``held`` [M] ones were not trained on and never are to be.
    """
    most = _affordable(source)
    rows, classes = choose(source, most)
    kept = source.replay
    if kept is not None and len(kept.held_keys):  # they take their places among the exemplars
        room = most - np.bincount(kept.held_classes, minlength=len(source.classes))
        rank = np.array([int((classes[:place] == own).sum()) for place, own in enumerate(classes)])
        rows, classes = rows[rank < room[classes]], classes[rank < room[classes]]
    tokens, cls = [], []
    for start in range(0, len(rows), 32):
        made = source.tokens(rows[start : start + 32])
        tokens.append(made.clamp(-65504.0, 65504.0).half().numpy())
        cls.append(source.model.backbone.class_token(made)[0].half().numpy())
    labelled, seen = source.catalog.labelled, source.catalog.keys
    if kept is not None:  # who was held to a class before need not have a person's label
        labelled = np.concatenate([labelled[source.seeable], kept.labelled])
        seen = np.concatenate([seen, kept.seen])
    found = {
        "keys": source.catalog.keys[rows],
        "classes": classes,
        "labelled": labelled[rows],
        "cls": np.concatenate(cls),
        "tokens": np.concatenate(tokens),
        "held": np.zeros(len(rows), dtype=bool),
    }
    if kept is not None and len(kept.held_keys):
        held = source.model.backbone.class_token(torch.from_numpy(kept.held_tokens).float())[0].half().numpy()
        beside = {"keys": kept.held_keys, "classes": kept.held_classes, "labelled": kept.held_labelled,
                  "cls": held, "tokens": kept.held_tokens,
                  "held": np.ones(len(held), dtype=bool)}  # fmt: skip
        found = {name: np.concatenate([value, beside[name]]) for name, value in found.items()}
    return {**found, "seen": np.unique(seen)}, rows


def familiar_remoteness(
    source: Source, rows: NDArray[np.int64], classes: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """How far the run's unlabelled images are from the exemplars ``rows`` of ``classes``: 101 quantiles.

    Those whose nearest exemplar is of a class that people labelled, and those of a discovered one, which are
    looser, apart; where there are few of a kind, all are taken. Labelled images are nearer to each other than new
    ones ever are, and count only where there are no others.
    """
    stored = load_file(source.run.features)
    cls, part = (
        normalize(torch.from_numpy(stored[name].astype(np.float32)), dim=1) if name in stored else None
        for name in ("cls", "part")
    )
    assert cls is not None
    features = joint_features(cls, part)
    asked = np.flatnonzero(source.seeable & ~source.catalog.labelled)
    if len(asked) == 0:
        asked = np.arange(len(features))
    place = np.full(len(features), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found, nearest = knn_distance(features[asked], features[rows], torch.from_numpy(place[asked]))
    old = np.array([record["kind"] == "old" for record in source.classes])[classes[nearest.numpy()]]
    quantiles = {}
    for name, mine in (("old", old), ("discovered", ~old)):
        own = found.numpy()[mine] if mine.sum() >= _FEWEST else found.numpy()
        quantiles[f"remoteness.{name}"] = np.quantile(own, np.linspace(0, 1, 101)).astype(np.float32)
    return quantiles


def write_exemplars(folder: Path, source: Source, pictures: bool) -> int:
    """Write exemplars.safetensors and, with ``pictures``, thumbnails; the largest number a class is returned."""
    tensors, rows = exemplar_tensors(source)
    tensors |= familiar_remoteness(source, rows, tensors["classes"][: len(rows)].astype(np.int64))
    write_bytes(
        folder / EXEMPLARS, save({name: np.ascontiguousarray(value) for name, value in tensors.items()})
    )
    if pictures:
        for row in rows[source.seeable[rows]].tolist():
            key = f"{int(source.catalog.keys[row]):016x}"
            write_bytes(folder / THUMBNAILS / f"{key}.jpg", _thumbnail(source.pixels(np.array([row]))[0]))
    return int(np.bincount(tensors["classes"].astype(np.int64)).max())


def choose(source: Source, per_class: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and classes of the exemplars: of each class the images whose mean is nearest the class's (herding).

    Labelled images are taken before others (Rebuffi et al., 2017, is the choice within them).
    """
    features = torch.from_numpy(load_file(source.run.features)["cls"].astype(np.float32))
    unit = normalize(features, dim=1).numpy()
    rows, classes = [], []
    for index in range(len(source.classes)):
        own = np.flatnonzero(source.predicted == index)
        labelled = own[source.catalog.labelled[own]]
        picked = _herd(unit, labelled, per_class)
        rest = own[~source.catalog.labelled[own]]
        picked += _herd(unit, rest, per_class - len(picked))
        rows += picked
        classes += [index] * len(picked)
    return np.array(rows, dtype=np.int64), np.array(classes, dtype=np.int64)


def _herd(unit: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> list[int]:
    if len(rows) == 0 or count <= 0:
        return []
    mean, total = unit[rows].mean(axis=0), np.zeros(unit.shape[1], np.float32)
    left: list[int] = rows.tolist()
    picked: list[int] = []
    while left and len(picked) < count:
        means = (total + unit[left]) / (len(picked) + 1)
        best = left.pop(int(np.linalg.norm(mean - means, axis=1).argmin()))
        total = total + unit[best]
        picked.append(best)
    return picked


def _affordable(source: Source) -> int:
    info = source.model.backbone.info
    prefix = 8 if info.kind == "vit" else 0  # class token and registers, at most
    tokens = info.grid[0] * info.grid[1] + prefix
    each = 2 * tokens * info.trunk_dim
    return int(np.clip(_TOKEN_BYTES // (each * len(source.classes)), 1, PER_CLASS))


def _thumbnail(pixels: NDArray[np.uint8]) -> bytes:
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue()
