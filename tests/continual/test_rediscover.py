from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.backbone import load as loading
from partgcd.config.errors import UserError
from partgcd.continual import intake
from partgcd.continual.annotations import Annotations, read_annotations
from partgcd.continual.attempts import new_since
from partgcd.continual.champion import load_champion
from partgcd.continual.gate import Margins
from partgcd.continual.rediscover import rediscover
from partgcd.continual.request import Outcome, Request
from partgcd.continual.retrain import LOGIT_ADJUSTMENT
from partgcd.data import decode as decoder
from partgcd.data import ingest as ingesting
from partgcd.discovery import setup as setting_up
from partgcd.export import source
from partgcd.export.bundle import WEIGHTS, open_bundle, read_tensors
from partgcd.registry.edits import merge, rename, split
from partgcd.registry.naming import ids_by_word
from partgcd.registry.roster import list_classes
from partgcd.registry.serve import load_predictor
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder

Photos = Callable[..., Path]
LENIENT = Margins(1.0, 1.0, 1.0, 0.0)


@pytest.fixture
def look(registry: Registry, quick_export: None) -> Callable[..., Outcome]:
    """Runs a rediscovery with the smallest settings."""

    def call(folder: Path, **changes: object) -> Outcome:
        request = Request(
            registry.path, folder, classes=1, epochs=2, margins=LENIENT, train={"device": "cpu", "threads": 1}
        )
        return rediscover(replace(request, **changes))

    return call


def test_new_photos_become_the_next_version_and_ids_stay(
    registry: Registry, look: Callable[..., Outcome], photos: Photos
) -> None:
    before = [row.id for row in list_classes(registry)]
    rename(registry, before[0], "the old one")
    outcome = look(photos("new", {0: 6, 4: 10}))
    assert outcome.code == 0 and outcome.version == 2, outcome.summary
    assert registry.aliases() == {"champion": 2, "previous": 1}
    version = registry.version("champion")
    assert version.record["parent"] == 1 and version.class_ids[:3] == before
    assert len(version.class_ids) in (3, 4) and version.class_ids[3:] not in before
    assert next(row.name for row in list_classes(registry) if row.id == before[0]) == "the old one"
    changes = json.loads((version.path / "changes.json").read_text())
    assert changes["photos"]["new"] == 16 and changes["parent"] == 1
    page = (version.path / "changes.html").read_text()
    assert "new photos" in page and "data:image/jpeg" in page and "http" not in page.replace("http-equiv", "")
    assert registry.verify() == [] and not registry.work.exists()
    assert look(tmp(registry) / "new").summary.startswith("nothing new")
    found = load_predictor(registry.path, 1).classify([tmp(registry) / "new" / "4-500.png"])
    assert found[0].version == version.record["bundle"]
    # Answers lean to the two classes that people labelled, away from what was discovered then and now.
    logit_adjustment = read_tensors(open_bundle(version.bundle), WEIGHTS)["lean"]
    assert logit_adjustment.tolist() == pytest.approx(
        [0.0, 0.0] + [-LOGIT_ADJUSTMENT] * (len(version.class_ids) - 2)
    )
    known = load_champion(open_bundle(version.bundle))
    assert known.model.logit_adjustment is None, "what training goes on from does not"
    assert known.served().model.logit_adjustment.tolist() == logit_adjustment.tolist()


def test_plain_fine_tuning_neither_holds_on_nor_leans(
    registry: Registry, look: Callable[..., Outcome], photos: Photos
) -> None:
    assert look(photos("new", {0: 6, 4: 10})).version == 2
    assert "lean" in read_tensors(open_bundle(registry.version("champion").bundle), WEIGHTS)
    outcome = look(photos("more", {1: 6, 5: 10}), replay=False, promote="always")
    assert outcome.version == 3, outcome.summary
    assert "lean" not in read_tensors(open_bundle(registry.version("champion").bundle), WEIGHTS)


def tmp(registry: Registry) -> Path:
    return registry.path.parent


def untouched(registry: Registry, champion: str) -> None:
    assert registry.verify() == [] and registry.aliases() == {"champion": 1}
    assert registry.version("champion").record["bundle"] == champion
    assert not registry.work.exists()


