"""The whole job: a champion and a folder of new photos in; nothing new, a candidate, or a new champion out.

Whatever moment a kill comes at, the registry is as it was or as it is to be: a training lies in the registry's work
folder and is gone on with, a version is made aside and renamed in, an alias moves in one step.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.attempts import attempt_digest, read_attempts, remember
from partgcd.continual.candidate import (
    STRENGTH,
    continual_settings,
    epochs_for,
    join_catalog,
    mint_ids,
    new_alone,
    part_memory,
    train,
    warm_start,
)
from partgcd.continual.carry import Carried, Standing, carried_classes
from partgcd.continual.changes import describe_changes, measure
from partgcd.continual.gate import Check, Margins, judge
from partgcd.continual.growth import SMALLEST, Growth, count_new
from partgcd.continual.intake import Arrivals, empty_pictures, look_through
from partgcd.continual.recall import REPLAYED, Known, Opinion, ask, recall
from partgcd.continual.told import Said, correct, held_out, read_said, teach, unheard
from partgcd.data.catalog import Catalog
from partgcd.data.ingest import ingest
from partgcd.data.listing import Entry, Listing
from partgcd.data.pixels import PixelStore
from partgcd.discovery.setup import ground, stopping_ticker
from partgcd.disk.files import read_json, write_json
from partgcd.export.bundle import EXEMPLARS, MANIFEST, open_bundle, read_tensors
from partgcd.export.export import export_run
from partgcd.registry.edits import settle_names
from partgcd.registry.log import fold, read_log
from partgcd.registry.naming import ids_by_word, resolve
from partgcd.registry.overlay import overlay_of
from partgcd.registry.roster import first_sizes, list_classes
from partgcd.registry.versions import Registry, Version
from partgcd.report.changes import render_changes
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld, World
from partgcd.schedule.due import KEPT

_MOST_NEW = 1000
_VAGUE = 0.75  # width of an interval of a share from which on it says nothing


@dataclass(frozen=True)
class Request:
    """What a person asked for.

    Attributes:
        new: folder of new photos; what its sub-folders are called means nothing.
        promote: 'gate' promotes what passes the margins, 'always' and 'never' ask nobody.
        labelled: folder of class folders, named by class id or name, to train on beside the memory.
        teach: folders of ``labelled`` that name no class become classes of that name.
        holdout: as ``labelled``, to score on.
        images: whether pictures of new photos go into the change report and the bundle.
        classes: number of new classes; None estimates it.
        epochs: passes over new and remembered images; None asks `candidate.epochs_for`.
        weights: of the frozen backbone, where the champion was trained with a file of its own.
        replay: False trains on the new photos alone, which forgets: plain fine-tuning, to compare with.
        again: also where the same photos were looked at before.
        train: fields of the settings' section, such as the device.
    """

    registry: Path
    new: Path
    promote: Literal["gate", "always", "never"] = "gate"
    labelled: Path | None = None
    teach: bool = False
    holdout: Path | None = None
    images: bool = True
    classes: int | None = None
    epochs: int | None = None
    seed: int = 0
    weights: Path | None = None
    replay: bool = True
    again: bool = False
    margins: Margins = field(default_factory=Margins)
    train: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        code: 0 done or nothing new, 3 a candidate was kept and not promoted.
        told: in one line.
        version: the version that was made.
        new_classes: how many classes were found; None where no photo was looked at.
        checks: the gate's.
    """

    code: int
    told: str
    version: int | None = None
    new_classes: int | None = None
    checks: list[Check] = field(default_factory=list)


