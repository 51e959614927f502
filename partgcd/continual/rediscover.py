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
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.attempts import attempt_digest, read_attempts, remember
from partgcd.continual.candidate import (
    STRENGTH,
    Fresh,
    Trained,
    continual_settings,
    epochs_for,
    new_alone,
    train,
    warm_start,
)
from partgcd.continual.changes import About, Against, Judged, describe_changes, measure
from partgcd.continual.gate import Check, Margins, judge
from partgcd.continual.growth import SMALLEST, Growth, count_new
from partgcd.continual.intake import Arrivals, Reader, look_through
from partgcd.continual.look import Place, Seen, ids_for, look
from partgcd.continual.recall import recall
from partgcd.continual.told import Said, held_out, read_said, unheard
from partgcd.data.pixels import PixelStore
from partgcd.discovery.discover import here
from partgcd.export.bundle import EXEMPLARS, MANIFEST, Bundle, open_bundle, read_tensors
from partgcd.export.export import export_run
from partgcd.registry.edits import settle_names
from partgcd.registry.naming import ids_by_word
from partgcd.registry.roster import first_sizes
from partgcd.registry.versions import Registry, Version
from partgcd.report.changes import render_changes
from partgcd.run.folder import RunFolder
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


@dataclass(frozen=True)
class Champion:
    """The version that a rediscovery goes on from, as it lies on disk.

    Attributes:
        seen: content keys of all images that it was trained on.
    """

    version: Version
    bundle: Bundle
    seen: NDArray[np.uint64]


@dataclass(frozen=True)
class Gathered:
    """What has come: new photos, and what a person says.

    Attributes:
        reader: holds what was read of both, for who decodes it.
        words: digest of what the person says.
        attempt: digest of all that decides the outcome.
    """

    arrivals: Arrivals
    said: Said
    reader: Reader
    words: str
    attempt: str


@dataclass(frozen=True)
class Sought:
    """What the new photos hold that is new.

    Attributes:
        familiar: what `measure` asks of the photos that are of known classes.
        ids: of the new classes.
        numbered: what their provisional names count on from.
        corrected: labelled images that tell the champion something.
    """

    growth: Growth
    familiar: NDArray[np.float64]
    ids: list[str]
    numbered: int
    corrected: int


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
        champion = open_champion(registry)
        came = gather(request, registry, champion)
        if not isinstance(came, Outcome):
            outcome = _attempt(request, registry, champion, came, progress)
            outcome = replace(outcome, told=outcome.told + came.arrivals.left_out() + came.said.left_out())
            remember(registry, came.attempt, {
                "code": outcome.code, "told": outcome.told, "version": outcome.version, "champion": champion.bundle.id,
                "photos": len(came.arrivals.keys), "said": came.words, "labelled": came.said.images,
            })  # fmt: skip
            came = outcome
        shutil.rmtree(registry.work, ignore_errors=True)
        return came


def _attempt(
    request: Request,
    registry: Registry,
    champion: Champion,
    came: Gathered,
    progress: Callable[[str, int, int, str], None],
) -> Outcome:
    """The steps from what has come to what is made of it."""
    began = time.perf_counter()
    known = recall(champion.bundle, request.weights)
    images = len(came.arrivals.keys) + len(known.memory.keys) + came.said.images
    epochs = request.epochs or epochs_for(images, known.settings.train.batch_size)
    settings = continual_settings(known.settings, epochs, request.seed, dict(request.train))
    run = _run_folder(registry, came.attempt, settings, request.new)
    with run.claimed(), here(run, settings, progress) as world:
        at = Place(registry, run, settings, world)
        seen = look(at, known, came.arrivals, came.said, came.reader)
        if isinstance(seen, str):
            return Outcome(0, seen, None, 0)
        sought = find_new(request, at, champion, seen, came.said)
        if isinstance(sought, str):
            return Outcome(0, sought, None, 0)
        if not request.replay:
            seen, sought, at = _new_alone(seen, sought, at)
        trained = train_on(request, at, seen, sought)
        judged = judge_by(request, at, champion, (seen, sought, trained), came.said)
    return publish(request, at, champion, (seen, sought, judged, came.arrivals), time.perf_counter() - began)


def open_champion(registry: Registry) -> Champion:
    """The registry's champion."""
    version = registry.version("champion")
    bundle = open_bundle(version.bundle)
    kept = read_tensors(bundle, EXEMPLARS)
    return Champion(version, bundle, kept.get("seen", kept["keys"]))


def gather(request: Request, registry: Registry, champion: Champion) -> Gathered | Outcome:
    """What has come since the champion was trained; an outcome where that is nothing, or was looked at before."""
    reader = Reader()
    arrivals = look_through(request.new, champion.seen, reader)
    said = read_said(request.labelled, request.holdout, request.teach, ids_by_word(registry), reader)
    attempts, words = read_attempts(registry), said.digest()
    said = replace(
        said, heard=not request.again and any(one.get("said") == words for one in attempts.values())
    )
    if len(arrivals.keys) == 0 and not said.speaks:
        return _nothing(arrivals)
    attempt = attempt_digest([*_asked(request), words], champion.version, arrivals, registry)
    before = attempts.get(attempt)
    if before is not None and not request.again:
        return Outcome(int(before["code"]), f"nothing new since {before['time']}: {before['told']}")
    return Gathered(arrivals, said, reader, words, attempt)


