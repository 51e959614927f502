"""Writes run folders as a finished run leaves them, so that the report can be tested without training."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from partgcd.config.tree import Settings


def write_run(
    folder: Path,
    names: list[str],
    old: int,
    paths: list[list[str]],
    labelled: int = 2,
    features: NDArray[np.float32] | None = None,
    attention: NDArray[np.float32] | None = None,
    maps: NDArray[np.float32] | None = None,
    full: bool = True,
) -> Path:
    """A run over ``paths[c]`` for every class c; the first ``old`` of ``names`` are old, the rest discovered.

    The catalog is ordered as ``paths`` flattened. Only what every run has is written when not ``full``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    flat = [path for group in paths for path in group]
    classes = [c for c, group in enumerate(paths) for _ in group]
    ids = [f"c-{0x1F0A9B3C5D + 7919 * c:010x}" for c in range(len(names))]
    kinds = ["old" if c < old else "discovered" for c in range(len(names))]
    position = [i for group in paths for i in range(len(group))]
    label = [names[c] if c < old and i < labelled else None for c, i in zip(classes, position, strict=True)]
    catalog = pa.table(
        {
            "path": flat,
            "key": pa.array(range(len(flat)), pa.uint64()),
            "label": pa.array(label, pa.string()),
            "width": pa.array([300] * len(flat), pa.int32()),
            "height": pa.array([200] * len(flat), pa.int32()),
        }
    )
    notes = ["2 files are not images and were passed over"] if full else []
    pq.write_table(
        catalog.replace_schema_metadata({"partgcd": json.dumps({"notes": notes})}), folder / "catalog.parquet"
    )
    confidence = np.clip(rng.beta(6, 2, len(flat)), 0.2, 1.0)
    columns: dict[str, Any] = {
        "path": flat,
        "key": pa.array(range(len(flat)), pa.uint64()),
        "label": pa.array(label, pa.string()),
        "class_id": [ids[c] for c in classes],
        "class_name": [names[c] for c in classes],
        "kind": [kinds[c] for c in classes],
        "confidence": pa.array(confidence, pa.float32()),
        "margin": pa.array(np.clip(confidence - rng.uniform(0.1, 0.4, len(flat)), 0, 1), pa.float32()),
    }
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    entries = []
    for c, name in enumerate(names):
        near = [
            (k, round(0.82 - 0.07 * j, 3)) for j, k in enumerate(k for k in range(old) if k != c) if j < 3
        ]
        entries.append(
            {
                "index": c,
                "id": ids[c],
                "name": name,
                "kind": kinds[c],
                "labelled": sum(text is not None for text, k in zip(label, classes, strict=True) if k == c),
                "assigned": len(paths[c]),
                "nearest": [{"id": ids[k], "name": names[k], "cosine": cosine} for k, cosine in near],
            }
        )
    (folder / "classes.json").write_text(json.dumps(entries))
    run = {
        "id": "r-20260301-calm-otter",
        "created": "2026-03-01T09:12:44+00:00",
        "status": "finished",
        "partgcd": "0.1.0",
        "seed": 0,
        "data": "photos",
        "command": ["partgcd", "discover", "photos", "--classes", "16"],
        "versions": {"python": "3.11.9", "torch": "2.9.1", "timm": "1.0.24"},
        "backbone": {
            "name": "offline/vit-small",
            "lineage": "ViT-S/16 trained on ImageNet-21k with labels, then distilled",
            "licence": "Apache-2.0",
        },
        "device": "cpu",
        "precision": "fp32",
        "threads": 2,
    }
    (folder / "run.json").write_text(json.dumps(run))
    if not full:
        return folder
    (folder / "config.yaml").write_text(yaml.safe_dump(Settings().model_dump(mode="json"), sort_keys=False))
    _write_curves(folder, rng)
    for file, header, rows in (
        (
            "quarantine.csv",
            ("path", "reason"),
            [
                ("Melon/cut\nshort.jpg", "image file is truncated"),
                ("<script>alert(1)</script>.png", "not an image"),
                ("Pear/zero.jpg", "the file is empty"),
            ],
        ),
        ("duplicates.csv", ("path", "same_as"), [("Melon/copy of 12.jpg", "Melon/12.jpg")]),
    ):
        with (folder / file).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *rows])
    sizes = {ids[c]: len(paths[c]) for c in range(len(names))}
    summary = {
        "id": run["id"],
        "accuracy": None,
        "classes": {
            "total": len(names),
            "old": old,
            "discovered": len(names) - old,
            "estimated": True,
            "sizes": sizes,
        },
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    tensors: dict[str, NDArray[Any]] = {}
    if features is not None:
        tensors["cls"] = features.astype(np.float16)
    if attention is not None:
        tensors["attention"] = attention.astype(np.float16)
    if maps is not None:
        side = round(maps.shape[1] ** 0.5)
        tensors |= {"maps": maps.astype(np.float16), "grid": np.array([side, side], np.int64)}
    if tensors:
        save_file(tensors, folder / "features.safetensors")
    return folder


def _write_curves(folder: Path, rng: np.random.Generator) -> None:
    lines = []
    for epoch in range(1, 21):
        fall = float(np.exp(-epoch / 7))
        noise = rng.normal(0, 0.02, 7)
        loss = {
            "cls_supervised": 0.2 + 2.2 * fall + noise[0],
            "cls_unsupervised": 0.9 + 1.5 * fall + noise[1],
            "mean_entropy": -2.6 + 0.5 * fall + noise[2],
            "rep_supervised": 1.1 + 1.9 * fall + noise[3],
            "rep_unsupervised": 1.8 + 1.6 * fall + noise[4],
            "part_cls_supervised": 0.5 + 2.4 * fall + noise[5],
            "pdr": 0.4 + 1.1 * fall + noise[6],
        }
        lines.append(
            {
                "epoch": epoch,
                "lr": 0.03,
                "loss": {"total": sum(loss.values()), **loss},
                "seconds": {"refresh": 1.2, "steps": 8.0, "epoch": 9.4},
                "images_per_second": 110.0,
                "changed": 0.4 * fall + 0.01,
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = [
        {"epoch": e, "purity": 0.72 - 0.35 * np.exp(-e / 6), "all": 0.69 - 0.4 * np.exp(-e / 5)}
        for e in range(1, 21)
    ]
    evaluation = {
        "set": "all unlabelled training images (392)",
        "v2": {"all": 0.684, "old": 0.853, "new": 0.601},
        "v1": {"all": 0.701, "old": 0.861, "new": 0.624},
        "plain": 0.71,
        "nmi": 0.74,
        "ari": 0.58,
        "heads": {
            "fused": {"all": 0.684, "old": 0.853, "new": 0.601},
            "global": {"all": 0.668, "old": 0.861, "new": 0.573},
            "part": {"all": 0.651, "old": 0.802, "new": 0.577},
        },
        "curve": curve,
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation))


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return write_run


@pytest.fixture
def colours() -> Callable[[list[int]], NDArray[np.uint8]]:
    """Pixels of any row: a soft gradient whose hue depends on the row, 64 pixels a side."""

    def pixels(rows: list[int]) -> NDArray[np.uint8]:
        ramp = np.linspace(0, 255, 64)
        channels = [np.add.outer(ramp * (0.2 + 0.1 * shift), ramp * 0.5) for shift in range(3)]
        return np.stack(
            [np.stack([(channel + 17 * row) % 256 for channel in channels]) for row in rows]
        ).astype(np.uint8)

    return pixels


@pytest.fixture
def unmapped_run(full_run: Path) -> Path:
    """``full_run`` without features: no map, which is what takes long."""
    (full_run / "features.safetensors").unlink()
    return full_run


@pytest.fixture
def full_run(tmp_path: Path) -> Path:
    """3 named and 3 discovered categories, 90 images, features and maps of 4 parts on a 4 x 4 grid."""
    rng = np.random.default_rng(1)
    names = ["Anjou", "Kaiser", "Royal Gala", "group 4", "group 5", "group 6"]
    paths = [[f"{name}/photo {i:02d}.jpg" for i in range(15)] for name in names]
    features = rng.normal(size=(90, 24)) + np.repeat(rng.normal(size=(6, 24)) * 3, 15, axis=0)
    maps = rng.dirichlet(np.ones(4), size=(90, 16))
    attention = rng.dirichlet(np.ones(16), size=90)
    return write_run(tmp_path / "run", names, 3, paths, 4, features, attention, maps)