def noise(folder: Path, count: int) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(draw.integers(0, 256, (90, 90, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def corrupt(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(b"\xff\xd8 no photo %d" % number)
    return folder


def copies(folder: Path, photo: Path, count: int) -> Path:
    folder.mkdir()
    shutil.copy(photo, folder / "0.png")
    for number in range(1, count):
        (folder / f"{number}.png").hardlink_to(folder / "0.png")
    return folder


def test_poisoned_arrivals_have_a_clear_outcome_each(
    registry: Registry, look: Callable[..., Outcome], photos: Photos, trained: RunFolder
) -> None:
    champion, root = registry.version("champion").record["bundle"], tmp(registry)
    old = shutil.copytree(trained.path.parent / "photos", root / "old")
    told = look(old).summary
    assert told.startswith("nothing new: 32 seen before")
    untouched(registry, champion)
    outcome = look(copies(root / "copies", photos("one", {4: 1}) / "4-500.png", 10_000), classes=None)
    assert outcome.code == 0 and outcome.summary == "1 new photos are too few for a class (4 are needed)"
    untouched(registry, champion)
    outcome = look(root / "one", classes=None)
    assert outcome.code == 0 and outcome.summary.startswith("nothing new since"), (
        "the same photo, looked at before"
    )
    outcome = look(noise(root / "noise", 30), classes=None)
    assert (
        outcome.code == 0
        and "0 new photos are too few" in outcome.summary
        and "30 blank or noise" in outcome.summary
    )
    untouched(registry, champion)
    with pytest.raises(UserError, match="none of 12 new photos can be used") as failed:
        look(corrupt(root / "corrupt", 12))
    assert failed.value.code == 1
    assert registry.verify() == [] and registry.aliases() == {"champion": 1}


def test_a_schedule_counts_what_came_since_the_last_look(
    registry: Registry, look: Callable[..., Outcome], photos: Photos
) -> None:
    folder = photos("inbox", {0: 2})
    assert new_since(registry, folder) == 2
    assert "too few" in look(folder, classes=None).summary
    assert new_since(registry, folder) == 0
    photos("inbox", {1: 1}, 900)
    assert new_since(registry, folder) == 1


def test_a_schedule_counts_what_people_labelled_until_a_look_has_heard_it(
    registry: Registry, look: Callable[..., Outcome], photos: Photos, tmp_path: Path
) -> None:
    folder = photos("inbox", {0: 2})

    def annotations() -> Annotations:
        return read_annotations(tmp_path / "told", None, True, ids_by_word(registry))

    photos("told/oak", {4: 5})
    assert new_since(registry, folder, annotations()) == 2 + 5
    assert look(folder, classes=None, labelled=tmp_path / "told", teach=True, promote="never").version == 2
    assert new_since(registry, folder, annotations()) == 0
    photos("told/oak", {4: 2}, 900)
    assert new_since(registry, folder, annotations()) == 2
    (tmp_path / "told/oak/4-500.png").unlink()
    assert new_since(registry, folder, annotations()) == 1, "another word is one, however few images it is of"


def test_what_fails_the_gate_is_kept_as_candidate_and_people_decide(
    registry: Registry, look: Callable[..., Outcome], photos: Photos
) -> None:
    strict = Margins(coherence=1.01)
    outcome = look(photos("new", {0: 6, 4: 10}), margins=strict, promote="gate")
    if outcome.new_classes:
        assert outcome.code == 3 and "not promoted" in outcome.summary and "are in it too" in outcome.summary
    assert registry.aliases()["champion"] == (1 if outcome.code else 2)
    assert registry.verify() == []


def test_peoples_images_are_trained_on_and_folders_of_no_class_are_told(
    registry: Registry, look: Callable[..., Outcome], photos: Photos, tmp_path: Path
) -> None:
    _, birch, third = (row.id for row in list_classes(registry))
    merge(registry, birch, third)
    assert ids_by_word(registry)[third] == birch == ids_by_word(registry)["birch"]
    new = photos("new", {0: 6, 4: 10})
    alone = look(new, promote="never")
    for folder, kinds in (
        ("told/ash", {0: 3}),
        (f"told/{third}", {2: 2}),
        ("told/oak", {3: 1}),
        ("held/elm", {3: 1}),
    ):
        photos(folder, kinds)
    photos("held/birch", {1: 2})
    outcome = look(new, promote="never", labelled=tmp_path / "told", holdout=tmp_path / "held")
    assert (
        "1 folder of --labelled ('oak') left out" in outcome.summary
        and "--holdout ('elm')" in outcome.summary
    )
    assert "left out" not in alone.summary
    counts = [
        json.loads((registry.version(str(each.version)).path / "changes.json").read_text())["photos"][
            "replayed"
        ]
        for each in (alone, outcome)
    ]
    assert counts[1] == counts[0] + 5


def test_a_merge_and_a_split_are_built_into_the_next_version(
    registry: Registry, look: Callable[..., Outcome], photos: Photos
) -> None:
    ash, birch, third = (row.id for row in list_classes(registry))
    merge(registry, birch, third)
    children = [child["id"] for child in split(registry, ash)["children"]]
    rename(registry, children[0], "ash in leaf")
    outcome = look(photos("new", {0: 6, 4: 10}), promote="always")
    known = registry.version("champion").class_ids
    assert outcome.code == 0 and {*children, birch} <= set(known) and ash not in known and third not in known
    rows = {row.id: row for row in list_classes(registry)}
    assert rows[third].status == "merged" and rows[ash].status == "split"
    assert rows[children[0]].name == "ash in leaf" and rows[children[0]].status == "active"
    answer = load_predictor(registry.path, 1).classify([tmp(registry) / "new" / "0-500.png"], top_k=99)[0]
    assert {choice.id for choice in answer.top} == set(known)  # type: ignore[union-attr]


def test_each_photo_is_read_and_decoded_once_and_the_backbone_loaded_once(
    registry: Registry, look: Callable[..., Outcome], photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New photos, ones of known classes, and ones that teach a class: none is opened a second time."""
    new = photos("new", {0: 6, 4: 10})
    for kind, name in ((0, "ash"), (1, "birch"), (5, "cedar")):
        photos(f"labelled/{name}", {kind: 5}, 900)
    read, decoded, loaded = Counter[Path](), [0], [0]
    real_read, real_decode, real_load = decoder.read_image, decoder.decoded, loading.load_backbone

    def reading(path: Path, *more: Any) -> bytes:
        read[path] += 1
        return real_read(path, *more)

    def decoding(*words: Any) -> Any:
        decoded[0] += 1
        return real_decode(*words)

    def counting(*words: Any) -> Any:
        loaded[0] += 1
        return real_load(*words)

    for place in (intake, ingesting):
        monkeypatch.setattr(place, "read_image", reading)
    monkeypatch.setattr(ingesting, "decoded", decoding)
    for place in (source, setting_up):
        monkeypatch.setattr(place, "load_backbone", counting)
    outcome = look(new, labelled=tmp(registry) / "labelled", teach=True, promote="always")
    assert outcome.code == 0, outcome.summary
    assert len(read) == 31 and set(read.values()) == {1}
    assert decoded == [31] and loaded == [1]
