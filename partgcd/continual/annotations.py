"""What a person says of photos: folders of classes to train on, to score on, and of classes that nobody knew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.continual.champion import ChampionModel, Predictions
from partgcd.continual.growth import SMALLEST
from partgcd.continual.intake import Reader
from partgcd.continual.retained import Retained
from partgcd.data.catalog import Catalog, Role
from partgcd.data.decode import BrokenImage
from partgcd.data.ingest import ingest
from partgcd.data.listing import ALL_LABELLED, NO_LABELS, Entry, Listing
from partgcd.data.names import first_few
from partgcd.data.pixels import PixelStore
from partgcd.data.scan import scan
from partgcd.export.manifest import ClassEntry
from partgcd.registry.naming import checked_class_name, name_key

HeldOut = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Remembered(NamedTuple):
    """What a champion knows, its opinion of the images it remembers, and the classes that go on."""

    known: ChampionModel
    exemplars: Predictions
    retained: Retained


@dataclass(frozen=True)
class Annotations:
    """What a person says of photos.

    Attributes:
        entries: images of known classes to train on, absolute paths, with class ids for labels.
        held: likewise, to score on.
        lessons: images of each class that nobody knew, by the name that it is to have.
        unnamed: names of folders that come to nothing, as no class has them, by the option they came with.
        keys: content key by path, of every image to train on that can be opened.
        given_before: whether the same images of known classes were given to an earlier call.
        notes: lines on how the folders were read and what was left out there, each with its option.
    """

    entries: list[Entry]
    held: list[Entry]
    lessons: dict[str, list[Entry]]
    unnamed: dict[str, list[str]]
    keys: Mapping[str, int]
    given_before: bool = False
    notes: tuple[str, ...] = ()

    @property
    def asks_for_version(self) -> bool:
        """Whether it can be a reason for a new version where no photo is new."""
        return bool(self.lessons) or bool(self.entries and not self.given_before)

    def digest(self) -> str:
        """Of what is to be trained on: contents and classes, whatever the files are called."""
        by_name = {name: list(own) for name, own in self.lessons.items()}
        for entry in self.entries:
            by_name.setdefault(str(entry.label), []).append(entry)
        contents = {
            (name, self.keys[entry.path])
            for name, entries in by_name.items()
            for entry in entries
            if entry.path in self.keys
        }
        return hashlib.sha256(json.dumps(sorted(contents)).encode()).hexdigest()

    @property
    def images(self) -> int:
        """How many there are to train on."""
        return len(self.entries) + sum(len(own) for own in self.lessons.values())

    def left_out(self) -> str:
        """The folders that come to nothing, and what is to be known of the others, as the end of a line."""
        summary = ""
        for option, names in self.unnamed.items():
            what = "folder" if len(names) == 1 else "folders"
            words = first_few([f"'{name}'" for name in names])
            summary += f"; {len(names)} {what} of {option} ({words}) left out, as no class has the name"
            if option == "--labelled":
                summary += f" (--teach makes {'it one' if len(names) == 1 else 'them classes'})"
        return summary + "".join(f"; {note}" for note in self.notes)


def read_annotations(
    labelled: Path | None,
    holdout: Path | None,
    teaches: bool,
    names: Mapping[str, str],
    reader: Reader | None = None,
) -> Annotations:
    """Look through the folders that a person gives, and read the images that are to be trained on.

    Args:
        labelled, holdout: folders of class folders, to train and to score on.
        teaches: whether folders of ``labelled`` that name no class are classes that nobody knew.
        names: class id by what a folder may be called; `naming.ids_by_word` refuses words that mean several.
        reader: holds what it read for who decodes it.

    Raises:
        UserError: no such folder, no folder of it is named as a class, or what is to be a class can't be one.
    """
    if teaches and labelled is None:
        raise UserError("--teach needs --labelled: a folder with a folder of photos for each class")
    notes: list[str] = []
    entries, others = _class_folders("--labelled", labelled, names, teaches, notes) if labelled else ([], {})
    held, strange = _class_folders("--holdout", holdout, names, False, notes) if holdout else ([], {})
    lessons = others if teaches else {}
    alike: dict[str, str] = {}
    for name, own in lessons.items():
        if alike.setdefault(name_key(name), name) != name:
            both = f"'{alike[name_key(name)]}' and '{name}'"
            raise UserError(f"folders {both} name one class: put their photos into one folder")
        if checked_class_name(name) != name:
            raise UserError(f"folder '{name}' can't name a class: spaces at its ends or in a row")
        if len(own) < SMALLEST:
            raise UserError(f"'{name}' has {len(own)} photos, a new class needs {SMALLEST}")
    unnamed = {"--labelled": [] if teaches else list(others), "--holdout": list(strange)}
    left = {option: words for option, words in unnamed.items() if words}
    keys = _keys([*entries, *(entry for own in lessons.values() for entry in own)], reader or Reader())
    return Annotations(entries, held, lessons, left, keys, notes=tuple(notes))


def _class_folders(
    option: str, folder: Path, names: Mapping[str, str], others_do: bool, notes: list[str]
) -> tuple[list[Entry], dict[str, list[Entry]]]:
    """Images of known classes with ids for labels, and those of other class folders by the folder's name."""
    listing = scan(folder, names)
    notes += [f"{option}: {note}" for note in listing.notes if note not in (ALL_LABELLED, NO_LABELS)]
    silent = sum(entry.label is None for entry in listing.entries)
    if silent:
        notes.append(f"{option}: {silent} images without a label left out")
    found, others = [], dict[str, list[Entry]]()
    for entry in listing.entries:
        path = str(listing.root / entry.path)
        if entry.label is None:
            continue
        if entry.label in names:
            found.append(Entry(path, names[entry.label]))
        else:
            others.setdefault(entry.label, []).append(Entry(path))
    if not found and not (others and others_do):
        raise UserError(
            f"no folder of '{folder}' is named as a class: use ids or names of partgcd classes list"
            + ("" if others_do or not others else ", or --teach for new classes")
        )
    return found, dict(sorted(others.items()))


