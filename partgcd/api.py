"""The Python door: train, export, load and rediscover as the command line does, and scikit-learn's kind of estimators.

Everything here is a thin call of what the commands call; settings are the same tree, by dotted keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partgcd.cluster.metrics import split_accuracy
from partgcd.clustering import SemiSupervisedKMeans, estimate_classes
from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.continual.rediscover import rediscover as _rediscover
from partgcd.continual.request import Outcome, Request
from partgcd.discoverer import Discoverer
from partgcd.discovery.discover import train_here
from partgcd.discovery.task import Task
from partgcd.export.bundle import Bundle, refuse_existing
from partgcd.export.export import export_run
from partgcd.export.manifest import Precision
from partgcd.export.predictor import Predictor
from partgcd.methods.known import method_of
from partgcd.registry.serve import load_predictor
from partgcd.run.folder import RunFolder, claimed_run, find_run, is_there

__all__ = [
    "Discoverer",
    "SemiSupervisedKMeans",
    "estimate_classes",
    "export",
    "load",
    "rediscover",
    "split_accuracy",
    "train",
]

OnProgress = Callable[[str, int, int, str], None]


def train(
    data: Path | str,
    out: Path | str,
    settings: Mapping[str, object] | None = None,
    protocol: str | None = None,
    on_progress: OnProgress | None = None,
) -> RunFolder:
    """Find the categories in ``data``, old and new, as ``partgcd train`` does; an interrupted run goes on.

    Args:
        data: class folders plus an 'unlabelled' one, a flat folder, or a CSV or Parquet manifest.
        out: the run folder.
        settings: dotted keys of the settings tree, like {"discovery.classes": 12, "train.epochs": 8}.
        protocol: 'gcd' hides half of the labels of labelled folders, to measure.
        on_progress: told phase, done, total and a note.

    Returns:
        the finished run: predictions.csv, classes.json, report.html and more.

    Raises:
        UserError: the data or the settings do not allow the run, or ``out`` holds another one.
        Interrupted: Ctrl-C; the same call goes on.
    """
    resolved = load_settings(flags=dict(settings or {}))
    method_of(resolved)
    path, task = Path(out), Task(Path(data), protocol)
    task.check()
    with claimed_run(path):
        if is_there(path / "run.json") and RunFolder.open(path).settings() == resolved:
            run = RunFolder.open(path)
        else:
            run = RunFolder.create(path, resolved, task.data, task.request())
        try:
            train_here(run, resolved, on_progress)
        except UserError:
            run.refuse()
            raise
    return run


def export(
    run: RunFolder | Path | str,
    out: Path | str,
    precision: Precision = "fp32",
    with_images: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Bundle:
    """Write a finished run as a bundle: one ONNX graph with everything an answer needs, and a model card.

    Args:
        run: the run, its folder or its id.
        out: the bundle to write; must not exist.
        precision: 'int8' for CPUs and 'fp16' for GPUs are refused where they change more than 1% of the classes.
        with_images: put thumbnails of a few training images a class in.

    Raises:
        UserError: the run is not finished, or ``out`` is there.
    """
    refuse_existing(Path(out))
    found = run if isinstance(run, RunFolder) else RunFolder.open(find_run(str(run)))
    return export_run(found, Path(out), precision, with_images, on_progress or (lambda *_: None))


def load(path: Path | str, threads: int = 0) -> Discoverer | Predictor:
    """What lies in ``path``: a saved `Discoverer`, or the predictor of a bundle or of a registry's champion.

    Args:
        threads: of a predictor's graph; 0 takes the CPUs this process may use.

    Raises:
        UserError: nothing of these is there, or it is not what was written.
    """
    if Discoverer.is_saved(path):
        return Discoverer.load(path)
    return load_predictor(Path(path), threads)


def rediscover(
    registry: Path | str, new: Path | str, on_progress: OnProgress | None = None, **request: Any
) -> Outcome:
    """Look for new classes in new photos; those that people use keep their ids. As ``partgcd rediscover``.

    Args:
        registry: folder of a registry with a champion.
        new: folder of new photos.
        request: further fields of `partgcd.continual.rediscover.Request`, such as ``promote`` or ``labelled``.

    Raises:
        UserError: another rediscovery runs, or it can't be done.
        Interrupted: Ctrl-C; the same call goes on.
    """
    asked = Request(Path(registry), Path(new), **request)
    return _rediscover(asked, on_progress or (lambda phase, done, total, note: None))
