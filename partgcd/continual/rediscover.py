"""The whole job: a champion and a folder of new photos in; nothing new, a candidate, or a new champion out.

Whatever moment a kill comes at, the registry is as it was or as it is to be: a training lies in the registry's work
folder and is gone on with, a version is made aside and renamed in, an alias moves in one step.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.annotations import Annotations, count_unlearned, held_out, read_annotations
from partgcd.continual.attempts import attempt_digest, read_attempts, remember
from partgcd.continual.champion import load_champion
from partgcd.continual.compare import About, Against, Judged, describe_changes, measure
from partgcd.continual.gate import judge
from partgcd.continual.growth import SMALLEST, Growth, count_new
from partgcd.continual.intake import Arrivals, Reader, look_through
from partgcd.continual.look import Place, Seen, ids_for, look
from partgcd.continual.request import Outcome, Request
from partgcd.continual.retrain import (
    STRENGTH,
    Fresh,
    Trained,
    continual_settings,
    epochs_for,
    new_alone,
    train,
    warm_start,
)
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
    annotations: Annotations
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
            outcome = replace(
                outcome, summary=outcome.summary + came.arrivals.left_out() + came.annotations.left_out()
            )
            remember(registry, came.attempt, {
                "code": outcome.code, "summary": outcome.summary, "version": outcome.version,
                "champion": champion.bundle.id,
                "photos": len(came.arrivals.keys), "annotations": came.words, "labelled": came.annotations.images,
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
    known = load_champion(champion.bundle, request.weights)
    images = len(came.arrivals.keys) + len(known.memory.keys) + came.annotations.images
    epochs = request.epochs or epochs_for(images, known.settings.train.batch_size)
    settings = continual_settings(known.settings, epochs, request.seed, dict(request.train))
    run = _run_folder(registry, came.attempt, settings, request.new)
    with run.claimed(), here(run, settings, progress) as world:
        at = Place(registry, run, settings, world)
        seen = look(at, known, came.arrivals, came.annotations, came.reader)
        if isinstance(seen, str):
            return Outcome(0, seen, None, 0)
        sought = find_new(request, at, champion, seen, came.annotations)
        if isinstance(sought, str):
            return Outcome(0, sought, None, 0)
        if not request.replay:
            seen, sought, at = _new_alone(seen, sought, at)
        trained = train_on(request, at, seen, sought)
        judged = judge_by(request, at, champion, (seen, sought, trained), came.annotations)
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
    annotations = read_annotations(
        request.labelled, request.holdout, request.teach, ids_by_word(registry), reader
    )
    attempts, words = read_attempts(registry), annotations.digest()
    annotations = replace(
        annotations,
        given_before=not request.again and any(one.get("annotations") == words for one in attempts.values()),
    )
    if len(arrivals.keys) == 0 and not annotations.asks_for_version:
        return _nothing(arrivals)
    attempt = attempt_digest([*_asked(request), words], champion.version, arrivals, registry)
    before = attempts.get(attempt)
    if before is not None and not request.again:
        return Outcome(int(before["code"]), f"nothing new since {before['time']}: {before['summary']}")
    return Gathered(arrivals, annotations, reader, words, attempt)


def find_new(
    request: Request, at: Place, champion: Champion, seen: Seen, annotations: Annotations
) -> Sought | str:
    """How many new classes the photos hold, and which; the reason where there is nothing to train for."""
    reference, catalog = seen.reference, seen.catalog
    retained, served = reference.retained, reference.served
    new = catalog.labels < 0
    growth, familiar = count_new(
        reference, first_sizes(at.registry), _MOST_NEW, at.settings.seed, request.classes
    )
    manifest = champion.bundle.manifest
    unfamiliar = int((served.novelty.numpy()[new] > manifest.novelty.threshold).sum())
    answers = reference.overlay(served.fused.numpy(), served.cls.numpy()).argmax(axis=1)
    corrected = (
        count_unlearned(catalog, answers, reference.known, retained) if annotations.asks_for_version else 0
    )
    if growth.classes == 0 and not annotations.lessons and not corrected:
        return _familiar(growth, int(new.sum()), unfamiliar)
    ids = ids_for(at.run.path / "new_ids.json", growth.classes, seen.ever | set(retained.ids))
    numbered = len(seen.ever) - len([entry for entry in manifest.classes if entry.kind == "old"])
    return Sought(growth, familiar, ids, max(numbered, 0), corrected)


def _new_alone(seen: Seen, sought: Sought, at: Place) -> tuple[Seen, Sought, Place]:
    """The same without anything that is remembered: plain fine-tuning, to compare with."""
    catalog, settings, reference, growth = new_alone(seen.catalog, at.settings, seen.reference, sought.growth)
    catalog.save(at.run.path)
    seen = replace(seen, catalog=catalog, reference=reference, replay=seen.replay[:0])
    return seen, replace(sought, growth=growth), replace(at, settings=settings)


def train_on(request: Request, at: Place, seen: Seen, sought: Sought) -> Trained:
    """The training that goes on from the champion."""
    start = warm_start(seen.reference, sought.growth, seen.replay, STRENGTH if request.replay else 0.0)
    start = replace(start, backbone=seen.backbone)
    fresh = Fresh(at.run, at.settings, seen.catalog, seen.parted, sought.ids, sought.numbered)
    return train(fresh, at.world, start, seen.reference)


def judge_by(
    request: Request,
    at: Place,
    champion: Champion,
    made: tuple[Seen, Sought, Trained],
    annotations: Annotations,
) -> Judged:
    """The candidate measured against the champion and the margins, and its bundle."""
    seen, sought, trained = made
    run, reference = at.run, seen.reference
    beside = (
        held_out(annotations.held, run.path / "holdout", at.settings, reference.retained.ids)
        if annotations.held
        else None
    )
    measured = measure(
        Against(reference, seen.parted, sought.familiar, beside), at.settings, trained, at.world
    )
    checks = judge(measured, request.margins)
    out = run.path / "bundle"
    if not (out / MANIFEST).exists():
        manifest = champion.bundle.manifest
        export_run(
            run, out, manifest.graph.precision, request.images and manifest.exemplars.thumbnails,
            lambda phase, done, total: at.world.progress(phase, done, total),
            # Nobody asks the champion's model any more: its backbone can become the candidate's.
            reference.known.model.backbone,
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
    registry, catalog, retained = at.registry, seen.catalog, seen.reference.retained
    promoted = request.promote == "always" or (request.promote == "gate" and judged.passed)
    about = About(champion.version.number, at.settings.seed, seconds)
    changes = describe_changes(judged, retained, catalog, sought.growth, arrivals, about)
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
    added = len(judged.trained.records) - len(retained.ids)
    mixed = sum(one["mixed"] for one in changes["grew"])
    summary = "; ".join([_made(version.number, added, seen, sought), *_mixed(mixed), *settled])
    if promoted:
        registry.promote(str(version.number), "passed the gate" if judged.passed else "asked for")
        return Outcome(0, f"{summary}, promoted", version.number, added, judged.checks)
    failed = "; ".join(check.text for check in judged.checks if not check.passed)
    why = failed if request.promote == "gate" else "--promote never"
    return Outcome(
        KEPT, f"{summary}, kept as candidate and not promoted: {why}", version.number, added, judged.checks
    )


def _made(number: int, added: int, seen: Seen, sought: Sought) -> str:
    taught = seen.reference.retained.taught
    summary = f"version {number}: {added} new classes in {int((seen.catalog.labels < 0).sum())} new photos"
    if taught:
        summary += f" beside {len(taught)} that {'was' if len(taught) == 1 else 'were'} taught"
    if added < sought.growth.classes:
        of_others = f"the photos of the others were fewer than {SMALLEST} or not alike"
        summary += f" ({sought.growth.classes} were sought; {of_others})"
    if sought.corrected:
        summary += (
            f"; {sought.corrected} labelled images were new to the champion or answered otherwise by it"
        )
    return summary


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
    summary = (
        f"{arrivals.seen} seen before, {arrivals.copies} copies" if arrivals.files else "no images there"
    )
    return Outcome(0, f"nothing new: {summary}{arrivals.left_out()}")


def _asked(request: Request) -> list[object]:
    """What of a request decides the outcome."""
    return [
        request.classes, request.epochs, request.seed, str(request.labelled), str(request.holdout), request.promote,
        request.teach, request.replay, sorted(map(str, request.train.items())), vars(request.margins),
    ]  # fmt: skip