def held_out(entries: list[Entry], scratch: Path, settings: Settings, ids: list[str]) -> HeldOut:
    """Pixels [H, 3, S, S] and class [H] of the images that a person holds out.

    Args:
        scratch: folder for the decoded pixels.
        ids: of the classes by column; images of others are left out.
    """
    pixels, labels = _pixels(entries, scratch, settings)
    column = {name: index for index, name in enumerate(ids)}
    truth = np.array([column.get(label, -1) for label in labels], dtype=np.int64)
    return pixels[truth >= 0], truth[truth >= 0]


def correct(
    annotations: Annotations, known: ChampionModel, exemplars: Predictions, retained: Retained
) -> Remembered:
    """The same without the remembered images that a person gives to another class than the memory has them in.

    A class of which nothing would be left keeps all of it: there has to be something to hold on to.

    Args:
        exemplars: the champion's opinion of its memory.
    """
    given = {
        annotations.keys[entry.path]: entry.label
        for entry in annotations.entries
        if entry.path in annotations.keys
    }
    kept = np.ones(len(known.memory.keys), dtype=bool)
    for index, entry in enumerate(retained.classes):
        own = np.flatnonzero(retained.members == index)
        right = np.array([given.get(int(key), entry.id) == entry.id for key in known.memory.keys[own]])
        kept[own] = right | ~right.any()
    return _remembering(kept, known, exemplars, retained)


def count_unlearned(
    catalog: Catalog, answers: NDArray[np.int64], known: ChampionModel, retained: Retained
) -> int:
    """How many labelled images tell the champion something: it never saw them, or has another answer for them.

    Images that it remembers with that label are none of them: it was told, and did not learn it.

    Args:
        catalog: as `join_catalog` makes it.
        answers: [N] the champion's class of each of its images, by column of ``carried``.
    """
    memory = known.memory
    remembered = {
        int(key): int(column)
        for key, column, labelled in zip(memory.keys, retained.members, memory.labelled, strict=True)
        if labelled
    }
    seen = set(memory.seen.tolist())
    return sum(
        (key not in seen or answer != label) and remembered.get(key) != label
        for key, label, answer, role in zip(
            catalog.keys.tolist(),
            catalog.labels.tolist(),
            answers.tolist(),
            catalog.roles.tolist(),
            strict=True,
        )
        if role == Role.CORRECTED
    )