def find_new(request: Request, at: Place, champion: Champion, seen: Seen, said: Said) -> Sought | str:
    """How many new classes the photos hold, and which; the reason where there is nothing to train for."""
    standing, catalog = seen.standing, seen.catalog
    carried, spoken = standing.carried, standing.spoken
    new = catalog.labels < 0
    growth, familiar = count_new(
        standing, first_sizes(at.registry), _MOST_NEW, at.settings.seed, request.classes
    )
    manifest = champion.bundle.manifest
    unfamiliar = int((spoken.novelty.numpy()[new] > manifest.novelty.threshold).sum())
    answers = standing.overlay(spoken.fused.numpy(), spoken.cls.numpy()).argmax(axis=1)
    corrected = unheard(catalog, answers, standing.known, carried) if said.speaks else 0
    if growth.classes == 0 and not said.lessons and not corrected:
        return _familiar(growth, int(new.sum()), unfamiliar)
    ids = ids_for(at.run.path / "new_ids.json", growth.classes, seen.ever | set(carried.ids))
    numbered = len(seen.ever) - len([entry for entry in manifest.classes if entry.kind == "old"])
    return Sought(growth, familiar, ids, max(numbered, 0), corrected)


def _new_alone(seen: Seen, sought: Sought, at: Place) -> tuple[Seen, Sought, Place]:
    """The same without anything that is remembered: plain fine-tuning, to compare with."""
    catalog, settings, standing, growth = new_alone(seen.catalog, at.settings, seen.standing, sought.growth)
    catalog.save(at.run.path)
    seen = replace(seen, catalog=catalog, standing=standing, replay=seen.replay[:0])
    return seen, replace(sought, growth=growth), replace(at, settings=settings)


def train_on(request: Request, at: Place, seen: Seen, sought: Sought) -> Trained:
    """The training that goes on from the champion."""
    start = warm_start(seen.standing, sought.growth, seen.replay, STRENGTH if request.replay else 0.0)
    start = replace(start, backbone=seen.backbone)
    fresh = Fresh(at.run, at.settings, seen.catalog, seen.parted, sought.ids, sought.numbered)
    return train(fresh, at.world, start, seen.standing)


def judge_by(
    request: Request, at: Place, champion: Champion, made: tuple[Seen, Sought, Trained], said: Said
) -> Judged:
    """The candidate measured against the champion and the margins, and its bundle."""
    seen, sought, trained = made
    run, standing = at.run, seen.standing
    beside = (
        held_out(said.held, run.path / "holdout", at.settings, standing.carried.ids) if said.held else None
    )
    measured = measure(
        Against(standing, seen.parted, sought.familiar, beside), at.settings, trained, at.world
    )
    checks = judge(measured, request.margins)
    out = run.path / "bundle"
    if not (out / MANIFEST).exists():
        manifest = champion.bundle.manifest
        export_run(
            run, out, manifest.graph.precision, request.images and manifest.exemplars.thumbnails,
            lambda phase, done, total: at.world.progress(phase, done, total),
            # Nobody asks the champion's model any more: its backbone can become the candidate's.
            standing.known.model.backbone,
        )  # fmt: skip
    return Judged(trained, measured, checks, out)


def publish(
    request: Request,
    at: Place,
    champion: Champion,
    made: tuple[Seen, Sought, Judged, Arrivals],
    seconds: float,
) -> Outcome:
    """The next version with its report, and the champion's place if it has earned it."""
    seen, sought, judged, arrivals = made
    registry, catalog, carried = at.registry, seen.catalog, seen.standing.carried
    promoted = request.promote == "always" or (request.promote == "gate" and judged.passed)
    about = About(champion.version.number, at.settings.seed, seconds)
    changes = describe_changes(judged, carried, catalog, sought.growth, arrivals, about)
    store = PixelStore.open(at.run.store) if request.images else None
    size = at.settings.data.image_size
    extras = {
        "changes.json": json.dumps(changes, indent=1, ensure_ascii=False, allow_nan=False).encode(),
        "changes.html": render_changes(
            changes, (lambda rows: store.centre(np.array(rows), size)) if store is not None else None
        ),
    }
    version = registry.add(judged.bundle, parent=champion.version.number, note="rediscovered", extras=extras)
    settled = settle_names(registry, version)
    registry.point("candidate", version.number, "rediscovered")
    added = len(judged.trained.records) - len(carried.ids)
    mixed = sum(one["mixed"] for one in changes["grew"])
    told = "; ".join([_made(version.number, added, seen, sought), *_mixed(mixed), *settled])
    if promoted:
        registry.promote(str(version.number), "passed the gate" if judged.passed else "asked for")
        return Outcome(0, f"{told}, promoted", version.number, added, judged.checks)
    failed = "; ".join(check.told for check in judged.checks if not check.passed)
    why = failed if request.promote == "gate" else "--promote never"
    return Outcome(
        KEPT, f"{told}, kept as candidate and not promoted: {why}", version.number, added, judged.checks
    )


def _made(number: int, added: int, seen: Seen, sought: Sought) -> str:
    taught = seen.standing.carried.taught
    told = f"version {number}: {added} new classes in {int((seen.catalog.labels < 0).sum())} new photos"
    if taught:
        told += f" beside {len(taught)} that {'was' if len(taught) == 1 else 'were'} taught"
    if added < sought.growth.classes:
        of_others = f"the photos of the others were fewer than {SMALLEST} or not alike"
        told += f" ({sought.growth.classes} were sought; {of_others})"
    if sought.corrected:
        told += f"; {sought.corrected} labelled images were new to the champion or answered otherwise by it"
    return told


def _mixed(mixed: int) -> list[str]:
    return (
        [f"{mixed} known {'class' if mixed == 1 else 'classes'} may have taken in another one"]
        if mixed
        else []
    )


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
