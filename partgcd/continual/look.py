"""What a champion says of new photos: they are decoded once, and asked of once, beside what it remembers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.backbone.load import Backbone
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.annotations import Annotations, Remembered, Shown, correct, teach
from partgcd.continual.champion import (
    AnsweringModel,
    ChampionModel,
    Predictions,
    predict_all,
    replayed_tokens,
    trunk_tokens,
)
from partgcd.continual.growth import SMALLEST
from partgcd.continual.intake import Arrivals, Reader, empty_pictures
from partgcd.continual.retained import Reference, retained_classes
from partgcd.continual.retrain import Parted, join_catalog, mint_ids, part_memory
from partgcd.data.catalog import Catalog, Role
from partgcd.data.ingest import ingest
from partgcd.data.listing import Entry, Listing
from partgcd.data.pixels import PixelStore
from partgcd.discovery.setup import ground, stopping_ticker
from partgcd.disk.files import read_json, write_json
from partgcd.registry.log import fold, read_log
from partgcd.registry.naming import resolve
from partgcd.registry.overlay import overlay_of
from partgcd.registry.roster import list_classes
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder
from partgcd.run.world import World


@dataclass(frozen=True)
class Place:
    """Where a rediscovery works."""

    registry: Registry
    run: RunFolder
    settings: Settings
    world: World


@dataclass(frozen=True)
class Seen:
    """New photos and what the champion says of them.

    Attributes:
        catalog: new photos, labelled images, and remembered ones that have no pixels.
        parted: the memory, in what is trained on and what is held out.
        replay: trunk tokens of the catalog's last rows.
        backbone: a copy of the champion's, on the device.
        ever: ids that any class has or had.
    """

    catalog: Catalog
    reference: Reference
    parted: Parted
    replay: NDArray[np.float16]
    backbone: Backbone
    ever: set[str]


def look(
    at: Place, known: ChampionModel, arrivals: Arrivals, annotations: Annotations, reader: Reader
) -> Seen | str:
    """Decode what has come, and ask the champion of it and of its memory; the reason where there is too little."""
    run, settings, world = at.run, at.settings, at.world
    identity = fold(read_log(at.registry.log))
    overlay = overlay_of(known.bundle, identity)
    champion, memory = known.on(world.device), known.memory
    exemplars = predict_all(
        AnsweringModel.of(champion, settings), lambda rows: replayed_tokens(memory, rows).to(world.device),
        len(memory.keys),
        tick=stopping_ticker(world, "memory"),
    )  # fmt: skip
    held = correct(annotations, known, exemplars, retained_classes(known, overlay, exemplars))
    rows = list_classes(at.registry)
    ever = {row.id for row in rows} | set(identity.minted)
    taught: list[str] = []
    if annotations.lessons:
        # A class of a version that does not answer is the same one.
        before = [resolve(rows, name) for name in annotations.lessons]
        minted = ids_for(run.path / "taught_ids.json", len(annotations.lessons), ever)
        taught = [
            row.id if row is not None and row.status == "dormant" else own
            for row, own in zip(before, minted, strict=True)
        ]
    fresh = _decoded(at, arrivals, annotations, taught, reader)
    if isinstance(fresh, str):
        return fresh
    if annotations.lessons:
        held = _taught(at, champion, annotations, taught, held, fresh)
    parted = part_memory(held.known.memory, held.retained)
    catalog = join_catalog(fresh, held.retained.ids, parted, len(held.retained.taught))
    catalog.save(run.path)
    replay = _replayed(catalog, parted)
    # A copy: training overwrites its last block, and the champion is asked again by the gate.
    backbone = copy.deepcopy(champion.model.backbone)
    base = ground(settings, catalog, world, replay if len(replay) else None, backbone)

    def predictions_of(champion: ChampionModel) -> Predictions:
        return predict_all(
            AnsweringModel.of(champion, settings), lambda rows: base.evaluation.read(rows, world.device), len(catalog),
            base.autocast, stopping_ticker(world, "champion's opinion"),
        )  # fmt: skip

    predictions = predictions_of(champion)
    served = predictions if champion.logit_adjustment is None else predictions_of(champion.served())
    reference = Reference(
        held.known, overlay, held.retained, held.exemplars, predictions, served, catalog.labels
    )
    return Seen(catalog, reference, parted, replay, base.backbone, ever)


def _taught(
    at: Place,
    champion: ChampionModel,
    annotations: Annotations,
    ids: list[str],
    held: Remembered,
    fresh: Catalog,
) -> Remembered:
    """Room for the classes that are shown by example, of which the pixels are in the run's store."""
    names = [fresh.label_names[label] if label >= 0 else "" for label in fresh.labels.tolist()]
    rows = np.flatnonzero([name in ids for name in names])
    pixels = PixelStore.open(at.run.store).centre(rows, at.settings.data.image_size)
    tokens, device = trunk_tokens(champion.model, pixels, at.world.device), at.world.device
    without_scale = AnsweringModel.of(champion, at.settings)._replace(scale=None)
    tick = stopping_ticker(at.world, "examples")
    joint = (
        predict_all(without_scale, lambda rows: tokens[rows].to(device), len(tokens), tick=tick).joint.numpy()
        if len(tokens)
        else np.empty((0, 1), np.float32)
    )
    keys = {
        annotations.keys[e.path]
        for own in annotations.lessons.values()
        for e in own
        if e.path in annotations.keys
    }
    return teach(annotations.lessons, ids, Shown(joint, [names[row] for row in rows.tolist()]), held, keys)


