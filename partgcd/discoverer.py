"""`Discoverer`: the whole job on photos, or on embeddings, in scikit-learn's conventions."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from partgcd.cluster.class_count import estimate_classes
from partgcd.cluster.semi_kmeans import semi_kmeans
from partgcd.clustering import as_names, class_names, clusters_for, label_codes, seed_of, unit_rows
from partgcd.config.errors import UserError
from partgcd.disk.files import read_json, write_bytes, write_csv, write_json

_SAVED = "discoverer.json"
_CENTRES = "centres.safetensors"
_TEMPERATURE = 0.1
"""tau_s, of the softmax that grades how sure an answer on embeddings is."""
_BATCH = 32


class Discoverer(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Finds the categories nobody labelled, in photos (with parts) or in ready embeddings (without).

    Args:
        classes: number of categories, old and new together, or 'auto'.
        backbone: timm name or offline/...; 'auto' picks by device. Unused for embeddings.
        random_state: seed; two fits with one seed, photos and machine are equal.
        method: as ``discovery.method``; embeddings are clustered by semi-supervised k-means whatever it says.
        settings: further dotted keys of the settings tree, like {"train.epochs": 8}.
        out: folder that keeps the run, in which an interrupted fit goes on; None keeps it in a temporary one, as long
            as this object lives.
        verbose: say on stderr how far a fit of photos is.

    Attributes:
        labels_: [N] category of each image; old ones are called as in ``y``, discovered ones by numbers where ``y``
            has numbers, else by names. An image that could not be read is -1 (None among names).
        classes_: [C] all categories, labelled ones first.
        paths_: the N images, where photos were fitted.
        run_: the run's folder, where photos were fitted.

    >>> import numpy as np
    >>> X = np.repeat(np.eye(4), 10, axis=0) + 0.05 * np.random.default_rng(0).normal(size=(40, 4))
    >>> found = Discoverer(classes=4).fit(X, [0] * 5 + [-1] * 5 + [1] * 5 + [-1] * 25)
    >>> len(set(found.labels_.tolist())), found.predict_proba(X).shape
    (4, (40, 4))
    """

    def __init__(
        self,
        classes: int | str = "auto",
        backbone: str = "auto",
        random_state: Any = 0,
        method: str = "partgcd",
        settings: dict[str, object] | None = None,
        out: Path | str | None = None,
        verbose: bool = False,
    ) -> None:
        self.classes = classes
        self.backbone = backbone
        self.random_state = random_state
        self.method = method
        self.settings = settings
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the categories.

        Args:
            X: a folder or manifest as ``partgcd train --data`` takes it (its labels are in it), a list of image
                files, images [N, H, W, 3] uint8, or embeddings [N, D].
            y: [N] labels of the latter three.

        Raises:
            UserError: the photos do not allow it; the line says what to do.
            ValueError: X and y do not belong together.
        """
        for name in ("run_", "paths_", "cluster_centers_", "_scratch", "_model"):
            self.__dict__.pop(name, None)
        if _is_photos(X):
            return self._fit_photos(X, y)
        points = unit_rows(validate_data(self, X, dtype=np.float32, ensure_min_samples=2))
        names, codes = label_codes(y, len(points))
        seed = seed_of(self.random_state)
        if self.classes == "auto":
            classes = (
                estimate_classes(points, codes, len(names), 1000, seed).classes if len(points) >= 8 else 2
            )
        elif max(len(names), 1) <= int(self.classes) <= len(points):
            classes = int(self.classes)
        else:
            raise ValueError(
                f"classes={self.classes} does not fit n_samples={len(points)} rows with {len(names)} labels"
            )
        classes = clusters_for(codes, len(names), min(classes, len(points)))
        self.cluster_centers_, codes = semi_kmeans(points, codes, len(names), classes, seed, 10, 200)
        self.classes_ = class_names(names, classes)
        self.labels_ = self.classes_[codes]
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The category of each image or row of X, as in ``classes_``: [N]."""
        probabilities = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities [N, C] over ``classes_``; photos get the fused answer of the whole and the parts.

        Raises:
            UserError: a photo can't be read.
            ValueError: X is not of the kind that was fitted.
        """
        check_is_fitted(self)
        if hasattr(self, "run_"):
            return self._answers(X)["fused"]
        cosine = self.transform(X) @ self.cluster_centers_.T / _TEMPERATURE
        shares = np.exp(cosine - cosine.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Features [N, D] of unit norm: class tokens of photos, or the rows of X themselves."""
        check_is_fitted(self)
        if hasattr(self, "run_"):
            return unit_rows(self._answers(X)["cls"])
        return unit_rows(validate_data(self, X, dtype=np.float32, reset=False))

    def parts(self, X: Any) -> NDArray[np.float32]:
        """Part attention maps [N, rows, columns, K] of photos: each patch's shares of the K parts.

        Raises:
            ValueError: embeddings were fitted, or the method has no parts.
        """
        check_is_fitted(self)
        maps = self._answers(X).get("maps") if hasattr(self, "run_") else None
        if maps is None:
            raise ValueError("there are no parts: they are of photos, fitted by a method with parts")
        rows, columns = self._source().model.backbone.info.grid
        return maps.reshape(len(maps), rows, columns, -1)

    def report(self, path: Path | str) -> Path:
        """Write the page that shows what was found to ``path``."""
        from partgcd.report.build import build_report

        return build_report(Path(self._run()), Path(path))

    def export(self, path: Path | str) -> Path:
        """Write a bundle, for ``partgcd serve`` and `partgcd.load`, to the new folder ``path``."""
        from partgcd.export.export import export_run
        from partgcd.run.folder import RunFolder

        return export_run(RunFolder.open(Path(self._run())), Path(path)).path

    def save(self, path: Path | str) -> None:
        """Keep what was fitted in the new folder ``path``; no pickle is in it.

        Raises:
            UserError: ``path`` holds something.
        """
        check_is_fitted(self)
        folder = Path(path)
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"'{folder}' is not empty: name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        if hasattr(self, "run_"):
            skipped = shutil.ignore_patterns("cache", "store", "checkpoints", "epochs", "ray", ".lock")
            shutil.copytree(self.run_, folder / "run", ignore=skipped)
        else:
            write_bytes(folder / _CENTRES, save({"centres": np.ascontiguousarray(self.cluster_centers_)}))
        kept = {name: value for name, value in self.get_params().items() if name != "out"}
        kept["random_state"] = seed_of(self.random_state) if self.random_state is not None else None
        write_json(folder / _SAVED, {
            "params": kept, "classes": self.classes_.tolist(), "labels": self.labels_.tolist(),
            "paths": [str(each) for each in getattr(self, "paths_", [])],
        })  # fmt: skip

    @staticmethod
    def is_saved(path: Path | str) -> bool:
        """Whether ``path`` is a folder that `save` wrote."""
        return (Path(path) / _SAVED).is_file()

    @classmethod
    def load(cls, path: Path | str) -> Discoverer:
        """What `save` kept.

        Raises:
            UserError: there is nothing that it wrote.
        """
        folder = Path(path)
        if not cls.is_saved(folder):
            raise UserError(f"'{folder}' holds no saved Discoverer")
        kept = read_json(folder / _SAVED)
        made = cls(**kept["params"])
        made.classes_, made.labels_ = as_names(kept["classes"]), as_names(kept["labels"])
        if (folder / "run").is_dir():
            made.run_, made.paths_ = folder / "run", [Path(each) for each in kept["paths"]]
        else:
            made.cluster_centers_ = load_file(folder / _CENTRES)["centres"]
            made.n_features_in_ = made.cluster_centers_.shape[1]
        return made

    def _fit_photos(self, X: Any, y: Any) -> Self:
        from partgcd.api import train
        from partgcd.data.catalog import Catalog
        from partgcd.data.names import clean_label
        from partgcd.discovery.outputs import predicted_classes

        self._scratch = None if self.out is not None else tempfile.TemporaryDirectory(prefix="partgcd-")
        place = Path(self.out) if self.out is not None else Path(str(self._scratch and self._scratch.name))
        called: dict[str, Any] = {}
        if isinstance(X, (str, os.PathLike)):
            if y is not None:
                raise ValueError("a folder or manifest holds its labels itself: leave y out")
            data, listed = Path(X), None
        else:
            listed = _files(X, place / "images")
            names, codes = label_codes(y, len(listed))
            called = {clean_label(str(name)): name for name in names.tolist()}
            if len(called) != len(names):
                raise ValueError("labels that read alike name one class: give each class one label")
            texts = [str(names[code]) if code >= 0 else "" for code in codes.tolist()]
            data = place / "photos.csv"
            place.mkdir(parents=True, exist_ok=True)
            write_csv(data, ["path", "label"], list(zip(map(str, listed), texts, strict=True)))
        flags = {
            "discovery.method": self.method, "discovery.classes": self.classes, "backbone.name": self.backbone,
            "seed": seed_of(self.random_state), **(self.settings or {}),
        }  # fmt: skip
        run = train(data, place / "run", flags, on_progress=_telling() if self.verbose else None)
        catalog = Catalog.load(run.path)
        records = [str(record["name"]) for record in read_json(run.classes)]
        if called and all(isinstance(label, int) for label in called.values()):
            fresh = iter(range(max(called.values()) + 1, max(called.values()) + 1 + len(records)))
            self.classes_ = as_names([called[name] if name in called else next(fresh) for name in records])
        else:
            self.classes_ = as_names([called.get(name, name) for name in records])
        of = dict(zip(catalog.paths, predicted_classes(run, len(catalog)).tolist(), strict=True))
        of |= {copy.path: of[copy.same_as] for copy in catalog.duplicates if copy.same_as in of}
        by_file = {_real(catalog.root / path): code for path, code in of.items()}
        self.paths_ = listed if listed is not None else [catalog.file(row) for row in range(len(catalog))]
        names_of, unread = self.classes_.tolist(), -1 if self.classes_.dtype.kind in "iu" else None
        self.labels_ = as_names([
            names_of[by_file[_real(path)]] if _real(path) in by_file else unread for path in self.paths_
        ])  # fmt: skip
        self.run_ = run.path
        return self

    def _run(self) -> Path:
        check_is_fitted(self)
        if not hasattr(self, "run_"):
            raise ValueError("embeddings were fitted: there is no run of photos to show or export")
        return Path(self.run_)

    def _source(self) -> Any:
        from partgcd.export.source import open_source
        from partgcd.run.folder import RunFolder

        if "_model" not in self.__dict__:
            self._model = open_source(RunFolder.open(self._run()))
        return self._model

    def _answers(self, X: Any) -> dict[str, NDArray[np.float32]]:
        """What the run's model says of photos, by name; the same function as in training and export."""
        import torch

        from partgcd.data.decode import BrokenImage, decode
        from partgcd.data.pixels import evaluation_view
        from partgcd.discovery.predict import predict

        source = self._source()
        data, collected = source.settings.data, []
        images = _photos_of(X)
        if not images:
            raise ValueError("there are no photos")
        for start in range(0, len(images), _BATCH):
            views = []
            for image in images[start : start + _BATCH]:
                try:
                    photo = image if isinstance(image, Image.Image) else decode(image, data.max_megapixels)
                except BrokenImage as broken:
                    raise UserError(f"'{image}' can't be read: {broken.reason}", 1) from broken
                views.append(evaluation_view(photo, data))
            with torch.no_grad():
                tokens = source.model.backbone.trunk(torch.from_numpy(np.stack(views)))
                said = predict(
                    source.model, source.parts, tokens, source.settings.parts, source.settings.discovery
                )
            given = {name: value for name, value in said._asdict().items() if value is not None}
            collected.append({name: value.float().numpy() for name, value in given.items()})
        return {name: np.concatenate([each[name] for each in collected]) for name in collected[0]}


