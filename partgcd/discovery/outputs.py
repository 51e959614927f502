"""What a finished run says: features, classes, predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from safetensors.torch import save as save_tensors
from torch import Tensor

from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.cells import path_cell, text_cell
from partgcd.discovery.class_records import ClassRecord, describe_classes
from partgcd.discovery.fit import Fitted
from partgcd.discovery.predict import PartModel, predict
from partgcd.discovery.refresh import over_images
from partgcd.disk.files import read_json, write_bytes, write_csv, write_json
from partgcd.model.module import DiscoveryModel
from partgcd.run.folder import RunFolder
from partgcd.run.world import World


@dataclass(frozen=True)
class Answers:
    """Answers for all N images of a catalog.

    Attributes:
        overall, part, fused: [N, C] probabilities; part is None without parts.
        cls, feature: [N, D] class token and part-enhanced feature; feature is None without parts.
        attention: [N, P] class attention, None for methods that have none.
        maps: [N, P, K] part attention maps, None without parts.
        grid: rows and columns of the P patches.
        prototypes: [C, D].
    """

    overall: NDArray[np.float32]
    part: NDArray[np.float32] | None
    fused: NDArray[np.float32]
    cls: NDArray[np.float32]
    feature: NDArray[np.float32] | None
    attention: NDArray[np.float32] | None
    maps: NDArray[np.float16] | None
    grid: tuple[int, int]
    prototypes: NDArray[np.float32]


@torch.no_grad()
def answer_all(fitted: Fitted, settings: Settings, world: World) -> Answers:
    """The predictor's answer for the evaluation view of every image."""
    setup, parts = fitted.setup, fitted.parts
    names: list[str] = []

    def one(tokens: Tensor) -> tuple[Tensor, ...]:
        with setup.autocast():
            found = predict(setup.model, parts, tokens, settings.parts, settings.discovery)
        given = {name: value.float() for name, value in found._asdict().items() if value is not None}
        if "maps" in given:
            given["maps"] = given["maps"].half()
        names[:] = given
        return tuple(given.values())

    def tick(done: int, total: int) -> None:
        world.progress("predicting", done, total)

    answers = over_images(one, setup.look(world)._replace(tick=tick))
    joined = {name: value.cpu().numpy() for name, value in zip(names, answers, strict=True)}
    return Answers(
        joined["overall"], joined.get("part"), joined["fused"], joined["cls"], joined.get("feature"),
        joined["attention"], joined.get("maps"), setup.model.backbone.info.grid,
        setup.model.prototypes.unit().detach().float().cpu().numpy(),
    )  # fmt: skip


def write_outputs(
    run: RunFolder, catalog: Catalog, answers: Answers, records: list[ClassRecord] | None = None
) -> list[ClassRecord]:
    """Write features, classes.json and predictions (.parquet and .csv); each file atomically.

    ``records`` are the classes where training went on from known ones; otherwise they are described here.
    """
    predicted = answers.fused.argmax(axis=1).astype(np.int64)
    if records is None:
        records = describe_classes(
            str(run.info()["id"]), catalog.label_names, answers.prototypes, catalog.labels, predicted
        )
    _write_features(run, answers)
    write_json(run.classes, [record.as_json() for record in records])
    _write_predictions(run, catalog, answers, records, predicted)
    return records


def write_model(run: RunFolder, model: DiscoveryModel, parts: PartModel | None) -> None:
    """Write model.safetensors: what `predict` needs beside the frozen weights, as the answers were made with it.

    ``model.*`` is all that training changed; ``bank.*`` and ``projection.*`` are there with parts. The bank is
    the one fitted after the last epoch, which no checkpoint holds.
    """
    tensors = {f"model.{name}": value for name, value in model.trainable_state().items()}
    if parts is not None:
        tensors |= {f"bank.{name}": value for name, value in parts.bank.to_tensors().items()}
        tensors |= {f"projection.{name}": value for name, value in parts.projection.to_tensors().items()}
    write_bytes(run.model, save_tensors({name: value.cpu().contiguous() for name, value in tensors.items()}))


def _write_features(run: RunFolder, answers: Answers) -> None:
    arrays = {"cls": answers.cls.astype(np.float16), "grid": np.array(answers.grid, dtype=np.int64)}
    if answers.attention is not None:
        arrays["attention"] = answers.attention.astype(np.float16)
    if answers.feature is not None:
        arrays["part"] = answers.feature.astype(np.float16)
    if answers.maps is not None:
        arrays["maps"] = answers.maps
    write_bytes(run.features, save({name: np.ascontiguousarray(value) for name, value in arrays.items()}))


def _write_predictions(
    run: RunFolder,
    catalog: Catalog,
    answers: Answers,
    records: list[ClassRecord],
    predicted: NDArray[np.int64],
) -> None:
    """A row an image, and one for each duplicate of it. A labelled image keeps its label as its class."""
    final = np.where(catalog.labels >= 0, catalog.labels, predicted)
    rows = np.arange(len(catalog))
    top = np.sort(answers.fused, axis=1)[:, ::-1]
    row_of = {path: row for row, path in enumerate(catalog.paths)}
    listed = list(zip(catalog.paths, rows.tolist(), strict=True))
    listed += [(copy.path, row_of[copy.same_as]) for copy in catalog.duplicates if copy.same_as in row_of]
    index = np.array([row for _, row in listed], dtype=np.int64)
    names = [record.name for record in records]
    columns: dict[str, list[object]] = {
        "path": [path for path, _ in listed],
        "key": [f"{int(catalog.keys[row]):016x}" for row in index],
        "label": [catalog.label_names[label] if label >= 0 else None for label in catalog.labels[index]],
        "class_id": [records[c].id for c in final[index]],
        "class_name": [names[c] for c in final[index]],
        "kind": [records[c].kind for c in final[index]],
        "confidence": _rounded(answers.fused[index, final[index]]),
        "global_class": [names[c] for c in answers.overall.argmax(axis=1)[index]],
        "global_confidence": _rounded(answers.overall.max(axis=1)[index]),
    }
    if answers.part is not None:
        columns["part_class"] = [names[c] for c in answers.part.argmax(axis=1)[index]]
        columns["part_confidence"] = _rounded(answers.part.max(axis=1)[index])
    columns["margin"] = _rounded((top[:, 0] - top[:, 1])[index])
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer)
    write_bytes(run.predictions, buffer.getvalue().to_pybytes())
    table = [
        (path_cell(str(path)), *map(text_cell, cells)) for path, *cells in zip(*columns.values(), strict=True)
    ]
    write_csv(run.predictions.with_suffix(".csv"), list(columns), table)


def predicted_classes(run: RunFolder, images: int) -> NDArray[np.int64]:
    """Class index of each of a finished run's ``images`` images, from its predictions."""
    by_id = {record["id"]: int(record["index"]) for record in read_json(run.classes)}
    ids = pq.read_table(run.predictions, columns=["class_id"])["class_id"].to_pylist()[:images]
    return np.array([by_id[name] for name in ids], dtype=np.int64)


def _rounded(values: NDArray[np.float32]) -> list[object]:
    return [round(float(value), 5) for value in values]
