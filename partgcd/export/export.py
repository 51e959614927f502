"""From a finished run to a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from partgcd import __version__
from partgcd.backbone.load import Backbone
from partgcd.data.pixels import short_side
from partgcd.disk.files import read_json, write_bytes, write_text
from partgcd.export import bundle as files
from partgcd.export.calibrate import Calibration, calibrate
from partgcd.export.card import model_card
from partgcd.export.exemplars import write_exemplars
from partgcd.export.gates import MadeGraph, make_graph
from partgcd.export.graph import Graph
from partgcd.export.graph_names import INPUT, OPSET, output_names
from partgcd.export.manifest import (
    BackboneEntry,
    ClassEntry,
    Exemplars,
    FusionEntry,
    GraphEntry,
    Manifest,
    NoveltyEntry,
    Precision,
    Preprocessing,
    ProjectionEntry,
    Provenance,
)
from partgcd.export.novelty import FALSE_ALARM_RATE, FOLDS, RATIO_WEIGHT
from partgcd.export.session import runtime
from partgcd.export.source import Source, open_source
from partgcd.run.folder import RunFolder

Progress = Callable[[str, int, int], None]


def export_run(
    run: RunFolder,
    out: Path,
    precision: Precision = "fp32",
    with_images: bool = False,
    progress: Progress = lambda phase, done, total: None,
    loaded: Backbone | None = None,
) -> files.Bundle:
    """Write a finished run as a bundle in ``out``, which must not exist, and verify it.

    Args:
        precision: 'int8' quantises weights for CPUs, 'fp16' halves the backbone for GPUs.
        with_images: puts thumbnails of the exemplars in; without it no image of the run is in the bundle.
        progress: called with (phase, done, total).
        loaded: the run's backbone on the CPU, where it is at hand.

    Raises:
        UserError: the run is not finished or has no model, ``out`` exists, the graph does not answer as the model
            does, or lower precision changes more than a hundredth of the answers. Nothing is left behind.
    """
    with files.building(out) as folder:  # first: of two that write there one is told before any work
        runtime()
        source = open_source(run, loaded)
        found = calibrate(source, progress)
        graph = Graph(source.model, source.parts, source.settings, found.scale)
        made = make_graph(source, found, graph, precision, progress)
        progress("writing", 0, 1)
        write_bytes(folder / files.GRAPH, made.data)
        write_bytes(folder / files.WEIGHTS, _weights(source))
        projection = None
        if source.parts is not None:
            bank = source.parts.bank.to_tensors()
            space = source.parts.projection.to_tensors()
            named = bank | {f"projection.{name}": value for name, value in space.items()}
            if found.scale is not None:
                named |= {f"novelty.{name}": value for name, value in found.scale._asdict().items()}
            write_bytes(folder / files.BANK, save_tensors(named))
            projection = ProjectionEntry(
                dims=source.parts.projection.dims, sha256=_digest(list(space.values()))
            )
        per_class = write_exemplars(folder, source, with_images)
        stored = {INPUT: made.inputs, **{f"expected.{name}": value for name, value in made.answers.items()}}
        write_bytes(
            folder / files.PARITY,
            save_arrays({name: np.ascontiguousarray(value) for name, value in stored.items()}),
        )
        manifest = _manifest(
            source, found, made, precision, projection, Exemplars(per_class=per_class, thumbnails=with_images)
        )
        write_text(folder / files.CARD, model_card(manifest))
        manifest = manifest.model_copy(update={"files": files.list_files(folder)})
        files.write_manifest(folder, manifest)
        written = files.open_bundle(folder)
    progress("writing", 1, 1)
    return replace(written, path=out)


def _weights(source: Source) -> bytes:
    """Everything that training changed, by the model's own names."""
    tensors = load_file(source.run.model)
    return save_tensors(
        {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )


def _manifest(
    source: Source,
    found: Calibration,
    made: MadeGraph,
    precision: Precision,
    projection: ProjectionEntry | None,
    exemplars: Exemplars,
) -> Manifest:
    settings, info, record = source.settings, source.model.backbone.info, source.info
    catalog, data = source.catalog, source.settings.data
    file = settings.backbone.weights
    # A weights file is named, its place on this machine is nobody's business.
    shared = settings.model_copy(
        update={"backbone": settings.backbone.model_copy(
            update={"name": info.name, "weights": Path(file.name) if file else None})}
    )  # fmt: skip
    return Manifest(
        format="partgcd bundle",
        schema_version=1,
        method=settings.discovery.method,
        backbone=BackboneEntry(
            name=info.name, kind=info.kind, grid=info.grid, dim=info.dim, trunk_dim=info.trunk_dim,
            weights=info.weights_digest, licence=info.licence, lineage=info.lineage,
        ),
        preprocessing=Preprocessing(
            image_size=data.image_size, crop_ratio=data.crop_ratio, short_side=short_side(data),
            max_aspect=data.max_aspect, max_megapixels=data.max_megapixels, mean=info.mean, std=info.std,
        ),
        classes=[
            ClassEntry(**{name: each[name] for name in ClassEntry.model_fields}) for each in source.classes
        ],
        parts=source.parts.bank.log_pi.shape[1] if source.parts is not None else None,
        projection=projection,
        fusion=FusionEntry(
            temperature=settings.discovery.fusion_temperature, part_weight=settings.discovery.fusion_part_weight
        ),
        novelty=NoveltyEntry(
            threshold=made.threshold, false_alarm_rate=FALSE_ALARM_RATE, calibration_images=found.unlabelled,
            ratio_weight=RATIO_WEIGHT if source.parts is not None else 0.0,
            folds=FOLDS if source.parts is not None else 0,
        ),
        graph=GraphEntry(
            precision=precision, opset=OPSET, input=INPUT, outputs=list(output_names(source.parts is not None))
        ),
        parity=made.parity,
        cost=made.cost,
        agreement=found.agreement,
        accuracy=_accuracy(source),
        exemplars=exemplars,
        provenance=Provenance(
            run=str(record["id"]), created=str(record["created"]),
            exported=datetime.now(UTC).isoformat(timespec="seconds"), partgcd=__version__, git=record.get("git"),
            versions=record["versions"], seed=settings.seed, data=catalog.digest(),
            images={"total": len(catalog), "labelled": int(catalog.labelled.sum()),
                    "unlabelled": int((~catalog.labelled).sum())},
        ),
        settings=shared,
        files={},
    )  # fmt: skip


def _accuracy(source: Source) -> dict[str, Any] | None:
    """The run's evaluation without its curve."""
    if not source.run.evaluation.exists():
        return None
    found: dict[str, Any] = read_json(source.run.evaluation)
    return {
        name: found[name] for name in ("set", "v2", "v1", "plain", "nmi", "ari", "heads") if name in found
    }


def _digest(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(each.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
