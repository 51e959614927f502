"""Novelty of a bundle on photographs that training never saw: false alarms, and how well unseen classes are told.

Of each data set some classes are known: 70% of their images make a run (of half of those classes half the images
labelled), 30% are held out. Other classes are never shown. The run is exported, and its bundle answers the held-out
images (each one called novel is a false alarm; 5% are stated) and those of unseen classes. The area under the ROC
curve is that of the novelty score, beside that of the largest probability alone. Every set is one entry of the
result file; sets that are in it are not run again.

    python benchmarks/novelty.py PHOTOS [--sets cub100:40:30 ...] [--seed 2] [--epochs 10] [--work DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import random
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from partgcd.config.tree import Settings
from partgcd.data.scan import scan
from partgcd.discovery.discover import discover
from partgcd.discovery.task import Task
from partgcd.disk.files import write_json
from partgcd.export.export import export_run
from partgcd.export.predictor import Failure, Predictor
from partgcd.run.device import pick_device
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

_TRAINED = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="folder of data sets")
    parser.add_argument(
        "--sets",
        nargs="+",
        default=["grocery:30:20", "cub100:40:20"],
        help="NAME:KNOWN CLASSES:UNSEEN CLASSES",
    )
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--backbone", default="offline/vit-small")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("novelty-work"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/novelty.json"))
    args = parser.parse_args()
    results: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    for each in args.sets:
        name, known, unseen = each.split(":")
        asked = {
            "set": name, "known": int(known), "unseen": int(unseen), "seed": args.seed, "epochs": args.epochs,
            "backbone": args.backbone,
        }  # fmt: skip
        if any(asked.items() <= found.items() for found in results):
            print(f"{each}: in {args.out}")
            continue
        folder = args.work / f"{name}-{args.seed}"
        results.append(asked | _measure(args.photos / name, folder, asked, args.threads))
        write_json(args.out, results)
        print(json.dumps(results[-1]))


def _measure(data: Path, folder: Path, asked: dict[str, Any], threads: int) -> dict[str, Any]:
    manifest, held, strangers = _deal(data, folder, asked)
    settings = Settings.model_validate({
        "seed": asked["seed"],
        "discovery": {"classes": asked["known"]},
        "backbone": {"name": asked["backbone"]},
        "data": {"image_size": 154},
        "train": {"epochs": asked["epochs"], "view_pool": 2, "threads": threads},
    })  # fmt: skip
    path = folder / "run"
    run = (
        RunFolder.open(path)
        if (path / "run.json").exists()
        else RunFolder.create(path, settings, manifest, Task(manifest).request())
    )
    with run.claimed():
        summary = discover(run, settings, SoloWorld(run, pick_device("auto"), _say))
    if not (folder / "bundle").exists():
        export_run(run, folder / "bundle", progress=_say)
    predictor = Predictor.load(folder / "bundle", threads)
    familiar, strange = _ask(predictor, held, "held out"), _ask(predictor, strangers, "unseen")
    novel = np.r_[np.zeros(len(familiar)), np.ones(len(strange))]
    scores = np.r_[familiar, strange]
    return {
        "images": {"held_out": len(familiar), "unseen_classes": len(strange)},
        "stated": predictor.manifest.novelty.false_alarm_rate,
        "false_alarms": round(float(familiar[:, 2].mean()), 4),
        "standard_error": round(float(familiar[:, 2].std() / np.sqrt(len(familiar))), 4),
        "detected": round(float(strange[:, 2].mean()), 4),
        "auroc": round(float(roc_auc_score(novel, scores[:, 0])), 4),
        "auroc_of_largest_probability": round(float(roc_auc_score(novel, scores[:, 1])), 4),
        "run_accuracy": summary["accuracy"]["v2"] if summary["accuracy"] else None,
        "machine": platform.processor() or platform.machine(),
    }


def _deal(data: Path, folder: Path, asked: dict[str, Any]) -> tuple[Path, list[Path], list[Path]]:
    """Write the run's manifest; the images held out of it, and those of unseen classes."""
    by_class: dict[str, list[Path]] = {}
    for entry in scan(data).entries:
        by_class.setdefault(str(entry.label), []).append(data / entry.path)
    draw = random.Random(asked["seed"])
    classes = draw.sample(sorted(by_class), asked["known"] + asked["unseen"])
    rows, held = [], []
    for number, name in enumerate(classes[: asked["known"]]):
        files = draw.sample(sorted(by_class[name]), len(by_class[name]))
        kept = int(_TRAINED * len(files))
        for place, file in enumerate(files[:kept]):
            labelled = number < asked["known"] // 2 and place < kept // 2
            rows.append((file.resolve(), name if labelled else "", name))
        held += files[kept:]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "set.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "label", "truth"), *rows])
    return folder / "set.csv", held, [file for name in classes[asked["known"] :] for file in by_class[name]]


def _ask(predictor: Predictor, files: list[Path], what: str) -> np.ndarray[Any, Any]:
    """Novelty score, minus the largest probability, and whether it is called novel, [N, 3]."""
    found = []
    for start in range(0, len(files), 8):
        _say(what, start, len(files))
        found += [
            (answer.novelty, -answer.best.probability, answer.novel)
            for answer in predictor.classify(files[start : start + 8])
            if not isinstance(answer, Failure)
        ]
    return np.array(found, dtype=np.float64)


def _say(phase: str, done: int, total: int, note: str = "") -> None:
    print(f"\r{phase} {done}/{total} {note}", end="\n" if done >= total else "", flush=True)


if __name__ == "__main__":
    main()