def _telling() -> Callable[[str, int, int, str], None]:
    """A line on stderr for each phase and each epoch."""
    last = ""

    def tell(phase: str, done: int, total: int, note: str) -> None:
        nonlocal last
        line = f"{phase} {note.partition(' loss')[0]}".rstrip()
        if line != last:
            print(line, file=sys.stderr, flush=True)
        last = line

    return tell


def _is_photos(X: Any) -> bool:
    """Whether X is a place of photos, a list of files, or images, rather than embeddings."""
    if isinstance(X, (str, os.PathLike)):
        return True
    if isinstance(X, np.ndarray) and X.ndim == 4:
        return True
    listed = X.tolist() if isinstance(X, np.ndarray) and X.ndim == 1 else X
    return (
        isinstance(listed, Sequence)
        and len(listed) > 0
        and all(isinstance(each, (str, os.PathLike)) for each in listed)
    )


def _files(X: Any, folder: Path) -> list[Path]:
    """The files of X; images of an array are written to ``folder`` first, without loss."""
    if not (isinstance(X, np.ndarray) and X.ndim == 4):
        return [Path(each) for each in (X.tolist() if isinstance(X, np.ndarray) else X)]
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:07d}.png" for number in range(len(X))]
    for file, image in zip(files, _photos_of(X), strict=True):
        image.save(file)
    return files


def _photos_of(X: Any) -> list[Any]:
    """Files, or pictures of an array [N, H, W, 3] uint8, or what lies in a folder."""
    if isinstance(X, np.ndarray) and X.ndim == 4:
        if X.dtype != np.uint8 or X.shape[3] != 3:
            raise ValueError(f"images are uint8 [N, H, W, 3], not {X.dtype} {list(X.shape)}")
        return [Image.fromarray(np.ascontiguousarray(each)) for each in X]
    if isinstance(X, (str, os.PathLike)):
        from partgcd.data.walk import walk

        path = Path(X)
        return [path / each for each in walk(path).files] if path.is_dir() else [path]
    if not _is_photos(X):
        raise ValueError("photos were fitted: give files, a folder, or images [N, H, W, 3] uint8")
    return _files(X, Path())


def _real(path: Path) -> str:
    return os.path.realpath(path)
