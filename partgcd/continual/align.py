"""A bundle of another run under the ids of the champion: what both know is found by asking the champion."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from partgcd.config.errors import UserError
from partgcd.continual.champion import AnsweringModel, load_champion, predict_all
from partgcd.export.bundle import EXEMPLARS, Bundle, open_bundle, read_tensors, write_manifest
from partgcd.export.manifest import ClassEntry
from partgcd.registry.naming import name_key, unique_name
from partgcd.registry.roster import ClassRow, list_classes
from partgcd.registry.versions import Registry, Version

_AGREE = 0.5
"""Share of a class's exemplars that the champion must put into one of its own."""


def add_aligned(registry: Registry, path: Path, note: str = "") -> tuple[Version, str]:
    """Add a bundle of another run: classes on which it agrees with the champion get the champion's ids.

    Agreement is a label of the same name, or most of the exemplars being answered with one class (one to one).

    Returns:
        the version, and what was found in one line.

    Raises:
        UserError: the frozen backbones differ, so that the champion can't look at the exemplars, or nothing agrees.
    """
    bundle, champion = open_bundle(path), open_bundle(registry.resolve("champion"))
    if bundle.manifest.backbone.weights != champion.manifest.backbone.weights:
        raise UserError(
            "--align needs a bundle with the champion's frozen backbone: train it with the same one", 1
        )
    rows = list_classes(registry)
    ids = _match(bundle, champion, rows)
    if not ids:
        raise UserError(f"no class of '{path}' agrees with one of the champion: it is of another family", 1)
    taken = {row.id for row in rows}
    classes = []
    for entry in bundle.manifest.classes:
        given = ids.get(entry.index)
        if given is None and entry.id in taken:
            raise UserError(
                f"class {entry.id} of '{path}' has the id of another class: export its run again", 1
            )
        classes.append(entry.model_copy(update={"id": given}) if given is not None else entry)
    classes = _named(classes, rows)
    with tempfile.TemporaryDirectory(dir=registry.path, prefix=".align-") as scratch:
        copy = Path(scratch) / bundle.path.name
        shutil.copytree(bundle.path, copy)
        write_manifest(copy, bundle.manifest.model_copy(update={"classes": classes}))
        version = registry.add(copy, note=note or "aligned")
    return version, f"{len(ids)} of {len(classes)} classes are the champion's, the others are new"


def _named(classes: list[ClassEntry], rows: list[ClassRow]) -> list[ClassEntry]:
    """The same, none with a name that another class has: what has the champion's id has its name, too."""
    names = {row.id: row.name for row in rows if row.status in ("active", "dormant")}
    labelled = {row.id for row in rows if row.kind == "old"}
    taken = {name_key(row.id) for row in rows} | {name_key(name) for name in names.values()}
    made = []
    for entry in classes:
        known = names.get(entry.id)
        # A label says more than the name that a discovered class goes by until somebody names it.
        better = known is None or (entry.kind == "old" and entry.id not in labelled)
        if better and (known is None or name_key(entry.name) != name_key(known)):
            known = unique_name(entry.name, taken)
            taken.add(name_key(known))
        made.append(entry.model_copy(update={"name": known}))
    return made


def _match(bundle: Bundle, champion: Bundle, rows: list[ClassRow]) -> dict[int, str]:
    """The champion's id by column of ``bundle``, where both mean the same class."""
    there = {entry.id for entry in champion.manifest.classes}
    labels = [(entry.index, name_key(entry.name)) for entry in bundle.manifest.classes if entry.kind == "old"]
    names = [(row.id, name_key(row.name)) for row in rows if row.status == "active" and row.id in there]
    found = {}
    for index, key in labels:
        same = [each for each, name in names if name == key]
        if len(same) == 1 and [name for _, name in labels].count(key) == 1:
            found[index] = same[0]
    known = load_champion(champion)
    exemplars = read_tensors(bundle, EXEMPLARS)
    answers = predict_all(
        AnsweringModel(known.model, known.parts, None, known.settings),
        lambda rows: torch.from_numpy(exemplars["tokens"][rows]).float(), len(exemplars["keys"]),
    ).fused.argmax(dim=1).numpy()  # fmt: skip
    columns, own = len(champion.manifest.classes), exemplars["classes"].astype(np.int64)
    votes = np.zeros((len(bundle.manifest.classes), columns))
    np.add.at(votes, (own, answers), 1.0)
    votes /= np.maximum(votes.sum(axis=1, keepdims=True), 1.0)
    given = set(found.values())
    for row, column in zip(*linear_sum_assignment(votes, maximize=True), strict=True):
        name = champion.manifest.classes[column].id
        if row not in found and votes[row, column] > _AGREE and name not in given:
            found[int(row)] = name
            given.add(name)
    return found