class Shown(NamedTuple):
    """Images by which a person shows classes that nobody knew: joint features [N, F], and each one's class id."""

    joint: NDArray[np.float32]
    ids: list[str]


def teach(
    lessons: Mapping[str, list[Entry]], ids: list[str], shown: Shown, reference: Remembered, keys: set[int]
) -> Remembered:
    """Make room for classes that a person shows: columns after those that go on, and a memory without their images.

    What was remembered as another class and is shown now is let go, and so is what no person labelled and lies
    nearer to the mean of a class that is shown than to that of its own. Every class keeps the nearest `SMALLEST`
    of those.

    Args:
        lessons: images of each class by its name; ``ids``: their ids, in that order.
        keys: content of all images of lessons.

    Returns:
        ``standing`` with less memory, and with the classes.

    Raises:
        UserError: a class has too few images that can be decoded.
    """
    known, exemplars, retained = reference
    counts = [shown.ids.count(each) for each in ids]
    for name, count in zip(lessons, counts, strict=True):
        if count < SMALLEST:
            raise UserError(
                f"'{name}' has {count} different photos that can be used, a new class needs {SMALLEST}", 1
            )
    means = _means(shown.joint, np.array([ids.index(each) for each in shown.ids]), len(ids))
    kept = _kept(known, exemplars, retained, means, keys)
    first = len(retained.classes)
    taught = [
        ClassEntry(index=first + index, id=each, name=name, kind="old", labelled=count, assigned=0)
        for index, (each, name, count) in enumerate(zip(ids, lessons, counts, strict=True))
    ]
    return _remembering(kept, known, exemplars, replace(retained, taught=taught))


def _remembering(
    kept: NDArray[np.bool_], known: ChampionModel, exemplars: Predictions, retained: Retained
) -> Remembered:
    """The same with the remembered images ``kept`` [M] alone."""
    return Remembered(
        replace(known, memory=known.memory.rows(kept)),
        exemplars.rows(torch.from_numpy(kept)),
        replace(retained, members=retained.members[kept]),
    )


def _keys(entries: list[Entry], reader: Reader) -> dict[str, int]:
    """Content key by path, of every image that can be opened."""
    keys: dict[str, int] = {}
    for entry in entries:
        with suppress(BrokenImage):
            keys[entry.path] = reader.key(Path(entry.path))
    return keys


def _kept(
    known: ChampionModel,
    exemplars: Predictions,
    retained: Retained,
    means: NDArray[np.float32],
    keys: set[int],
) -> NDArray[np.bool_]:
    """[M] whether an exemplar still stands for its class."""
    memory, joint = known.memory, exemplars.joint.numpy()
    shown = np.array([key in keys for key in memory.keys.tolist()], dtype=bool)
    kept = ~shown
    for index in range(len(retained.classes)):
        own = np.flatnonzero(retained.members == index)
        mean = _means(joint[own], np.zeros(len(own), dtype=np.int64), 1)[0]
        gap = joint[own] @ mean - (joint[own] @ means.T).max(axis=1)
        gap[memory.labelled[own]] = np.inf
        gap[shown[own]] = -np.inf
        go = gap < 0
        go[np.argsort(-gap, kind="stable")[:SMALLEST]] = False
        kept[own] = ~go
    return kept


def _means(rows: NDArray[np.float32], classes: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """[count, F] of unit norm."""
    means = torch.stack([torch.from_numpy(rows[classes == index]).mean(dim=0) for index in range(count)])
    return normalize(means, dim=1).numpy()


def _pixels(entries: list[Entry], scratch: Path, settings: Settings) -> tuple[NDArray[np.uint8], list[str]]:
    """Evaluation views [N, 3, S, S] of labelled images, and each one's label."""
    root = Path(entries[0].path).parent
    catalog = ingest(
        Listing(root, sorted(entries, key=lambda entry: entry.path), [], "told"), scratch, settings.data
    )
    pixels = PixelStore.open(scratch).centre(np.arange(len(catalog)), settings.data.image_size)
    return pixels, [catalog.label_names[label] for label in catalog.labels.tolist()]