def _decoded(
    at: Place, arrivals: Arrivals, annotations: Annotations, taught: list[str], reader: Reader
) -> Catalog | str:
    """New photos and labelled images in the run's store; the reason where there is nothing to see."""
    settings, world, run = at.settings, at.world, at.run
    root = arrivals.listing.root
    entries = [Entry(str(root / entry.path)) for entry in arrivals.listing.entries]
    entries += annotations.entries
    for name, shown in zip(taught, annotations.lessons.values(), strict=True):
        entries += [Entry(entry.path, name) for entry in shown]
    listing = Listing(root, sorted(entries, key=lambda entry: entry.path), [], "new photos")
    tick = stopping_ticker(world, "images")
    try:
        catalog = ingest(listing, run.store, settings.data, tick, read=reader.read)
    except UserError as error:
        raise UserError(f"none of {len(entries)} new photos can be used: {error}", 1) from error
    store = PixelStore.open(run.store)
    empty = empty_pictures(store, settings.data.image_size)
    usable = int(((catalog.labels < 0) & ~empty).sum())
    told = (
        f"{len(catalog.broken)} broken, {int(empty.sum())} blank or noise"
        if catalog.broken or empty.any()
        else ""
    )
    if usable < SMALLEST and not annotations.asks_for_version:
        return f"{usable} new photos are too few for a class ({SMALLEST} are needed)" + (
            f"; {told}" if told else ""
        )
    if empty.any():
        kept = set(np.flatnonzero(~empty).tolist())
        paths = {path for row, path in enumerate(catalog.paths) if row in kept}
        entries = [entry for entry in listing.entries if entry.path in paths]
        catalog = ingest(Listing(root, entries, [], "new photos"), run.store, settings.data, tick)
    return catalog


def ids_for(file: Path, count: int, taken: set[str]) -> list[str]:
    """Ids of classes that come, minted once for a run however often it is gone on with."""
    if not file.exists() or len(read_json(file)) != count:
        write_json(file, mint_ids(count, taken))
    ids: list[str] = read_json(file)
    return ids


def _replayed(catalog: Catalog, parted: Parted) -> NDArray[np.float16]:
    """Tokens of the catalog's remembered rows."""
    place = {key: row for row, key in enumerate(parted.replayed.keys.tolist())}
    return parted.replayed.tokens[
        [place[key] for key in catalog.keys[catalog.roles == Role.REPLAYED].tolist()]
    ]
