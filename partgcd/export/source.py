"""A finished run as export sees it: the trained model, its mixtures, its classes and its images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from partgcd.backbone.load import Backbone, load_backbone
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.decode import BrokenImage, decode
from partgcd.data.pixels import PixelStore, evaluation_view
from partgcd.discovery.outputs import predicted_classes
from partgcd.discovery.predict import PartModel
from partgcd.disk.files import read_json
from partgcd.export.replay import Replay, read_replay
from partgcd.model.module import DiscoveryModel, restored
from partgcd.parts.bank import GMMBank
from partgcd.parts.projection import Projection
from partgcd.run.folder import RunFolder


@dataclass
class Source:
    """What a bundle is made of.

    Attributes:
        info: run.json.
        model: on the CPU, float32, as it was when the run's own answers were made.
        parts: the last bank and its projection; None for a method without parts.
        classes: the records of classes.json, by index.
        predicted: [N] class index of each image; a labelled image's is its label.
        store: None where the run's pixels were deleted: then the original files are decoded again.
        replay: images remembered from a model before, the last of the catalog; None in a run that began anew.
    """

    run: RunFolder
    info: dict[str, Any]
    settings: Settings
    catalog: Catalog
    model: DiscoveryModel
    parts: PartModel | None
    classes: list[dict[str, Any]]
    predicted: NDArray[np.int64]
    store: PixelStore | None
    replay: Replay | None = None

    @property
    def seeable(self) -> NDArray[np.bool_]:
        """[N] whether an image has pixels; replayed ones only have tokens."""
        count = len(self.catalog) - (len(self.replay.tokens) if self.replay is not None else 0)
        return np.arange(len(self.catalog)) < count

    @torch.no_grad()
    def tokens(self, rows: NDArray[np.int64]) -> Tensor:
        """Trunk tokens [B, T, Dt] of the evaluation views of the images ``rows``. Errors as `pixels`."""
        seen = self.seeable[rows]
        made = self.model.backbone.trunk(torch.from_numpy(self.pixels(rows[seen]))) if seen.any() else None
        if seen.all():
            assert made is not None
            return made
        assert self.replay is not None
        first = len(self.catalog) - len(self.replay.tokens)
        kept = torch.from_numpy(self.replay.tokens[rows[~seen] - first]).float()
        tokens = torch.empty(len(rows), *kept.shape[1:])
        tokens[torch.from_numpy(~seen)] = kept
        if made is not None:
            tokens[torch.from_numpy(seen)] = made.float()
        return tokens

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Evaluation views [B, 3, S, S] of the images ``rows``.

        Raises:
            UserError: the run's pixels were deleted and an original is no longer what it was.
        """
        data = self.settings.data
        if self.store is not None:
            return self.store.centre(rows, data.image_size)
        views = []
        for row in rows.tolist():
            try:
                views.append(evaluation_view(decode(self.catalog.file(row), data.max_megapixels), data))
            except BrokenImage as broken:
                raise UserError(
                    f"the run's store of pixels was deleted and '{self.catalog.file(row)}' can't stand in for it "
                    f"({broken.reason}): put the images back where they were when the run began",
                    1,
                ) from broken
        return np.stack(views)


def open_source(run: RunFolder, loaded: Backbone | None = None) -> Source:
    """Read a finished run.

    Args:
        loaded: its backbone on the CPU, where it is at hand; its trained block becomes the run's.

    Raises:
        UserError: it is not finished, its method has no model, or its weights can't be had here.
    """
    info, settings = run.info(), run.settings()
    if not run.classes.exists() or not run.predictions.exists() or info.get("status") != "finished":
        raise UserError(
            f"'{run.path}' is not finished: partgcd train --resume '{run.path}' goes on with it", 1
        )
    if not run.model.exists():
        raise UserError(
            f"'{run.path}' holds no model to export: an older version made it (method {settings.discovery.method}), "
            "train it again"
        )
    try:
        tensors = load_file(run.model)
    except (OSError, SafetensorError) as error:
        raise UserError(f"'{run.model}' can't be read: {error}", 1) from error
    catalog = Catalog.load(run.path)
    model, parts = rebuild(settings, info["backbone"], tensors, loaded)
    store = PixelStore.open(run.store) if (run.store / "store.json").exists() else None
    return Source(
        run, info, settings, catalog, model, parts, read_json(run.classes),
        predicted_classes(run, len(catalog)), store, read_replay(run),
    )  # fmt: skip


def rebuild(
    settings: Settings, backbone: dict[str, Any], tensors: dict[str, Tensor], loaded: Backbone | None = None
) -> tuple[DiscoveryModel, PartModel | None]:
    """The model and its mixtures, on the CPU, from what `write_model` wrote.

    Args:
        backbone: name and digest of weights that the run recorded.
        loaded: as `open_source` has it.

    Raises:
        UserError: the frozen weights are not to be had, or are others than those the run had.
    """
    # A run on a GPU may have resolved 'auto' to another backbone than this machine would.
    named = settings.backbone.model_copy(update={"name": backbone["name"]})
    if loaded is None:
        loaded = load_backbone(named, settings.data.image_size, "cpu")
    if loaded.info.weights_digest != backbone["weights"]:
        raise UserError(
            f"the weights of {backbone['name']} are not those the run was trained on "
            f"({loaded.info.weights_digest[:12]} instead of {backbone['weights'][:12]}): "
            "bring back the weights file that train was given",
            1,
        )
    trained, bank, projection = (_below(prefix, tensors) for prefix in ("model.", "bank.", "projection."))
    parts = PartModel(GMMBank.from_tensors(bank), Projection.from_tensors(projection)) if bank else None
    count = parts.bank.log_pi.shape[1] if parts is not None else None
    return restored(loaded, trained, count, settings).eval(), parts


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
