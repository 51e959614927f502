"""The whole job for one run folder: images in, categories out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.ingest import ingest
from partgcd.data.truth import read_truth
from partgcd.discovery.backbone_choice import choose_backbone
from partgcd.discovery.evaluate import evaluate_run
from partgcd.discovery.fit import fit
from partgcd.discovery.outputs import Answers, answer_all, write_model, write_outputs
from partgcd.discovery.setup import stopping_ticker
from partgcd.discovery.task import Task, listing_of
from partgcd.discovery.untrained import cluster_untrained
from partgcd.disk.files import read_json, write_bytes, write_json
from partgcd.methods.known import method_of
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld, World

OnProgress = Callable[[str, int, int, str], None]
OnReport = Callable[[dict[str, Any]], None]


def discover(run: RunFolder, settings: Settings, world: World) -> dict[str, Any]:
    """Do whatever of the run is not done yet, and write summary.json.

    Every stage leaves its result in the run folder atomically, so this is also how a run is resumed. Of many
    ranks the first reads the images and writes what was found.

    Returns:
        the summary.

    Raises:
        Interrupted: a stop was asked for.
        UserError: the data or the machine does not allow the run.
    """
    if world.all_gather_object(run.summary.exists())[0]:
        summary: dict[str, Any] = read_json(run.summary)
        return summary
    method, began = method_of(settings), time.perf_counter()
    with world.together():
        catalog = build_catalog(run, settings, world) if world.rank == 0 else None
    if catalog is None:
        catalog = Catalog.load(run.path)
    check_enough(catalog, settings)
    ingested = time.perf_counter()
    settings = choose_backbone(settings, catalog, world)
    if method.cluster is not None:
        model, answers = cluster_untrained(settings, catalog, world)
        parts = None
    else:
        fitted = fit(settings, catalog, world)
        model, parts = fitted.setup.model, fitted.parts
        answers = answer_all(fitted, settings, world)
    if world.rank == 0:
        write_model(run, model, parts)
        _conclude(run, settings, catalog, answers, began, ingested)
    world.barrier()
    summary = read_json(run.summary)
    return summary


@contextmanager
def here(
    run: RunFolder,
    settings: Settings,
    on_progress: OnProgress | None = None,
    on_report: OnReport | None = None,
) -> Iterator[SoloWorld]:
    """This process as the world of ``run``; inside, Ctrl-C and SIGTERM ask it to stop at the next safe moment.

    Args:
        on_progress: told phase, done, total and a note.
        on_report: told each finished epoch's metrics.
    """
    world = SoloWorld(run, pick_device(settings.train.device), on_progress, on_report)
    with world.stopping_on_signals():
        yield world


def train_here(
    run: RunFolder,
    settings: Settings,
    on_progress: OnProgress | None = None,
    on_report: OnReport | None = None,
) -> dict[str, Any]:
    """Do whatever of the run is not done yet in this process, its report too. Errors and answer as `discover`."""
    with here(run, settings, on_progress, on_report) as world:
        summary = discover(run, settings, world)
        world.progress("report", 0, 1)
        make_report(run)
    return summary


def make_report(run: RunFolder) -> None:
    """The page of a run that is done."""
    from partgcd.report.build import build_report

    run.update(status="finished")  # a kill may have come between the summary and this
    build_report(run.path)


def _conclude(
    run: RunFolder, settings: Settings, catalog: Catalog, answers: Answers, began: float, ingested: float
) -> None:
    """Write what was found, its evaluation where there is a truth, and the summary of it all."""
    records = write_outputs(run, catalog, answers)
    evaluation = None
    if run.truth.exists():
        evaluation = evaluate_run(run, read_truth(run.truth))
    finished = time.perf_counter()
    sizes = {record.name: record.labelled + record.assigned for record in records}
    info = run.info()
    # Seconds of this process only: an interrupted run says so by its shorter times.
    summary = {
        "id": info["id"],
        "method": settings.discovery.method,
        "seed": settings.seed,
        "accuracy": evaluation,
        "classes": {
            "total": len(records),
            "old": len(catalog.label_names),
            "discovered": len(records) - len(catalog.label_names),
            "empty": sum(size == 0 for size in sizes.values()),
            "estimated": settings.discovery.classes == "auto",
            "estimate": info.get("class_estimate"),
            "sizes": sizes,
        },
        "parts": info.get("parts", {}).get("count"),
        "images": {
            "total": len(catalog),
            "labelled": int(catalog.labelled.sum()),
            "unlabelled": int((~catalog.labelled).sum()),
            "broken": len(catalog.broken),
            "duplicates": len(catalog.duplicates),
        },
        "seconds": {
            "total": round(finished - began, 2),
            "images": round(ingested - began, 2),
            "discovery": round(finished - ingested, 2),
            "epochs": round(sum(line["seconds"]["epoch"] for line in run.read_metrics()), 2),
        },
    }
    write_json(run.summary, summary)
    run.update(status="finished")


def build_catalog(run: RunFolder, settings: Settings, world: World) -> Catalog:
    """The run's catalog: read back if it was written, else scanned, decoded and written with its truth."""
    begun = Catalog.load(run.path) if (run.path / "catalog.parquet").exists() else None
    if begun is not None and run.store.exists():
        return begun
    listing, truth = listing_of(Task.from_record(run.info()), settings.seed)
    catalog = ingest(listing, run.store, settings.data, progress=stopping_ticker(world, "images"))
    if begun is not None:
        # The run came from a storage, which keeps no pixels.
        if catalog.digest() != begun.digest():
            raise UserError(
                f"the images in '{catalog.root}' are not those the run was begun with: bring them back, or begin "
                "a new run", 1,
            )  # fmt: skip
        return begun
    if truth:
        _write_truth(run, {path: truth[path] for path in catalog.paths if path in truth})
    catalog.save(run.path)
    return catalog


def check_enough(catalog: Catalog, settings: Settings) -> None:
    """Refuse catalogs that no setting could make sense of.

    Raises:
        UserError: nothing to discover in, or fewer images than parts need.
    """
    if len(catalog) < 2:
        raise UserError(f"{len(catalog)} readable image(s): categories need at least 2", 2)
    if catalog.labelled.all():
        raise UserError(
            "every image is labelled, so there is nothing to discover: add unlabelled images "
            "(a folder 'unlabelled', or empty labels), or use --protocol gcd to measure on labelled ones"
        )
    k = settings.parts.count_max if settings.parts.count == "auto" else settings.parts.count
    if method_of(settings).parts and len(catalog) < k:
        raise UserError(
            f"{len(catalog)} images are fewer than the {k} parts a class: add images, lower parts.count "
            "(or parts.count_max), or use --method simgcd"
        )


def _write_truth(run: RunFolder, truth: dict[str, str]) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"path": list(truth), "truth": list(truth.values())}), buffer)
    write_bytes(run.truth, buffer.getvalue().to_pybytes())
