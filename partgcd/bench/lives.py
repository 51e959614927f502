"""Runs simulated lives stage by stage, one line of results each; broken off, the same call goes on."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.bench.arrivals import Life, Shares, deal
from partgcd.bench.life_plan import LifeJob, LifePlan
from partgcd.bench.life_score import changed_meaning, moved_away, score, unknown_classes
from partgcd.bench.quality import Session
from partgcd.bench.results import LIFE, add_result, measured_settings, read_results, same_settings
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.champion import AnsweringModel, load_champion, predict_all
from partgcd.continual.rediscover import rediscover
from partgcd.continual.request import Request
from partgcd.data.decode import decode
from partgcd.data.pixels import evaluation_view
from partgcd.discovery.discover import discover, here
from partgcd.discovery.predict import PartModel
from partgcd.discovery.task import Task
from partgcd.disk.files import read_json, write_bytes, write_csv, write_json
from partgcd.disk.lock import BUSY, locked
from partgcd.export.bundle import MANIFEST, open_bundle
from partgcd.export.export import export_run
from partgcd.export.source import open_source
from partgcd.model.module import DiscoveryModel
from partgcd.registry.versions import Registry
from partgcd.run.device import processor
from partgcd.run.folder import RunFolder


@dataclass(frozen=True)
class _Stage:
    """What is at hand for one stage of one life."""

    job: LifeJob
    plan: LifePlan
    life: Life
    ground: Path
    session: Session


def pending(plan: LifePlan, jobs: list[LifeJob], results: Path) -> list[tuple[LifeJob, str, int]]:
    """(life, method, stage) without a result, in the order in which they are run."""
    kept = read_results(results, LIFE)
    return [
        (job, method, stage)
        for job in jobs
        for stage in range(plan.arrivals_of(job.set) + 1)
        for method in plan.methods_of(job.set)
        if not _fresh(plan, job, kept.get((*job, method, stage)))
    ]


def _fresh(plan: LifePlan, job: LifeJob, kept: dict[str, Any] | None) -> bool:
    """Whether there is a result, and not of other settings or images."""
    if kept is None:
        return False
    return bool(kept.get("drawn") == _drawn(plan, job)) and same_settings(kept["settings"], _asked(plan, job))


def _drawn(plan: LifePlan, job: LifeJob) -> dict[str, object]:
    """What decides which images come when."""
    drawn = plan.sets[job.set].drawn() | {"arrivals": plan.arrivals_of(job.set)}
    return {key: value for key, value in drawn.items() if key != "methods"}


def _asked(plan: LifePlan, job: LifeJob) -> dict[str, object]:
    """Every setting that a life depends on; the number of classes is another one at every stage."""
    leaves = measured_settings(plan.settings(job, 2, {}))
    return {key: value for key, value in leaves.items() if key != "discovery.classes"} | {
        "epochs": plan.epochs
    }


def run_lives(plan: LifePlan, jobs: list[LifeJob], session: Session) -> list[LifeJob]:
    """Run what is pending. Several processes may share a plan: each takes lives that no other holds.

    Returns:
        lives that other processes hold.
    """
    held = []
    for job in jobs:
        if not pending(plan, [job], session.results):
            continue
        ground = session.work / f"{job.set}+{job.seed}"
        ground.mkdir(parents=True, exist_ok=True)
        try:
            with locked(session.work / f".{ground.name}.lock", f"the life of {job.set} {job.seed}"):
                spec, arrivals = plan.sets[job.set], plan.arrivals_of(job.set)
                life = deal(spec, session.photos, ground, arrivals, job.seed, Shares(), spec.fresh)
                at = _Stage(job, plan, life, ground, session)
                for _, method, stage in pending(plan, [job], session.results):
                    result = _run(at, method, stage)
                    add_result(session.results, LIFE, result)
                    session.say(_line(job, method, stage, result))
                shutil.rmtree(ground, ignore_errors=True)
        except UserError as error:
            if error.code != BUSY:
                raise
            held.append(job)
    return held


def _run(at: _Stage, method: str, stage: int) -> dict[str, Any]:
    known = _labelled_ids(at)
    began, worked = time.perf_counter(), time.process_time()
    extra: dict[str, Any] = {}
    if method in ("none", "rediscover", "finetune") and stage == 0:
        bundle = _first(at)
        answered = _answers(at, bundle)
    elif method == "none":
        answered = _answers(at, _first(at))
    elif method in ("rediscover", "finetune"):
        registry, extra = _arrive(at, method, stage)
        answered = _answers(at, registry.resolve("champion"))
    else:
        run = _scratch(at, stage)
        extra["training_seconds"] = round(time.perf_counter() - began, 1)
        if stage > 0:  # what is served is a bundle; rediscovery's seconds count its making too
            export_run(run, at.ground / f"scratch-{stage}-bundle")
            shutil.rmtree(at.ground / f"scratch-{stage}-bundle")
        extra |= _spent(began, worked)
        source = open_source(run)
        known = {entry["id"]: entry["name"] for entry in source.classes if entry["kind"] == "old"}
        ids = [str(entry["id"]) for entry in source.classes]
        answered = _ask(at, source.model, source.parts, source.settings, ids)
    found = score(answered, [at.life.truth[path] for path in at.life.test], known, at.life.introduced, stage)
    kept = read_results(at.session.results, LIFE)
    before = [kept.get((*at.job, method, each)) for each in range(stage)]
    if stage > 0 and before[-1] is not None and method != "scratch":
        earlier = [each["accuracy"] for each in before if each is not None]
        extra |= {
            "changed_meaning": changed_meaning(earlier, found),
            "moved_away": moved_away(earlier, found),
        }
        came = [at.life.truth[path] for path in at.life.stages[stage]]
        extra["unknown_classes"] = len(unknown_classes(earlier[-1]["majority"], came))
    if stage > 0 and before[0] is not None:
        extra["forgetting"] = round(float(before[0]["accuracy"]["old"]) - float(found["old"]), 4)
    fresh = [name for name, when in at.life.introduced.items() if when == stage and stage > 0]
    return {
        "set": at.job.set, "seed": at.job.seed, "method": method, "stage": stage,
        "drawn": _drawn(at.plan, at.job), "settings": _asked(at.plan, at.job), "accuracy": found,
        "true_new": len(fresh), **extra,
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _spent(began: float, worked: float) -> dict[str, float]:
    """Seconds since, and those of them (of all threads) that a CPU worked: the fairer one on a busy machine."""
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
    }


def _first(at: _Stage) -> Path:
    """The bundle of the first stage, made once."""
    out = at.ground / "first"
    if not (out / MANIFEST).exists():
        run = _train(at, at.ground / "run-0", at.life.stages[0], len(at.life.classes(0)))
        export_run(run, out)
    return out


def _scratch(at: _Stage, stage: int) -> RunFolder:
    """A training that begins anew on everything so far, told the true number of classes."""
    if stage == 0:
        _first(at)
        return RunFolder.open(at.ground / "run-0")
    files = [path for each in at.life.stages[: stage + 1] for path in each]
    path = at.ground / f"scratch-{stage}"
    run = _train(at, path, files, len(at.life.classes(stage)))
    shutil.rmtree(run.cache, ignore_errors=True)
    return run


def _train(at: _Stage, path: Path, files: list[str], classes: int) -> RunFolder:
    manifest = path.with_suffix(".csv")
    labelled = set(at.life.labelled)
    rows = [(file, at.life.truth[file] if file in labelled else "") for file in sorted(files)]
    write_csv(manifest, ["path", "label"], rows)
    settings = at.plan.settings(at.job, classes, at.session.machine)
    if (path / "run.json").exists():
        run = RunFolder.open(path)
    else:
        run = RunFolder.create(path, settings, manifest, Task(manifest).request())
    with run.claimed(), here(run, settings, at.session.progress) as world:
        discover(run, settings, world)
    return run


def _arrive(at: _Stage, method: str, stage: int) -> tuple[Registry, dict[str, Any]]:
    """Take arrivals in up to this one, each once, and say what came of it.

    The ones before are taken again where the scratch folder is another one than theirs.
    """
    registry = Registry.init(at.ground / method)
    if not registry.versions():
        registry.add(_first(at))
    if "champion" not in registry.aliases():
        registry.promote("1")
    for each in range(1, stage + 1):
        if not (at.ground / f"{method}-{each}.json").exists():
            write_json(at.ground / f"{method}-{each}.json", _take_in(at, registry, method, each))
    return registry, read_json(at.ground / f"{method}-{stage}.json")


def _take_in(at: _Stage, registry: Registry, method: str, stage: int) -> dict[str, Any]:
    """One arrival: its photos in a folder without any hint."""
    began, worked = time.perf_counter(), time.process_time()
    folder = at.ground / f"arrival-{stage}"
    for path in at.life.stages[stage]:
        place = folder / f"{_hidden(path)}{Path(path).suffix.lower()}"
        if not place.exists():
            write_bytes(place, Path(path).read_bytes())
    train = {
        key.removeprefix("train."): value
        for key, value in at.session.machine.items()
        if key.startswith("train.")
    }
    request = Request(
        registry.path, folder, "always", epochs=at.plan.epochs, seed=at.job.seed, train=train,
        replay=method == "rediscover",
    )  # fmt: skip
    outcome = rediscover(request, at.session.progress or (lambda *words: None))
    extra: dict[str, Any] = {"new_classes": outcome.new_classes, "summary": outcome.summary}
    extra["checks"] = [check.as_json() for check in outcome.checks]
    return extra | _spent(began, worked)


def _hidden(path: str) -> str:
    """A name for a file that tells nothing of its class."""
    return hashlib.sha256("/".join(Path(path).parts[-2:]).encode()).hexdigest()[:16]


def _labelled_ids(at: _Stage) -> dict[str, str]:
    """Class by id of the classes that people labelled."""
    entries = open_bundle(_first(at)).manifest.classes
    return {entry.id: entry.name for entry in entries if entry.kind == "old"}


def _answers(at: _Stage, bundle: Path) -> list[str]:
    known = load_champion(open_bundle(bundle)).served()
    ids = [entry.id for entry in known.bundle.manifest.classes]
    return _ask(at, known.model, known.parts, known.settings, ids)


def _ask(
    at: _Stage, model: DiscoveryModel, parts: PartModel | None, settings: Settings, ids: list[str]
) -> list[str]:
    """Class id of every held-out image."""
    tokens = _test_tokens(at, model, settings)
    found = predict_all(
        AnsweringModel(model, parts, None, settings),
        lambda rows: torch.from_numpy(tokens[rows]).float(),
        len(tokens),
    )
    return [ids[index] for index in found.fused.argmax(dim=1).tolist()]


@torch.no_grad()
def _test_tokens(at: _Stage, model: DiscoveryModel, settings: Settings) -> NDArray[np.float16]:
    """Trunk tokens of the held-out images; the trunk is the same for all models."""
    file = at.ground / "test.npy"
    if not file.exists():
        chunks = []
        for start in range(0, len(at.life.test), 32):
            paths = at.life.test[start : start + 32]
            views = [
                evaluation_view(decode(Path(path), settings.data.max_megapixels), settings.data)
                for path in paths
            ]
            chunks.append(model.backbone.trunk(torch.from_numpy(np.stack(views))).half().numpy())
        part = file.with_suffix(".part.npy")
        np.save(part, np.concatenate(chunks))
        part.replace(file)
    found: NDArray[np.float16] = np.load(file, allow_pickle=False)
    return found


def _line(job: LifeJob, method: str, stage: int, result: dict[str, Any]) -> str:
    accuracy = result["accuracy"]
    figures = "/".join(
        "-" if accuracy[k] is None else f"{100 * accuracy[k]:.1f}" for k in ("all", "old", "new")
    )
    more = f", {result['new_classes']} new of {result['true_new']}" if "new_classes" in result else ""
    return (
        f"{job.set} seed {job.seed} stage {stage} {method}: {figures}{more}, {result.get('seconds', 0):.0f} s"
    )


def results_of(plan: LifePlan, jobs: list[LifeJob], results: Path) -> list[dict[str, Any]]:
    """The results there are; ones of other settings are left out."""
    kept = read_results(results, LIFE)
    return [
        kept[key]
        for job in jobs
        for method in plan.methods_of(job.set)
        for stage in range(plan.arrivals_of(job.set) + 1)
        if _fresh(plan, job, kept.get(key := (*job, method, stage)))
    ]
