"""A run against the truth. Nothing but this opens the truth, and only when it is asked to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from partgcd.cluster.metrics import purity, split_accuracy
from partgcd.config.errors import UserError
from partgcd.data.catalog import Catalog
from partgcd.disk.files import read_json, write_json
from partgcd.run.folder import RunFolder


def evaluate_run(run: RunFolder, truth: dict[str, str]) -> dict[str, Any]:
    """Accuracy of a finished run on its unlabelled images; written to evaluation.json.

    One Hungarian match over all unlabelled training images gives All, Old and New ("v2" of Vaze et al.);
    "v1" matches old and new images apart; "plain" counts old images that got their label's own name.

    Args:
        truth: path (as in the run's catalog) to true class name.

    Raises:
        UserError: the run is not finished, or the truth covers none of its unlabelled images.
    """
    if not run.predictions.exists():
        raise UserError(
            f"'{run.path}' has no predictions yet: finish it with partgcd train --resume '{run.path}'", 1
        )
    catalog = Catalog.load(run.path)
    rows = np.array(
        [r for r, path in enumerate(catalog.paths) if not catalog.labelled[r] and path in truth],
        dtype=np.int64,
    )
    if len(rows) == 0:
        raise UserError(
            f"the truth names none of the run's {int((~catalog.labelled).sum())} unlabelled images: "
            "paths must be as in catalog.parquet, relative to the data folder"
        )
    names = sorted({truth[catalog.paths[row]] for row in rows} - set(catalog.label_names))
    index = {name: i for i, name in enumerate([*catalog.label_names, *names])}
    true = np.array([index[truth[catalog.paths[row]]] for row in rows], dtype=np.int64)
    old = true < len(catalog.label_names)
    by_head = _heads(run, catalog, rows)
    heads = {head: split_accuracy(true, predicted, old) for head, predicted in by_head.items()}
    missing = int((~catalog.labelled).sum()) - len(rows)
    described = f"unlabelled training images (n={len(rows)}, {int(old.sum())} of old classes)"
    if missing:
        described += f"; {missing} unlabelled images have no truth"
    result: dict[str, Any] = {
        "set": described,
        **{key: heads["fused"][key] for key in ("v2", "v1", "plain", "nmi", "ari")},
        "heads": {head: found["v2"] for head, found in heads.items()},
        "curve": _curve(run, catalog, rows, true, old, truth),
        "true_classes": len(set(true.tolist()) | set(catalog.labels[catalog.labelled].tolist())),
    }
    write_json(run.evaluation, result)
    return result


def _heads(run: RunFolder, catalog: Catalog, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    table = pq.read_table(run.predictions).slice(0, len(catalog)).to_pydict()
    by_name = {record["name"]: record["index"] for record in read_json(run.classes)}
    columns = {"fused": "class_name", "global": "global_class", "part": "part_class"}
    return {
        head: np.array([by_name[table[column][row]] for row in rows], dtype=np.int64)
        for head, column in columns.items()
        if column in table
    }


def _curve(
    run: RunFolder,
    catalog: Catalog,
    rows: NDArray[np.int64],
    true: NDArray[np.int64],
    old: NDArray[np.bool_],
    truth: dict[str, str],
) -> list[dict[str, Any]]:
    """Class head's v2 accuracy and the purity of new classes' candidates, after every epoch."""
    everything = {name: i for i, name in enumerate(sorted(set(truth.values()) | set(catalog.label_names)))}
    full = np.array([everything.get(truth.get(path, ""), -1) for path in catalog.paths], dtype=np.int64)
    points = []
    for epoch, arrays in run.read_epochs():
        accuracy = split_accuracy(true, arrays["predicted"][rows].astype(np.int64), old)["v2"]
        candidates, classes = arrays["candidate_rows"].astype(np.int64), arrays["candidate_classes"]
        known = full[candidates] >= 0
        new = np.arange(int(classes.max(initial=0)) + 1) >= len(catalog.label_names)
        pure = purity(candidates[known], classes[known].astype(np.int64), full, new)
        points.append({"epoch": epoch, "purity": pure, **accuracy})
    return points