def rediscover(
    request: Request,
    progress: Callable[[str, int, int, str], None] = lambda phase, done, total, note: None,
) -> Outcome:
    """Look at new photos and make the next version if they, or a person, bring new classes.

    Raises:
        UserError: code 75 while another rediscovery of this registry runs; code 1 where it can't be done.
        Interrupted: a stop was asked for; the same call goes on.
    """
    registry = Registry(request.registry)
    with registry.training():
        champion = registry.version("champion")
        bundle = open_bundle(champion.bundle)
        known_keys = read_tensors(bundle, EXEMPLARS)
        arrivals = look_through(request.new, known_keys.get("seen", known_keys["keys"]))
        said = read_said(request.labelled, request.holdout, request.teach, ids_by_word(registry))
        attempts, words = read_attempts(registry), said.digest()
        said = replace(
            said, heard=not request.again and any(one.get("said") == words for one in attempts.values())
        )
        if len(arrivals.keys) == 0 and not said.speaks:
            shutil.rmtree(registry.work, ignore_errors=True)
            return _nothing(arrivals)
        attempt = attempt_digest([*_asked(request), words], champion, arrivals, registry)
        before = attempts.get(attempt)
        if before is not None and not request.again:
            shutil.rmtree(registry.work, ignore_errors=True)
            return Outcome(int(before["code"]), f"nothing new since {before['time']}: {before['told']}")
        outcome = _attempt(request, registry, champion, arrivals, said, attempt, progress)
        outcome = replace(outcome, told=outcome.told + arrivals.left_out() + said.left_out())
        remember(registry, attempt, {
            "code": outcome.code, "told": outcome.told, "version": outcome.version, "champion": bundle.id,
            "photos": len(arrivals.keys), "said": words, "labelled": said.images,
        })  # fmt: skip
        shutil.rmtree(registry.work, ignore_errors=True)
        return outcome


