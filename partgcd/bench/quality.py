"""Runs the pending jobs of a plan, one line of results each; what shares views shares the work of making them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partgcd.bench.plan import Job, Plan
from partgcd.bench.results import QUALITY, add_result, measured_settings, read_results, same_settings
from partgcd.bench.sets import write_set
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.discovery.discover import build_catalog, discover, here
from partgcd.discovery.task import Task
from partgcd.disk.lock import BUSY, claimed
from partgcd.run.device import processor
from partgcd.run.folder import RunFolder

_SHARED = ("cache/evaluation", "cache/pool")
_MANIFEST = "set.csv"
_CATALOG = ("catalog.parquet", "truth.parquet", "quarantine.csv", "duplicates.csv")


@dataclass(frozen=True)
class Session:
    """Where a bench works, and whom it tells.

    Attributes:
        photos: folder of data sets.
        results: folder of result files, which grow by a line as soon as a run ends.
        work: scratch folder (quality: about 100 kB a view and image at 154 px).
        machine: settings of this machine (device, threads).
        say: prints a line.
        progress: shows how far a step is.
    """

    photos: Path
    results: Path
    work: Path
    machine: dict[str, object]
    say: Callable[[str], None]
    progress: Callable[..., None] | None = None


def pending(plan: Plan, jobs: list[Job], results: Path) -> list[Job]:
    """The jobs without a result, or with one of other settings or other images."""
    kept = read_results(results, QUALITY)
    return [job for job in jobs if not _fresh(plan, job, kept.get(job))]


def _fresh(plan: Plan, job: Job, kept: dict[str, Any] | None) -> bool:
    """Whether there is a result, measured on the images and with the settings that the plan asks for."""
    if kept is None:
        return False
    wanted = measured_settings(plan.settings(job, int(kept["classes"]["true"]), {}))
    return bool(kept.get("drawn") == plan.sets[job.set].drawn()) and same_settings(kept["settings"], wanted)


def run_plan(plan: Plan, jobs: list[Job], session: Session) -> list[Job]:
    """Run what is pending; a run that was broken off goes on where it was.

    Several processes may work on one plan in one scratch folder: each takes (set, backbone, seed) groups
    that no other holds.

    Returns:
        the jobs that other processes hold.

    Raises:
        Interrupted: a stop was asked for; what was done is kept.
    """
    held: list[Job] = []
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in pending(plan, jobs, session.results):
        groups.setdefault((job.set, job.backbone, job.seed), []).append(job)
    for (name, backbone, seed), members in groups.items():
        drawn = plan.sets[name].drawn()
        ground = session.work / "ground" / f"{name}+{backbone.replace('/', '_')}+{seed}+{_digest(drawn)}"
        with ExitStack() as stack:
            try:
                stack.enter_context(claimed(ground, "runs a bench"))
            except UserError as error:
                if error.code != BUSY:
                    raise
                held += members
                continue
            classes = write_set(plan.sets[name], session.photos, ground / _MANIFEST)
            for job in pending(plan, members, session.results):
                _run(job, plan.settings(job, classes, session.machine), drawn, ground, session)
            shutil.rmtree(ground, ignore_errors=True)
    return held


def _run(job: Job, settings: Settings, drawn: dict[str, object], ground: Path, session: Session) -> None:
    """Run one job in ``ground``, which it shares with the others on the same views, and keep its result."""
    measured = measured_settings(settings)
    name = f"{job.set}+{job.backbone.replace('/', '_')}+{job.method}+{job.seed}"
    path = session.work / "runs" / f"{name}+{_digest(drawn | measured)}"
    if (path / "run.json").exists():
        run = RunFolder.open(path)
    else:
        run = RunFolder.create(path, settings, ground / _MANIFEST, Task(ground / _MANIFEST, "gcd").request())
    for part in _SHARED:
        _share(path / part, ground / part)
    if (ground / _CATALOG[0]).exists():
        _share(path / "store", ground / "store")
        _copy_catalog(ground, path)
    with run.claimed(), here(run, settings, session.progress) as world:
        build_catalog(run, settings, world)
        if not (path / "store").is_symlink():
            if (path / "store").exists():  # else a kill came right after the move
                shutil.rmtree(ground / "store", ignore_errors=True)
                (path / "store").rename(ground / "store")
            _share(path / "store", ground / "store")
            _copy_catalog(path, ground)
        summary = discover(run, settings, world)
    accuracy = summary["accuracy"]
    if accuracy is None:
        raise UserError(f"'{job.set}' has no truth to score against", 1)
    last = run.read_metrics()[-1:]
    add_result(session.results, QUALITY, {
        "set": job.set, "backbone": job.backbone, "method": job.method, "seed": job.seed,
        "drawn": drawn, "settings": measured,
        "accuracy": {key: accuracy[key] for key in ("set", "v2", "heads", "nmi", "ari")},
        "purity": [point["purity"] for point in accuracy["curve"]],
        "curve": [round(point["all"], 4) for point in accuracy["curve"]],
        "classes": {"true": accuracy["true_classes"], "used": summary["classes"]["total"],
                    "empty": summary["classes"]["empty"], "estimate": run.info().get("class_estimate")},
        "parts": summary["parts"],
        "images": summary["images"],
        "seconds": {**summary["seconds"],
                    "steps": round(sum(line["seconds"]["steps"] for line in run.read_metrics()), 1)},
        "peak_memory_mb": last[0]["peak_memory_mb"] if last else None,
        "machine": {"processor": processor(), "cores": os.cpu_count(),
                    "device": run.info()["device"], "precision": run.info()["precision"]},
        "code": run.info()["git"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    shutil.rmtree(path, ignore_errors=True)
    v2 = accuracy["v2"]
    figures = "/".join("-" if v2[k] is None else f"{100 * v2[k]:.1f}" for k in ("all", "old", "new"))
    session.say(
        f"{job.set} {job.backbone} {job.method} seed {job.seed}: {figures}, {summary['seconds']['total']:.0f} s"
    )


def _digest(value: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _copy_catalog(source: Path, target: Path) -> None:
    if (target / _CATALOG[0]).exists():
        return
    for file in reversed(_CATALOG):  # the catalog last: its presence says that all are there
        if (source / file).exists():
            shutil.copyfile(source / file, target / file)


def _share(link: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target.resolve(), target_is_directory=True)


def results_of(plan: Plan, jobs: list[Job], results: Path) -> list[dict[str, Any]]:
    """The results there are of ``jobs``; ones of other settings are left out."""
    kept = read_results(results, QUALITY)
    return [kept[job] for job in jobs if _fresh(plan, job, kept.get(job))]
