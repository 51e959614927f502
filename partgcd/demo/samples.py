"""The sample field guide of `partgcd demo`: which invented insects exist, and which files are written.

Twenty-four species in four groups. The first of each group is its type; the others have its palette and wing
shape and differ from it in one or two parts, so colour alone never names a species. All is drawn from a seed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.demo.anatomy import PARTS, Species
from partgcd.demo.insects import draw

HOLDOUT = 4  # images of each species that are never in images/
FOREGROUND = 0.15  # share of a cell that parts must fill for it to count as one
VERSION = 1  # of the drawings: raised when the same seed gives other pictures

# Name, palette, antennae, wing shape, wing pattern, abdomen, legs, head. The first four are the types.
SPECIES: tuple[Species, ...] = (
    Species("Amber_Clubhorn", "amber", "clubbed", "round", "eyes", "plain", "short", "round"),
    Species("Moss_Longhorn", "moss", "long", "narrow", "plain", "pointed", "long", "broad"),
    Species("Dusky_Pinhorn", "dusk", "straight", "pointed", "band", "striped", "short", "round"),
    Species("Rusty_Featherhorn", "rust", "feathered", "scalloped", "dots", "plain", "stout", "round"),
    Species("Banded_Featherhorn", "amber", "feathered", "round", "band", "plain", "short", "round"),
    Species("Barred_Lacewing", "moss", "long", "narrow", "stripes", "spotted", "long", "broad"),
    Species("Dusky_Clubhorn", "dusk", "clubbed", "pointed", "band", "pointed", "short", "round"),
    Species("Peacock_Featherhorn", "rust", "feathered", "scalloped", "eyes", "striped", "stout", "round"),
    Species("Amber_Stilt", "amber", "clubbed", "round", "eyes", "striped", "long", "round"),
    Species("Moss_Clubhorn", "moss", "clubbed", "narrow", "plain", "striped", "long", "broad"),
    Species("Pearly_Pinhorn", "dusk", "straight", "pointed", "dots", "spotted", "short", "round"),
    Species("Rusty_Snout", "rust", "straight", "scalloped", "dots", "plain", "stout", "snouted"),
    Species("Tiger_Clubhorn", "amber", "clubbed", "round", "stripes", "plain", "short", "snouted"),
    Species("Moss_Bandwing", "moss", "straight", "narrow", "band", "pointed", "long", "broad"),
    Species("Dusky_Swordtail", "dusk", "straight", "pointed", "eyes", "pointed", "short", "round"),
    Species("Rusty_Bandwing", "rust", "clubbed", "scalloped", "band", "plain", "stout", "round"),
    Species("Amber_Longhorn", "amber", "long", "round", "eyes", "spotted", "short", "round"),
    Species("Moss_Featherhorn", "moss", "feathered", "narrow", "dots", "pointed", "long", "broad"),
    Species("Dusky_Tiger", "dusk", "straight", "pointed", "stripes", "striped", "stout", "round"),
    Species("Rusty_Stilt", "rust", "feathered", "scalloped", "plain", "plain", "long", "round"),
    Species("Dotted_Pinhorn", "amber", "straight", "round", "dots", "plain", "short", "round"),
    Species("Eyed_Lacewing", "moss", "long", "narrow", "eyes", "pointed", "short", "broad"),
    Species("Dusky_Featherhorn", "dusk", "feathered", "pointed", "plain", "striped", "short", "round"),
    Species("Rusty_Wasptail", "rust", "long", "scalloped", "dots", "striped", "stout", "round"),
)
GROUPS = 4
_TRAITS = ("antennae", "pattern", "abdomen", "legs", "head")  # what may differ within a group

README = """\
Invented insects, drawn by partgcd from a seed: no animal here exists and nothing was downloaded. images/
holds one folder per known species with labelled pictures, and images/unlabelled/ with the other pictures of
those species and all pictures of the species nobody labelled, under neutral names in shuffled order.
truth.csv names the species of every file of images/ and is for measuring only; masks/ tells for each
picture (by file name) which part each pixel shows, the parts being listed in species.json together with
what sets each species apart; holdout/ has pictures of every species that are not in images/. Free to use in
any way.
"""


@dataclass(frozen=True)
class SampleSet:
    """Where a written field guide lies. `species` and `old` (the labelled ones) are sorted names."""

    folder: Path
    species: list[str]
    old: list[str]
    truth: Path
    masks: Path

    @property
    def images(self) -> Path:
        """The folder to discover in."""
        return self.folder / "images"

    @property
    def holdout(self) -> Path:
        """One folder per species with images that are not in `images`."""
        return self.folder / "holdout"


def differs(species: Species) -> list[str]:
    """Traits in which a species differs from the type of its group: one or two, none for the type itself."""
    kind = SPECIES[SPECIES.index(species) % GROUPS]
    return [trait for trait in _TRAITS if getattr(species, trait) != getattr(kind, trait)]


def write_samples(
    folder: Path,
    seed: int = 0,
    species: int = 12,
    per_species: int = 40,
    size: int = 224,
    old: int | None = None,
    labelled_share: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> SampleSet:
    """Draws the field guide into `folder`: same arguments, same bytes (on the same Pillow and NumPy).

    `species` (2 to 24) species have `per_species` images each of `size` pixels a side in images/, and four
    more in holdout/. `old` of them (default half) are known: `labelled_share` (above 0, up to 1) of their
    images lie in images/<Species_Name>/, everything else in images/unlabelled/. `progress(done, total)` is
    told of each image. A folder that already holds this very set is used as it is; an unfinished one is
    drawn again.

    Raises UserError for numbers out of range and for a folder that holds anything else.
    """
    if old is None:
        old = species // 2
    for name, value, low, high in (
        ("seed", seed, 0, 2**32 - 1),
        ("species", species, 2, len(SPECIES)),
        ("per_species", per_species, 2, 100_000),
        ("size", size, 32, 2048),
        ("old", old, 1, species),
    ):
        if not low <= value <= high:
            raise UserError(f"{name} is {value}; choose a whole number from {low} to {high}.")
    if not 0 < labelled_share <= 1:
        raise UserError(f"labelled_share is {labelled_share}; choose a number above 0 and up to 1.")

    chosen = SPECIES[:species]
    rng = np.random.default_rng([seed, 0])
    known = _known(rng, species, old)
    description = _description(chosen, known, seed, per_species, size, labelled_share)
    text = json.dumps(description, indent=2) + "\n"
    names = sorted(s.name for s in chosen)
    known_names = sorted(chosen[i].name for i in known)
    result = SampleSet(folder, names, known_names, folder / "truth.csv", folder / "masks")
    if _holds(folder, text) and result.truth.exists():
        return result

    labelled = max(1, round(labelled_share * per_species))
    shown = {(s, int(i)) for s in known for i in rng.permutation(per_species)[:labelled]}
    # One shuffled order for names and for writing: neither file names nor file dates tell the species.
    order = [divmod(int(r), per_species) for r in rng.permutation(species * per_species)]
    total = species * (per_species + HOLDOUT)
    for sub in (result.masks, result.images / "unlabelled", *(result.images / n for n in result.old)):
        sub.mkdir(parents=True, exist_ok=True)
    (folder / "species.json").write_text(text, encoding="utf-8", newline="\n")
    (folder / "README.txt").write_text(README, encoding="utf-8", newline="\n")
    truth = []
    for number, (s, i) in enumerate(order, start=1):
        place = chosen[s].name if (s, i) in shown else "unlabelled"
        path = f"{place}/specimen-{number:05d}.jpg"
        _write(chosen[s], np.random.default_rng([seed, 1, s, i]), size, result.images / path, result.masks)
        truth.append((path, chosen[s].name))
        if progress is not None:
            progress(number, total)
    done = len(order)
    for s, kind in enumerate(chosen):
        (result.holdout / kind.name).mkdir(parents=True, exist_ok=True)
        for i in range(HOLDOUT):
            path = f"{kind.name}/holdout-{s * HOLDOUT + i + 1:03d}.jpg"
            stream = np.random.default_rng([seed, 2, s, i])
            _write(kind, stream, size, result.holdout / path, result.masks)
            done += 1
            if progress is not None:
                progress(done, total)
    # Last, because its presence says that the set is whole.
    part = result.truth.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("path", "truth"), *sorted(truth)])
    part.replace(result.truth)
    return result


def load_part_masks(
    folder: Path, paths: Sequence[str | Path], grid: tuple[int, int], crop_ratio: float
) -> NDArray[np.int64]:
    """The part each patch of the evaluation view shows, [N, gh*gw] row by row: an index into `PARTS`.

    `folder` is a set's folder and `paths` are N of its images (only the file names matter, so paths
    relative to images/ or holdout/ will do). The evaluation view resizes a square image to size /
    crop_ratio and keeps its centre, that is the central `crop_ratio` (0..1] of its side; it is cut into
    grid = (gh, gw) cells. A cell is the commonest part in it, or 0 (background) where parts fill less than
    15 % of it. Raises UserError where a mask is missing or crop_ratio is out of range.
    """
    if not 0 < crop_ratio <= 1:
        raise UserError(f"crop_ratio is {crop_ratio}; choose a number above 0 and up to 1.")
    gh, gw = grid
    kinds = len(PARTS)
    cells = np.zeros((len(paths), gh * gw), np.int64)
    for row, path in enumerate(paths):
        file = folder / "masks" / f"{PurePosixPath(path).stem}.png"
        if not file.is_file():
            raise UserError(f"{file} is missing: {path} is not an image of the samples in {folder}.")
        with Image.open(file) as image:
            mask = np.asarray(image).astype(np.int64)
        r, c = _bins(mask.shape[0], gh, crop_ratio), _bins(mask.shape[1], gw, crop_ratio)
        mask = mask[r >= 0][:, c >= 0]
        cell = r[r >= 0][:, None] * gw + c[c >= 0][None, :]
        votes = np.bincount((cell * kinds + mask).ravel(), minlength=gh * gw * kinds).reshape(-1, kinds)
        parts = votes[:, 1:].sum(1)
        enough = parts >= np.maximum(FOREGROUND * votes.sum(1), 1)
        cells[row] = np.where(enough, votes[:, 1:].argmax(1) + 1, 0)
    return cells


def _bins(side: int, cells: int, crop_ratio: float) -> NDArray[np.int64]:
    """The cell in which each of `side` pixels lies, -1 outside the central view, [side]."""
    place = ((np.arange(side) + 0.5) / side - (1 - crop_ratio) / 2) / crop_ratio
    return np.where((place >= 0) & (place < 1), np.floor(place * cells), -1).astype(np.int64)


def _known(rng: np.random.Generator, species: int, old: int) -> list[int]:
    """Indices of the old species: random, but groups take turns, so that new ones have old relatives."""
    ranked: list[tuple[int, float, int]] = []
    for group in range(min(GROUPS, species)):
        members = rng.permutation(np.arange(group, species, GROUPS))
        ranked += [(turn, float(rng.random()), int(s)) for turn, s in enumerate(members)]
    return sorted(s for _, _, s in sorted(ranked)[:old])


def _description(
    chosen: Sequence[Species], known: list[int], seed: int, per_species: int, size: int, labelled_share: float
) -> dict[str, Any]:
    return {
        "drawing": VERSION,
        "seed": seed,
        "per_species": per_species,
        "size": size,
        "labelled_share": labelled_share,
        "holdout": HOLDOUT,
        "parts": list(PARTS),
        "species": [
            {
                "name": s.name,
                "old": i in known,
                "group": s.palette,
                "parts": {"wings": s.wings, **{trait: getattr(s, trait) for trait in _TRAITS}},
                "differs_from": None if i < GROUPS else SPECIES[i % GROUPS].name,
                "differs_in": differs(s),
            }
            for i, s in enumerate(chosen)
        ],
    }


def _holds(folder: Path, text: str) -> bool:
    """Whether the folder holds (part of) the set that `text` describes; False where it is empty or new."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose a folder for the sample images.")
    if not folder.exists() or not any(folder.iterdir()):
        return False
    note = folder / "species.json"
    if not note.is_file() or note.read_text(encoding="utf-8", errors="replace") != text:
        raise UserError(f"{folder} already holds something else; choose another folder or empty this one.")
    return True


def _write(species: Species, rng: np.random.Generator, size: int, path: Path, masks: Path) -> None:
    picture, mask = draw(species, rng, size)
    picture.save(path, quality=90)
    image = Image.fromarray(mask).convert("P")  # from "L": keeps the numbers, adds a palette
    image.putpalette(bytes(v for colour in _MASK_COLOURS for v in colour))
    image.save(masks / f"{path.stem}.png")


_MASK_COLOURS = (
    (0, 0, 0), (214, 39, 40), (44, 160, 44), (31, 119, 180), (255, 187, 60), (227, 119, 194), (23, 190, 207),
    (240, 240, 240),
)  # fmt: skip