def _attempt(
    request: Request,
    registry: Registry,
    champion: Version,
    arrivals: Arrivals,
    said: Said,
    attempt: str,
    progress: Callable[[str, int, int, str], None],
) -> Outcome:
    began = time.perf_counter()
    bundle = open_bundle(champion.bundle)
    known = recall(bundle, request.weights)
    images = len(arrivals.keys) + len(known.memory.keys) + said.images
    epochs = request.epochs or epochs_for(images, known.settings.train.batch_size)
    settings = continual_settings(known.settings, epochs, request.seed, dict(request.train))
    run = _run_folder(registry, attempt, settings, request.new)
    world = SoloWorld(run, pick_device(settings.train.device), progress)
    with run.claimed(), world.stopping_on_signals():
        identity = fold(read_log(registry.log))
        overlay = overlay_of(bundle, identity)
        memory, asked = known.memory, known.on(world.device)
        exemplars = ask(
            asked.model, asked.parts, asked.scale, settings,
            lambda rows: torch.from_numpy(memory.tokens[rows]).float().to(world.device), np.arange(len(memory.keys)),
            torch.no_grad, stopping_ticker(world, "memory"),
        )  # fmt: skip
        carried = carried_classes(known, overlay, exemplars)
        known, exemplars, carried = correct(said.entries, known, exemplars, carried)
        rows = list_classes(registry)
        ever = {row.id for row in rows} | set(identity.minted)
        if said.lessons:
            # A class of a version that does not answer is the same one.
            before = [resolve(rows, name) for name in said.lessons]
            minted = _ids(run.path / "taught_ids.json", len(said.lessons), ever)
            ids = [
                row.id if row is not None and row.status == "dormant" else own
                for row, own in zip(before, minted, strict=True)
            ]
            known, exemplars, carried = teach(
                said.lessons, ids, known, asked, exemplars, carried, run.path / "taught", settings, world.device,
                stopping_ticker(world, "examples"),
            )  # fmt: skip
        parted = part_memory(known.memory, carried)
        fresh = _ingest(arrivals, said, carried, settings, run, world)
        if isinstance(fresh, Outcome):
            return fresh
        catalog = join_catalog(fresh, carried.ids, parted)
        catalog.save(run.path)
        replay = _replayed(catalog, parted.replayed.keys, parted.replayed.tokens)
        base = ground(settings, catalog, world, replay if len(replay) else None)

        def opinion_of(champion: Known) -> Opinion:
            return ask(
                champion.model, champion.parts, champion.scale, settings,
                lambda rows: base.evaluation.read(rows, world.device), np.arange(len(catalog)), base.autocast,
                stopping_ticker(world, "champion's opinion"),
            )  # fmt: skip

        opinion = opinion_of(asked)
        spoken = opinion if asked.lean is None else opinion_of(asked.served())
        standing = Standing(known, overlay, carried, exemplars, opinion, spoken, catalog.labels)
        new = catalog.labels < 0
        growth, familiar = count_new(
            standing, first_sizes(registry), _MOST_NEW, settings.seed, request.classes
        )
        unfamiliar = int((spoken.novelty.numpy()[new] > bundle.manifest.novelty.threshold).sum())
        answers = overlay(spoken.fused.numpy(), spoken.cls.numpy()).argmax(axis=1)
        corrected = unheard(catalog, answers, known, carried) if said.speaks else 0
        if growth.classes == 0 and not said.lessons and not corrected:
            return Outcome(0, _familiar(growth, int(new.sum()), unfamiliar), None, 0)
        new_ids = _ids(run.path / "new_ids.json", growth.classes, ever | set(carried.ids))
        numbered = len(ever) - len([entry for entry in bundle.manifest.classes if entry.kind == "old"])
        if not request.replay:
            catalog, settings, standing, growth = new_alone(catalog, settings, standing, growth)
            catalog.save(run.path)
            replay = replay[:0]
        start = warm_start(standing, growth, replay, STRENGTH if request.replay else 0.0)
        trained = train(run, settings, catalog, world, start, standing, parted, new_ids, max(numbered, 0))
        beside = held_out(said.held, run.path / "holdout", settings, carried.ids) if said.held else None
        found = measure(settings, standing, parted, familiar, trained, world, beside)
        checks = judge(found, request.margins)
        out = run.path / "bundle"
        if not (out / MANIFEST).exists():
            precision = bundle.manifest.graph.precision
            export_run(run, out, precision, request.images and bundle.manifest.exemplars.thumbnails,
                       lambda phase, done, total: progress(phase, done, total, ""))  # fmt: skip
    passed = all(check.passed for check in checks)
    promoted = request.promote == "always" or (request.promote == "gate" and passed)
    changes = describe_changes(
        found, trained, carried, catalog, checks, champion.number, growth, arrivals, settings.seed,
        time.perf_counter() - began,
    )  # fmt: skip
    store = PixelStore.open(run.store) if request.images else None
    extras = {"changes.json": json.dumps(changes, indent=1, ensure_ascii=False, allow_nan=False).encode()}
    size = settings.data.image_size
    extras["changes.html"] = render_changes(
        changes, (lambda rows: store.centre(np.array(rows), size)) if store is not None else None
    )
    version = registry.add(out, parent=champion.number, note="rediscovered", extras=extras)
    settled = settle_names(registry, version)
    registry.point("candidate", version.number, "rediscovered")
    added = len(trained.records) - len(carried.ids)
    told = f"version {version.number}: {added} new classes in {int(new.sum())} new photos"
    if carried.taught:
        told += f" beside {len(carried.taught)} that {'was' if len(carried.taught) == 1 else 'were'} taught"
    if added < growth.classes:
        told += f" ({growth.classes} were sought; the photos of the others were fewer than {SMALLEST} or not alike)"
    if corrected:
        told += f"; {corrected} labelled images were new to the champion or answered otherwise by it"
    mixed = sum(one["mixed"] for one in changes["grew"])
    if mixed:
        told += f"; {mixed} known {'class' if mixed == 1 else 'classes'} may have taken in another one"
    told = "; ".join([told, *settled])
    if promoted:
        registry.promote(str(version.number), "passed the gate" if passed else "asked for")
        return Outcome(0, f"{told}, promoted", version.number, added, checks)
    failed = "; ".join(check.told for check in checks if not check.passed)
    why = failed if request.promote == "gate" else "--promote never"
    return Outcome(KEPT, f"{told}, kept as candidate and not promoted: {why}", version.number, added, checks)


