"""Part maps against drawn part masks: do parts mean something, and does slot k mean it in every class?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from partgcd.backbone.tokens import TokenStore
from partgcd.config.errors import UserError
from partgcd.data.catalog import Catalog
from partgcd.demo.samples import load_part_masks
from partgcd.discovery.outputs import predicted_classes
from partgcd.disk.files import read_json
from partgcd.parts.agreement import kmeans_parts, mutual_information, shuffled, slot_agreement
from partgcd.parts.mixture import sample_rows
from partgcd.parts.projection import Projection, project
from partgcd.run.folder import RunFolder

_PATCHES = 40_000
"""Most patches that k-means parts are made of: a reference, not the product."""


def score_parts(run: RunFolder, masks: Path, seed: int = 0) -> dict[str, Any]:
    """Score the part maps of a finished run on sample images, whose parts are known.

    Compared on the same foreground patches: the run's part maps; k-means on the same frozen patches of each
    class alone, with its clusters as they come and with clusters aligned over classes; the maps with each
    image's patches shuffled.

    Args:
        run: a finished run of method partgcd.
        masks: the folder of part masks that `partgcd demo` wrote (``<demo>/masks``).
        seed: of k-means and shuffles.

    Returns:
        the set it was measured on, and for each kind of parts normalised mutual information with the true
        parts and slot agreement (both in 0..1).

    Raises:
        UserError: the run has no part maps, or the masks are of other images.
    """
    catalog = Catalog.load(run.path)
    features = load_file(run.features) if run.features.exists() else {}
    if "maps" not in features:
        raise UserError(f"'{run.path}' has no part maps to score: finish a run of --method partgcd first")
    if not masks.is_dir():
        raise UserError(f"no folder of part masks '{masks}': partgcd demo writes one beside its images")
    settings = run.settings()
    if settings.parts.patches == "learned":
        raise UserError(
            f"'{run.path}': parts of learned patches are not scored; train with parts.patches=frozen", 1
        )
    height, width = (int(side) for side in features["grid"])
    truth = load_part_masks(masks.parent, catalog.paths, (height, width), settings.data.crop_ratio)
    maps = features["maps"].astype(np.float32)
    classes = np.repeat(predicted_classes(run, len(catalog))[:, None], maps.shape[1], axis=1)
    rows = np.flatnonzero((truth > 0).ravel())
    rows = rows[sample_rows(len(rows), _PATCHES, seed)]
    true, owner = truth.ravel()[rows], classes.ravel()[rows]
    points = _frozen_patches(run, catalog, maps.shape[1])[rows]
    count = maps.shape[2]
    found = {
        "partgcd": maps.argmax(axis=2).ravel()[rows],
        "k-means": kmeans_parts(points, owner, count, seed),
        "k-means, aligned": kmeans_parts(points, owner, count, seed, aligned=True),
        "shuffled": shuffled(maps, seed).argmax(axis=2).ravel()[rows],
    }
    scores = {}
    for name, slots in found.items():
        agreement = slot_agreement(slots, true, owner, seed)
        scores[name] = {
            "mutual_information": mutual_information(slots, true),
            "slot_agreement": agreement.raw,
            "slot_agreement_over_chance": agreement.corrected,
        }
    return {"set": f"{len(rows)} foreground patches of {len(catalog)} sample images", "scores": scores}


def _frozen_patches(run: RunFolder, catalog: Catalog, patches: int) -> NDArray[np.float32]:
    """The frozen patches that the run's mixtures saw, [N * P, d]."""
    stamp = read_json(run.cache / "evaluation" / "stamp.json")
    shape = (int(stamp["shape"][0]), int(stamp["shape"][1]))
    store = TokenStore(run.cache / "evaluation", len(catalog), 1, shape, stamp["stamp"])
    tensors = load_file(run.cache / "parts.safetensors")
    projection = Projection(torch.from_numpy(tensors["mean"]), torch.from_numpy(tensors["basis"]))
    chunks = []
    for start in range(0, len(catalog), 256):
        rows = np.arange(start, min(start + 256, len(catalog)))
        # A ViT's prefix tokens come before its patches; a convolutional trunk has none.
        tokens = store.read(rows, torch.device("cpu"))[:, -patches:]
        chunks.append(project(projection, tokens).flatten(0, 1).numpy().astype(np.float32))
    return np.concatenate(chunks)
