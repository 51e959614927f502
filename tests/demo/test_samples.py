from __future__ import annotations

import csv
import hashlib
import json
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.demo.anatomy import PARTS
from partgcd.demo.samples import (
    GROUPS,
    HOLDOUT,
    SPECIES,
    SampleSet,
    differs,
    load_part_masks,
    write_samples,
)

SPECIES_COUNT, PER_SPECIES, SIZE = 6, 6, 80


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    folder = tmp_path_factory.mktemp("guide")
    return write_samples(folder, seed=3, species=SPECIES_COUNT, per_species=PER_SPECIES, size=SIZE)


def truth_of(guide: SampleSet) -> dict[str, str]:
    with guide.truth.open(encoding="utf-8", newline="") as file:
        return {row["path"]: row["truth"] for row in csv.DictReader(file)}


def images_of(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.jpg"))


def mask_of(guide: SampleSet, path: str) -> np.ndarray:
    with Image.open(guide.masks / f"{Path(path).stem}.png") as image:
        assert image.mode == "P"
        return np.asarray(image)


def digests(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def small(folder: Path, seed: int = 0, old: int | None = None, labelled_share: float = 0.5) -> SampleSet:
    return write_samples(folder, seed, 3, per_species=2, size=32, old=old, labelled_share=labelled_share)


def test_same_seed_gives_same_bytes_and_another_seed_other_pictures(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        small(tmp_path / name, seed)
    a, b, c = (digests(tmp_path / name) for name in "abc")
    assert a == b
    pictures = {v for k, v in a.items() if k.endswith(".jpg")}
    assert not pictures & {v for k, v in c.items() if k.endswith(".jpg")}
    assert len(pictures) == 3 * (2 + HOLDOUT)  # no two images alike, holdout included


def test_counts_of_images_labels_holdout_and_masks(guide: SampleSet) -> None:
    images = images_of(guide.images)
    assert len(images) == SPECIES_COUNT * PER_SPECIES
    assert len(guide.species) == SPECIES_COUNT and len(guide.old) == SPECIES_COUNT // 2
    per_folder = {d.name: len(list(d.iterdir())) for d in guide.images.iterdir()}
    assert per_folder.pop("unlabelled") == len(images) - len(guide.old) * PER_SPECIES // 2
    assert per_folder == dict.fromkeys(guide.old, PER_SPECIES // 2)
    held_out = {d.name: len(list(d.iterdir())) for d in guide.holdout.iterdir()}
    assert held_out == dict.fromkeys(guide.species, HOLDOUT)
    stems = [Path(p).stem for p in images + images_of(guide.holdout)]
    assert len(set(stems)) == len(stems)
    assert sorted(stems) == sorted(p.stem for p in guide.masks.iterdir())


def test_truth_covers_every_image_and_agrees_with_the_folders(guide: SampleSet) -> None:
    truth = truth_of(guide)
    assert sorted(truth) == images_of(guide.images)
    counts = {name: list(truth.values()).count(name) for name in guide.species}
    assert counts == dict.fromkeys(guide.species, PER_SPECIES)
    labelled = {path: name for path, name in truth.items() if not path.startswith("unlabelled/")}
    assert all(path.split("/")[0] == name for path, name in labelled.items())
    assert set(labelled.values()) == set(guide.old)


def test_unlabelled_names_and_dates_do_not_tell_the_species(guide: SampleSet) -> None:
    truth = truth_of(guide)
    hidden = sorted(p for p in truth if p.startswith("unlabelled/"))
    assert not [p for p in hidden for s in guide.species if s.lower() in p.lower()]
    for order in (hidden, sorted(hidden, key=lambda p: (guide.images / p).stat().st_mtime_ns)):
        names = [truth[p] for p in order]
        same = sum(a == b for a, b in pairwise(names)) / (len(names) - 1)
        assert same < 0.4  # sorted by species it would be about 0.8, by chance about 0.2


def test_file_sizes_hardly_tell_the_species(guide: SampleSet) -> None:
    truth = truth_of(guide)
    size = np.array([(guide.images / p).stat().st_size for p in truth], dtype=float)
    name = np.array(list(truth.values()))
    between = sum(((size[name == s].mean() - size.mean()) ** 2) * (name == s).sum() for s in guide.species)
    # Six groups of six explain 5/35 = 14 % of pure noise.
    assert between / ((size - size.mean()) ** 2).sum() < 0.45


def test_background_is_drawn_without_regard_to_the_species(guide: SampleSet) -> None:
    truth = truth_of(guide)
    corner, name = [], np.array(list(truth.values()))
    for path in truth:
        with Image.open(guide.images / path) as image:
            corner.append(np.asarray(image, dtype=float)[:6].mean((0, 1)))
    colour = np.stack(corner)
    means = np.stack([colour[name == s].mean(0) for s in guide.species])
    between = ((means - colour.mean(0)) ** 2).sum() * PER_SPECIES
    assert between / ((colour - colour.mean(0)) ** 2).sum() < 0.4


def test_masks_line_up_with_the_pictures(guide: SampleSet) -> None:
    contrasts = []
    for path in truth_of(guide):
        with Image.open(guide.images / path) as image:
            picture = np.asarray(image, dtype=float)
        shape = mask_of(guide, path) > 0
        assert picture.shape == (SIZE, SIZE, 3) and shape.shape == (SIZE, SIZE)
        away = np.roll(shape, (SIZE // 2, SIZE // 2), axis=(0, 1)) & ~shape
        edge = np.abs(np.diff(picture.mean(2), axis=1))
        on_edge = shape[:, 1:] != shape[:, :-1]
        colour = np.abs(picture[shape].mean(0) - picture[away].mean(0)).max()
        contrasts.append((colour, edge[on_edge].mean() / edge[~shape[:, 1:] & ~on_edge].mean()))
    colour, sharpness = np.median(contrasts, axis=0)
    assert colour > 20  # grey levels between an insect and its background
    assert sharpness > 3  # the mask's outline is where the picture changes


def test_insects_fill_the_frame_and_stay_inside_the_evaluation_view(guide: SampleSet) -> None:
    for path in truth_of(guide):
        rows, columns = np.nonzero(mask_of(guide, path))
        extent = max(np.ptp(rows), np.ptp(columns)) + 1
        assert 0.38 * SIZE < extent < 0.87 * SIZE  # thin ends of legs may fall below a pixel
        assert min(rows.min(), columns.min()) >= SIZE * 0.05 and max(rows.max(), columns.max()) < SIZE * 0.95


def test_every_species_shows_all_parts_in_most_images(guide: SampleSet) -> None:
    truth = truth_of(guide)
    for name in guide.species:
        paths = [p for p in truth if truth[p] == name]
        whole = [all((mask_of(guide, p) == part).sum() >= 4 for part in range(1, len(PARTS))) for p in paths]
        assert np.mean(whole) > 0.6, name


def test_description_names_old_species_parts_and_differences(guide: SampleSet) -> None:
    note = json.loads((guide.folder / "species.json").read_text(encoding="utf-8"))
    assert note["parts"] == list(PARTS) and note["seed"] == 3 and note["size"] == SIZE
    assert sorted(s["name"] for s in note["species"]) == guide.species
    assert sorted(s["name"] for s in note["species"] if s["old"]) == guide.old
    assert len((guide.folder / "README.txt").read_text(encoding="utf-8").strip().split("\n\n")) == 1


def test_every_species_differs_from_its_type_in_one_or_two_parts_and_no_two_are_alike() -> None:
    assert len({s.name for s in SPECIES}) == len(SPECIES)
    for i, species in enumerate(SPECIES):
        assert len(differs(species)) in ((0,) if i < GROUPS else (1, 2)), species.name
        assert (species.palette, species.wings) == (SPECIES[i % GROUPS].palette, SPECIES[i % GROUPS].wings)
    for a, b in combinations(SPECIES, 2):
        assert any(getattr(a, k) != getattr(b, k) for k in ("antennae", "pattern", "abdomen", "legs", "head"))


def test_progress_counts_every_image(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_samples(tmp_path, species=2, per_species=2, size=32, progress=lambda *counts: told.append(counts))
    total = 2 * (2 + HOLDOUT)
    assert told == [(i, total) for i in range(1, total + 1)]


def test_finished_folder_is_used_again_and_an_unfinished_one_completed(tmp_path: Path) -> None:
    first = small(tmp_path)
    before = digests(tmp_path)
    lost = next(first.masks.iterdir())
    lost.unlink()
    assert small(tmp_path) == first and not lost.exists()  # finished: nothing is drawn
    first.truth.unlink()
    assert small(tmp_path) == first and digests(tmp_path) == before


def test_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "guide")
    with pytest.raises(UserError, match="another folder"):
        small(tmp_path / "guide", seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(UserError, match="another folder"):
        small(tmp_path / "mine")
    with pytest.raises(UserError, match="is a file"):
        small(tmp_path / "mine" / "holiday.jpg")


@pytest.mark.parametrize(("old", "share", "labelled"), [(1, 0.5, 1), (3, 1.0, 6), (2, 0.01, 2)])
def test_old_and_labelled_share_set_how_much_is_labelled(
    tmp_path: Path, old: int, share: float, labelled: int
) -> None:
    guide = small(tmp_path, old=old, labelled_share=share)
    assert len(guide.old) == old
    assert len([p for p in truth_of(guide) if not p.startswith("unlabelled/")]) == labelled
    assert (guide.images / "unlabelled").is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [("species", 1), ("species", 25), ("per_species", 1), ("size", 8), ("seed", -1), ("old", 0), ("old", 13)],
)
def test_numbers_out_of_range_are_refused_by_name(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"^{name} is {value};"):
        write_samples(tmp_path, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_labelled_share_out_of_range_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(UserError, match="labelled_share"):
        write_samples(tmp_path, labelled_share=share)


@pytest.mark.parametrize("grid", [(16, 16), (7, 5), (1, 1)])
def test_part_masks_have_a_row_per_image_and_known_parts(guide: SampleSet, grid: tuple[int, int]) -> None:
    paths = images_of(guide.images)[:5] + images_of(guide.holdout)[:2]
    cells = load_part_masks(guide.folder, paths, grid, 0.875)
    assert cells.shape == (7, grid[0] * grid[1]) and cells.dtype == np.int64
    assert cells.min() >= 0 and cells.max() < len(PARTS)
    if grid == (16, 16):
        assert set(np.unique(cells)) == set(range(len(PARTS)))


def write_mask(folder: Path, mask: np.ndarray) -> None:
    (folder / "masks").mkdir(exist_ok=True)
    Image.fromarray(mask.astype(np.uint8)).convert("P").save(folder / "masks" / "one.png")


def test_part_masks_take_the_central_crop_and_the_commonest_part(tmp_path: Path) -> None:
    mask = np.zeros((40, 40))
    mask[:5] = 7  # outside the central 30 x 30 pixels
    mask[5:20, 5:15] = 4  # upper left cell (15 x 15): two thirds fore wing,
    mask[5:20, 15:20] = 6  # one third abdomen
    mask[20:35, 5:7] = 2  # lower left cell: 13 % head, too little
    mask[20:35, 20:23] = 3  # lower right cell: 20 % thorax
    write_mask(tmp_path, mask)
    cells = load_part_masks(tmp_path, ["unlabelled/one.jpg"], (2, 2), 0.75)
    assert cells.tolist() == [[4, 0, 0, 3]]


def test_part_masks_agree_with_resizing_and_cropping_the_mask(guide: SampleSet) -> None:
    paths = images_of(guide.images)[:6]
    cells = load_part_masks(guide.folder, paths, (7, 7), 0.875)
    for path, row in zip(paths, cells, strict=True):
        short = round(224 / 0.875)
        big = Image.fromarray(mask_of(guide, path)).resize((short, short), Image.Resampling.NEAREST)
        view = np.asarray(big)[16:240, 16:240].reshape(7, 32, 7, 32).transpose(0, 2, 1, 3).reshape(49, -1)
        votes = np.stack([(view == part).sum(1) for part in range(len(PARTS))], 1)
        expected = np.where(votes[:, 1:].sum(1) >= 0.15 * 1024, votes[:, 1:].argmax(1) + 1, 0)
        assert (expected == row).mean() > 0.93  # pixels on a cell's edge may fall either way


def test_missing_mask_or_impossible_crop_is_refused(guide: SampleSet) -> None:
    with pytest.raises(UserError, match="not an image of the samples"):
        load_part_masks(guide.folder, ["unlabelled/none.jpg"], (2, 2), 0.875)
    with pytest.raises(UserError, match="crop_ratio"):
        load_part_masks(guide.folder, [], (2, 2), 0.0)
