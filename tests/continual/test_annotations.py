"""What a person says of photos, and classes that are taught by example."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from partgcd.config.errors import UserError
from partgcd.continual.annotations import Annotations, correct, read_annotations
from partgcd.continual.champion import Predictions, load_champion
from partgcd.continual.gate import Margins
from partgcd.continual.intake import content_key
from partgcd.continual.rediscover import rediscover
from partgcd.continual.request import Outcome, Request
from partgcd.continual.retained import Retained
from partgcd.data.listing import Entry
from partgcd.export.bundle import EXEMPLARS, open_bundle, read_tensors
from partgcd.registry.edits import rename
from partgcd.registry.roster import list_classes
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder

Photos = Callable[..., Path]
NAMES = {"ash": "c-1", "c-1": "c-1", "c-2": "c-2"}


def contents(annotations: Annotations) -> set[int]:
    """What is to be trained on, each content once."""
    return set(annotations.keys.values())


@pytest.fixture
def teach(registry: Registry, quick_export: None) -> Callable[..., Outcome]:
    """Runs a rediscovery that is taught what ``told`` says beside what is known."""

    def call(new: Path, told: Path, **changes: object) -> Outcome:
        request = Request(
            registry.path, new, "always", told, True, classes=0, epochs=2, margins=Margins(1.0, 1.0, 1.0, 0.0),
            train={"device": "cpu", "threads": 1},
        )  # fmt: skip
        return rediscover(replace(request, **changes))  # type: ignore[arg-type]

    return call


@pytest.fixture
def told(photos: Photos, tmp_path: Path) -> Path:
    """Three folders: a class by its name, one by its id, and one that names none."""
    for folder, kinds in (("told/ash", {0: 2}), ("told/c-2", {1: 1}), ("told/other", {2: 4})):
        photos(folder, kinds)
    return tmp_path / "told"


def test_labels_are_ids_whatever_a_folder_is_called_by(told: Path) -> None:
    annotations = read_annotations(told, told, False, NAMES)
    for entries in (annotations.entries, annotations.held):
        assert sorted(str(entry.label) for entry in entries) == ["c-1", "c-1", "c-2"]
        assert all(Path(entry.path).is_absolute() for entry in entries)
    assert annotations.lessons == {} and annotations.unnamed == {
        "--labelled": ["other"],
        "--holdout": ["other"],
    }
    line = annotations.left_out()
    assert line.count("1 folder of") == 2 and "--labelled ('other') left out" in line
    assert line.count("--teach") == 1, "what is held out can't be taught"


def test_how_folders_were_read_and_what_was_left_out_is_told(
    told: Path, photos: Photos, tmp_path: Path
) -> None:
    photos("told/unknown", {3: 2})
    photos("told/@eaDir", {3: 1})
    (tmp_path / "told" / "birch").mkdir()
    annotations = read_annotations(told, None, False, NAMES)
    assert len(annotations.entries) == 3
    line = annotations.left_out()
    for what in ("unknown (2)", "2 images without a label left out", "without an image: birch", "@eaDir"):
        assert line.count(what) == 1, line
    assert "\n" not in line and line.count("--holdout") == 0
    assert len(read_annotations(told, None, False, {**NAMES, "unknown": "c-9"}).entries) == 5, (
        "a class of that name is one"
    )


def test_classes_in_one_more_folder_are_theirs_and_a_folder_of_folders_is_not_taught_as_one(
    told: Path, photos: Photos, tmp_path: Path
) -> None:
    told.rename(tmp_path / "inner")
    (tmp_path / "told").mkdir()
    (tmp_path / "inner").rename(told / "photos")
    assert len(read_annotations(told, told, False, NAMES).entries) == 3
    for kind, name in ((0, "elm"), (1, "fir")):
        photos(f"more/trees/{name}", {kind: 4})
    with pytest.raises(UserError, match="'trees' may be one class or hold several: elm, fir"):
        read_annotations(tmp_path / "more", None, True, NAMES)
    assert sorted(read_annotations(tmp_path / "more" / "trees", None, True, NAMES).lessons) == ["elm", "fir"]


def test_a_table_of_labels_finds_its_photos(told: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("filename,class\nTOLD\\ash\\0-500.png,ash\ntold/other/2-500.png,n/a\n")
    annotations = read_annotations(tmp_path / "l.csv", None, False, NAMES)
    assert [(Path(entry.path).name, entry.label) for entry in annotations.entries] == [("0-500.png", "c-1")]
    assert "n/a (1)" in annotations.left_out() and "backslashes" in annotations.left_out()


def test_folders_that_name_no_class_are_lessons_where_a_person_says_so(told: Path) -> None:
    annotations = read_annotations(told, None, True, NAMES)
    assert {name: len(entries) for name, entries in annotations.lessons.items()} == {"other": 4}
    assert annotations.left_out() == "" and len(annotations.entries) == 3 and annotations.held == []
    assert len(contents(annotations)) == 3 + 4
    shutil.copy(told / "other" / "2-500.png", told / "other" / "copy.png")
    assert len(contents(read_annotations(told, None, True, NAMES))) == 3 + 4, "a copy says nothing new"
    assert read_annotations(told, None, True, {"ash": "c-1", "c-2": "c-2", "other": "c-3"}).lessons == {}


@pytest.mark.parametrize(
    ("folder", "teaches", "names", "says"),
    [
        ("told", False, {"oak": "c-9"}, "no folder of .*told' is named as a class.*, or --teach"),
        ("none", True, NAMES, "no such file or folder"),
        (None, True, NAMES, "--teach needs --labelled"),
        ("told", True, {"other": "c-1"}, "'ash' has 2 photos, a new class needs 4"),
    ],
)
def test_what_can_not_be_taught_is_one_line(
    told: Path, tmp_path: Path, folder: str | None, teaches: bool, names: dict[str, str], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_annotations(tmp_path / folder if folder else None, None, teaches, names)
    assert "\n" not in str(caught.value)


def test_a_class_is_taught_by_example_and_the_others_keep_their_ids(
    registry: Registry, teach: Callable[..., Outcome], photos: Photos, tmp_path: Path
) -> None:
    before = [row.id for row in list_classes(registry)]
    rename(registry, before[0], "the old one")
    new = photos("new", {0: 6, 4: 8})
    photos("told/oak", {4: 6}, 700)
    outcome = teach(new, tmp_path / "told", epochs=4)
    assert outcome.code == 0 and outcome.new_classes == 0, outcome.summary
    assert "0 new classes in 14 new photos beside 1 that was taught" in outcome.summary
    version = registry.version("champion")
    assert version.class_ids[:3] == before and len(version.class_ids) == 4
    rows = {row.id: row for row in list_classes(registry)}
    oak = rows[version.class_ids[3]]
    assert (oak.name, oak.kind, oak.labelled) == ("oak", "old", 6) and rows[before[0]].name == "the old one"
    changes = json.loads((version.path / "changes.json").read_text())
    assert changes["classes"] == {"known": 3, "taught": 1, "new": 0} and changes["appeared"] == []
    (shown,) = changes["taught"]
    assert (shown["id"], shown["examples"], shown["photos"]) == (oak.id, 6, 8)
    assert all(Path(image["path"]).name.startswith("4-") for image in shown["images"])
    page = (version.path / "changes.html").read_text()
    assert "Classes that were taught" in page and "6 examples" in page
    assert teach(new, tmp_path / "told").summary.startswith("nothing new"), "oak is a class by now"


def test_a_class_is_taught_without_a_new_photo_and_what_was_remembered_as_another_is_let_go(
    registry: Registry, teach: Callable[..., Outcome], trained: RunFolder, tmp_path: Path
) -> None:
    root = trained.path.parent / "photos"
    old = shutil.copytree(root, tmp_path / "old")
    (tmp_path / "told" / "oak").mkdir(parents=True)
    for photo in sorted((root / "unlabelled").glob("2-*"))[:5]:
        shutil.copy(photo, tmp_path / "told" / "oak")
    annotations = read_annotations(tmp_path / "told", None, True, {})
    shown = contents(annotations)
    memory = load_champion(open_bundle(registry.resolve("champion"))).memory
    assert shown & set(memory.keys.tolist()), "else nothing is to be let go"
    outcome = teach(old, tmp_path / "told", classes=None)
    assert outcome.code == 0 and "in 0 new photos beside 1 that was taught" in outcome.summary
    bundle = open_bundle(registry.resolve("champion"))
    found = read_tensors(bundle, EXEMPLARS)
    oak = next(entry.index for entry in bundle.manifest.classes if entry.name == "oak")
    own = {int(key): int(column) for key, column in zip(found["keys"], found["classes"], strict=True)}
    assert all(own[key] == oak for key in shown)
    assert set(np.unique(found["classes"]).tolist()) == set(range(len(bundle.manifest.classes)))
    assert registry.verify() == []


def test_a_class_that_is_taught_again_after_its_version_was_kept_back_has_the_same_id(
    registry: Registry, teach: Callable[..., Outcome], photos: Photos, tmp_path: Path
) -> None:
    new = photos("new", {0: 6, 4: 8})
    photos("told/oak", {4: 6}, 700)
    assert teach(new, tmp_path / "told", promote="never").code == 3
    (kept,) = (row for row in list_classes(registry) if row.name == "oak")
    assert kept.status == "dormant"
    assert teach(new, tmp_path / "told", epochs=3).code == 0
    (now,) = (row for row in list_classes(registry) if row.name == "oak")
    assert (now.id, now.status, now.since) == (kept.id, "active", 2)


def test_what_a_person_gives_to_another_class_is_remembered_as_the_old_one_no_more(
    registry: Registry, teach: Callable[..., Outcome], trained: RunFolder, photos: Photos, tmp_path: Path
) -> None:
    root = trained.path.parent / "photos"
    (tmp_path / "told" / "birch").mkdir(parents=True)
    for photo in sorted((root / "ash").iterdir())[:3]:
        shutil.copy(photo, tmp_path / "told" / "birch")
    annotations = read_annotations(tmp_path / "told", None, False, {"birch": "c-2"})
    moved = contents(annotations)
    outcome = teach(photos("new", {0: 6, 4: 10}), tmp_path / "told", teach=False, classes=1)
    assert outcome.code == 0, outcome.summary
    bundle = open_bundle(registry.resolve("champion"))
    found = read_tensors(bundle, EXEMPLARS)
    birch = next(entry.index for entry in bundle.manifest.classes if entry.name == "birch")
    own = {int(key): int(column) for key, column in zip(found["keys"], found["classes"], strict=True)}
    assert len(moved) == 3 and {own[key] for key in moved} == {birch}


def test_corrections_alone_are_learned_once(
    registry: Registry, teach: Callable[..., Outcome], trained: RunFolder, tmp_path: Path
) -> None:
    root = trained.path.parent / "photos"
    before = registry.version("champion").class_ids
    old = shutil.copytree(root, tmp_path / "old")
    (tmp_path / "told" / "birch").mkdir(parents=True)
    for photo in sorted((root / "ash").iterdir())[:3]:
        shutil.copy(photo, tmp_path / "told" / "birch")
    outcome = teach(old, tmp_path / "told", teach=False)
    assert outcome.code == 0 and outcome.version == 2, outcome.summary
    assert "0 new classes in 0 new photos; 3 labelled images were new" in outcome.summary
    assert registry.version("champion").class_ids == before and registry.verify() == []
    assert teach(old, tmp_path / "told", teach=False).summary.startswith("nothing new")
    assert registry.aliases()["champion"] == 2


def test_labelled_images_that_the_champion_knows_are_no_news(
    registry: Registry, teach: Callable[..., Outcome], trained: RunFolder, tmp_path: Path
) -> None:
    root = trained.path.parent / "photos"
    old = shutil.copytree(root, tmp_path / "old")
    memory = load_champion(open_bundle(registry.resolve("champion"))).memory
    told = set(memory.keys[memory.labelled].tolist())
    (tmp_path / "told" / "ash").mkdir(parents=True)
    kept = [photo for photo in sorted((root / "ash").iterdir()) if content_key(photo.read_bytes()) in told]
    for photo in kept:
        shutil.copy(photo, tmp_path / "told" / "ash")
    outcome = teach(old, tmp_path / "told", teach=False)
    assert kept and outcome.code == 0 and outcome.version is None
    assert (
        outcome.summary == "nothing new: no new photo, and the champion knows all that the labelled ones say"
    )
    assert registry.aliases() == {"champion": 1}


def test_a_class_whose_every_image_is_given_away_keeps_them(registry: Registry, trained: RunFolder) -> None:
    known = load_champion(open_bundle(registry.resolve("champion")))
    classes = known.bundle.manifest.classes
    memory = known.memory
    count = len(memory.keys)
    predictions = Predictions(torch.zeros(count, 3), torch.zeros(count, 4), None, torch.zeros(count))
    retained = Retained(list(classes), memory.classes, [0, 1, 2], [])
    root = trained.path.parent / "photos"
    ash, birch = (
        [Entry(str(photo), classes[1 - side].id) for photo in sorted((root / name).iterdir())]
        for side, name in enumerate(("ash", "birch"))
    )
    labelled = memory.labelled & (memory.classes == 0)

    def annotations(entries: list[Entry]) -> Annotations:
        keys = {entry.path: content_key(Path(entry.path).read_bytes()) for entry in entries}
        return Annotations(entries, [], {}, {}, keys)

    after, told, less = correct(annotations(ash), known, predictions, retained)
    lost = count - len(after.memory.keys)
    assert lost in (0, int(labelled.sum())) and len(less.members) == len(told.novelty) == count - lost
    assert (after.memory.classes == 0).any(), "something is left to hold on to"
    some, _, _ = correct(annotations(ash[:2]), known, predictions, retained)
    assert len(some.memory.keys) == count - 2
    right = [Entry(entry.path, classes[0].id) for entry in ash]
    assert len(correct(annotations(right), known, predictions, retained)[0].memory.keys) == count
    assert len(correct(annotations(birch[:1]), known, predictions, retained)[0].memory.keys) == count - 1


def test_too_few_usable_examples_leave_the_champion_alone(
    registry: Registry, teach: Callable[..., Outcome], photos: Photos, tmp_path: Path
) -> None:
    photos("told/oak", {3: 3})
    (tmp_path / "told" / "oak" / "torn.jpg").write_bytes(b"\xff\xd8 no photo")
    with pytest.raises(
        UserError, match="'oak' has 3 different photos that can be used, a new class needs 4"
    ) as caught:
        teach(photos("new", {0: 5}), tmp_path / "told")
    assert caught.value.code == 1 and registry.aliases() == {"champion": 1}


def test_what_is_asked_elsewhere_leaves_what_a_training_starts_with_in_place(registry: Registry) -> None:
    known = load_champion(open_bundle(registry.resolve("champion")))
    assert known.on(torch.device("cpu")) is known
    there = known.on(torch.device("meta"))
    assert there.parts is not None and there.scale is not None
    moved = [
        *there.model.parameters(), *there.parts.bank.to_tensors().values(), there.parts.projection.mean,
        there.parts.projection.basis, *there.scale,
    ]  # fmt: skip
    assert {str(each.device) for each in moved} == {"meta"}
    assert {str(each.device) for each in known.model.parameters()} == {"cpu"}
    assert known.parts is not None and str(known.parts.bank.mu.device) == "cpu"