def _ingest(
    arrivals: Arrivals,
    said: Said,
    carried: Carried,
    settings: Settings,
    run: RunFolder,
    world: World,
) -> Catalog | Outcome:
    """New photos and labelled images, decoded into the run's store; an outcome where there is nothing to see."""
    root = arrivals.listing.root
    entries = [Entry(str(root / entry.path)) for entry in arrivals.listing.entries]
    entries += said.entries
    for taught, shown in zip(carried.taught, said.lessons.values(), strict=True):
        entries += [Entry(entry.path, taught.id) for entry in shown]
    listing = Listing(root, sorted(entries, key=lambda entry: entry.path), [], "new photos")
    try:
        catalog = ingest(listing, run.store, settings.data, progress=stopping_ticker(world, "images"))
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
    if usable < SMALLEST and not said.speaks:
        return Outcome(
            0, f"{usable} new photos are too few for a class ({SMALLEST} are needed)" + (f"; {told}" if told else ""),
            None, 0,
        )  # fmt: skip
    if empty.any():
        kept = set(np.flatnonzero(~empty).tolist())
        paths = {path for row, path in enumerate(catalog.paths) if row in kept}
        entries = [entry for entry in listing.entries if entry.path in paths]
        catalog = ingest(
            Listing(root, entries, [], "new photos"),
            run.store,
            settings.data,
            stopping_ticker(world, "images"),
        )
    return catalog


def _run_folder(registry: Registry, attempt: str, settings: Settings, new: Path) -> RunFolder:
    """The folder of this attempt: gone on with if it is there, and the only one."""
    path = registry.work / attempt[:16]
    registry.work.mkdir(exist_ok=True)
    for other in registry.work.iterdir():
        if other.name != path.name:
            shutil.rmtree(other, ignore_errors=True)
    if (path / "run.json").exists():
        return RunFolder.open(path)
    shutil.rmtree(path, ignore_errors=True)
    return RunFolder.create(path, settings, new, {"protocol": None, "split": None})


def _ids(file: Path, count: int, taken: set[str]) -> list[str]:
    """Ids of classes that come, minted once for a run however often it is gone on with."""
    if not file.exists() or len(read_json(file)) != count:
        write_json(file, mint_ids(count, taken))
    ids: list[str] = read_json(file)
    return ids


def _replayed(catalog: Catalog, keys: NDArray[np.uint64], tokens: NDArray[np.float16]) -> NDArray[np.float16]:
    place = {key: row for row, key in enumerate(keys.tolist())}
    rows = [place[key] for key, path in zip(catalog.keys.tolist(), catalog.paths, strict=True)
            if path.startswith(REPLAYED)]  # fmt: skip
    return tokens[rows]


def _share(growth: Growth) -> str:
    low, high = (min(max(growth.unknown.share + side * 2 * growth.unknown.error, 0), 1) for side in (-1, 1))
    if high - low > _VAGUE:
        return "; too few to tell what share unknown classes have"
    return f"; unknown classes have {100 * low:.0f} to {100 * high:.0f}% of them"


def _familiar(growth: Growth, photos: int, unfamiliar: int) -> str:
    if photos == 0:
        return "nothing new: no new photo, and the champion knows all that the labelled ones say"
    return f"no new class among {photos} new photos ({unfamiliar} of them unfamiliar{_share(growth)})"


def _nothing(arrivals: Arrivals) -> Outcome:
    if arrivals.files and arrivals.unreadable == arrivals.files:
        raise UserError(f"none of {arrivals.files} files can be read", 1)
    told = f"{arrivals.seen} seen before, {arrivals.copies} copies" if arrivals.files else "no images there"
    return Outcome(0, f"nothing new: {told}{arrivals.left_out()}")


def _asked(request: Request) -> list[object]:
    """What of a request decides the outcome."""
    return [
        request.classes, request.epochs, request.seed, str(request.labelled), str(request.holdout), request.promote,
        request.teach, request.replay, sorted(map(str, request.train.items())), vars(request.margins),
    ]  # fmt: skip
