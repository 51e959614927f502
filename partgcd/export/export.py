"""From a finished run to a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from partgcd import __version__
from partgcd.config.errors import UserError
from partgcd.data.pixels import short_side
from partgcd.export import bundle as files
from partgcd.export.calibrate import Calibration, calibrate
from partgcd.export.card import model_card
from partgcd.export.exemplars import write_exemplars
from partgcd.export.graph import Graph, strip, to_onnx
from partgcd.export.graph_names import INPUT, OPSET, output_names
from partgcd.export.manifest import (
    BackboneEntry,
    ClassEntry,
    CostEntry,
    Exemplars,
    FusionEntry,
    GraphEntry,
    Manifest,
    NoveltyEntry,
    ParityEntry,
    Precision,
    Preprocessing,
    ProjectionEntry,
    Provenance,
)
from partgcd.export.novelty import FALSE_ALARM_RATE, FOLDS, RATIO_WEIGHT
from partgcd.export.parity import BATCHES, STORED, TOLERANCE, compare, draw_inputs, torch_answers
from partgcd.export.precision import COST_IMAGES, MOST_CHANGED, changed, same_share, to_fp16, to_int8
from partgcd.export.precision import TOLERANCE as LOW_TOLERANCE
from partgcd.export.session import open_session, run_all, runtime
from partgcd.export.source import Source, open_source
from partgcd.parts.mixture import sample_rows
from partgcd.run.files import read_json, write_bytes, write_text
from partgcd.run.folder import RunFolder

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Made:
    """The graph that goes into the bundle and what was found out about it."""

    data: bytes
    parity: ParityEntry
    cost: CostEntry | None
    threshold: float
    inputs: NDArray[np.uint8]
    answers: dict[str, NDArray[Any]]


def export_run(
    run: RunFolder,
    out: Path,
    precision: Precision = "fp32",
    with_images: bool = False,
    progress: Progress = lambda phase, done, total: None,
) -> files.Bundle:
    """Write a finished run as a bundle in ``out``, which must not exist, and verify it.

    Args:
        precision: 'int8' quantises weights for CPUs, 'fp16' halves the backbone for GPUs.
        with_images: puts thumbnails of the exemplars in; without it no image of the run is in the bundle.
        progress: called with (phase, done, total).

    Raises:
        UserError: the run is not finished or has no model, ``out`` exists, the graph does not answer as the model
            does, or lower precision changes more than a hundredth of the answers. Nothing is left behind.
    """
    files.refuse_existing(out)
    runtime()
    source = open_source(run)
    found = calibrate(source, progress)
    graph = Graph(source.model, source.parts, source.settings, found.scale)
    made = _make(source, found, graph, precision, progress)
    progress("writing", 0, 1)
    with files.building(out) as folder:
        write_bytes(folder / files.GRAPH, made.data)
        write_bytes(folder / files.WEIGHTS, _weights(source))
        projection = None
        if source.parts is not None:
            bank = source.parts.bank.to_tensors()
            space = source.parts.projection.to_tensors()
            named = bank | {f"projection.{name}": value for name, value in space.items()}
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


def _make(
    source: Source, found: Calibration, graph: Graph, precision: Precision, progress: Progress
) -> _Made:
    """Export, gate and, if asked for, lower the precision."""
    # Images whose two best classes are nearly one answer can't show whether two programs agree.
    sure = found.rows[np.argsort(-found.margin, kind="stable")][: max(STORED, int(0.9 * len(found.rows)))]
    chosen = sure[sample_rows(len(sure), 2 * STORED, source.settings.seed)]
    real = source.pixels(chosen)
    example = real[:2] if len(real) > 1 else np.repeat(real, 2, axis=0)
    progress("graph", 0, 1)
    model = to_onnx(graph, torch.from_numpy(example))
    progress("graph", 1, 1)
    inputs = draw_inputs(graph, source.settings.data.image_size, source.settings.seed)
    lower = {"int8": to_int8, "fp16": to_fp16}.get(precision)
    lowered = lower(model) if lower is not None else b""
    data = strip(model).SerializeToString()
    session = open_session(data, provider="cpu")
    progress("parity", 0, 1)
    worst = compare(session, real, torch_answers(graph, real), TOLERANCE)
    answers = torch_answers(graph, inputs)
    worst = max(worst, compare(session, inputs, answers, TOLERANCE))
    progress("parity", 1, 1)
    parity = ParityEntry(
        images=len(real), batches=list(BATCHES), largest_difference=worst, tolerance=TOLERANCE
    )
    if lower is None:
        return _Made(data, parity, None, found.threshold, inputs, answers)
    return _lowered(source, found, precision, lowered, session, parity, inputs, progress)


def _lowered(
    source: Source,
    found: Calibration,
    precision: Precision,
    lowered: bytes,
    session: Any,
    parity: ParityEntry,
    inputs: NDArray[np.uint8],
    progress: Progress,
) -> _Made:
    """The graph of lower precision, if it answers nearly as the fp32 graph in ``session`` does."""
    import onnx

    lowered = strip(onnx.load_model_from_string(lowered)).SerializeToString()
    other = open_session(lowered, provider="cpu")
    rows = found.rows[sample_rows(len(found.rows), COST_IMAGES, source.settings.seed)]
    before: dict[str, list[NDArray[Any]]] = {"fused": [], "novelty": []}
    after: dict[str, list[NDArray[Any]]] = {"fused": [], "novelty": []}
    for start in range(0, len(rows), 32):
        progress(f"cost of {precision}", start, len(rows))
        pixels = source.pixels(rows[start : start + 32])
        for kept, answers in ((before, run_all(session, pixels)), (after, run_all(other, pixels))):
            for name, values in kept.items():
                values.append(answers[name])
    progress(f"cost of {precision}", len(rows), len(rows))
    first = {name: np.concatenate(values) for name, values in before.items()}
    second = {name: np.concatenate(values) for name, values in after.items()}
    share = changed(first, second)
    if not share <= MOST_CHANGED:
        raise UserError(
            f"{precision} changes the class of {100 * share:.1f}% of {len(rows)} images of the run, "
            f"{100 * MOST_CHANGED:.0f}% is allowed: export without --{precision}",
            1,
        )
    cost = CostEntry(
        images=len(rows),
        changed=share,
        largest_difference=float(np.abs(first["fused"] - second["fused"]).max()),
    )
    answers = run_all(other, inputs)
    compare(other, inputs, answers, LOW_TOLERANCE)  # in every batch size, as it will be checked
    return _Made(
        lowered,
        parity.model_copy(update={"tolerance": LOW_TOLERANCE}),
        cost,
        same_share(found.threshold, first["novelty"], second["novelty"]),
        inputs,
        answers,
    )


def _weights(source: Source) -> bytes:
    """Everything that training changed, by the model's own names."""
    tensors = load_file(source.run.model)
    return save_tensors(
        {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )


def _manifest(
    source: Source,
    found: Calibration,
    made: _Made,
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
        method="partgcd" if source.parts is not None else "simgcd",
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
