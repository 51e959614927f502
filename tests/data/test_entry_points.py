"""All ways into the program see the same images, and no labelled class is lost without a word: generated trees and
generated manifests. PARTGCD_EXAMPLES=500 tries so many of each."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from partgcd.cli.classify import find_images
from partgcd.config.errors import UserError
from partgcd.continual.annotations import read_annotations
from partgcd.continual.intake import look_through
from partgcd.data.names import clean_label, printable
from partgcd.data.scan import Listing, scan
from partgcd.data.spellings import tidy
from partgcd.data.splits import read_split
from partgcd.data.truth import read_truth
from partgcd.data.words import means_part

EXAMPLES = settings(max_examples=int(os.environ.get("PARTGCD_EXAMPLES", "40")), deadline=None)
NOBODY = np.zeros(0, np.uint64)

NAMES = [
    "cat", "dog", "Cat", "eel fish", "eel_fish", "é", "e\u0301", " lynx", "日本猫", "0", "1", "2020", "train", "test",
    "images", "photos", "unlabled", "unknown", "Unknown", "none", "to sort", "other", "labels", "@eaDir", "#recycle",
    ".hidden", "$RECYCLE.BIN", "a;b,c", 'quo"te', "new\nline", "caf\udce9", "x.jpg", "lost+found", "C", "%20", "-",
]  # fmt: skip
SYSTEM = ("@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found")
PHOTOS = ["a.jpg", "b.PNG", "c d.webp", "é.tif", "e\u0301 2.gif", "f.JPEG", "\udcff.bmp"]
OTHERS = ["notes.txt", "x.cr2", "Thumbs.db", "._a.jpg", ".b.jpg", "desktop.ini", "SYNOPHOTO_THUMB_S.jpg"]


@dataclass
class Tree:
    """A tree to write: photos, other files, empty folders, links; and the folders that a person means as classes."""

    photos: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)


@st.composite
def class_folders(draw: st.DrawFn, tree: Tree, top: str, least: int) -> None:
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=least, max_size=4, unique=True)):
        place = f"{top}{name}"
        tree.classes.add(place)
        kind = draw(st.sampled_from(["plain", "plain", "plain", "deep", "both", "lost", "empty", "system"]))
        if kind in ("plain", "both"):
            tree.photos |= {f"{place}/{each}" for each in draw(st.sets(st.sampled_from(PHOTOS), min_size=1))}
        if kind in ("deep", "both"):
            inner = draw(st.sets(st.sampled_from([*NAMES[:12], "unknown", "left"]), min_size=1, max_size=2))
            tree.photos |= {f"{place}/{each}/a.jpg" for each in inner}
        if kind == "lost":
            tree.others |= {f"{place}/{each}" for each in draw(st.sets(st.sampled_from(OTHERS), min_size=1))}
        if kind == "empty":
            tree.empty.add(place)
        if kind == "system":
            tree.photos.add(f"{place}/{draw(st.sampled_from(SYSTEM))}/thumb.jpg")


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree = Tree()
    top = draw(st.sampled_from(["", "", "", "photos/", "data/data/", "my set/", "set/x/images/"]))
    kind = draw(st.sampled_from(["classes", "classes", "labelled", "parts", "flat"]))
    if kind == "parts":
        parts = draw(
            st.lists(st.sampled_from(["train/", "Test/", "val/"]), min_size=1, max_size=3, unique=True)
        )
        for part in parts:
            draw(class_folders(tree, top + part, 0))
    elif kind != "flat":
        draw(class_folders(tree, top + ("labelled/" if kind == "labelled" else ""), 1))
    level = draw(st.sampled_from([top, ""]))
    beside = draw(st.sampled_from([None, "", "unlabelled/", "Unlabeled/x/", "unknown/", "to_sort/", "test/"]))
    if beside is not None:
        tree.photos |= {
            f"{level}{beside}{each}" for each in draw(st.sets(st.sampled_from(PHOTOS), min_size=1))
        }
    for each in draw(st.sets(st.sampled_from(OTHERS), max_size=3)):
        tree.others.add(f"{top}{each}")
    if draw(st.booleans()):
        tree.photos |= {
            f"{top}@eaDir/a.jpg/SYNOPHOTO_THUMB_S.jpg",
            ".thumbnails/1.jpg",
            f"{top}__MACOSX/a.jpg",
        }
    folders = sorted({above for path in tree.photos for above in _above(path) if is_plain(above)})
    for number in range(draw(st.integers(0, 2)) if folders else 0):
        tree.links[f"{draw(st.sampled_from(folders))}/link{number}"] = draw(st.sampled_from(folders))
    return tree


def is_plain(path: str) -> bool:
    return not any(part.startswith(".") or part in (*SYSTEM, "__MACOSX") for part in path.split("/"))


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def write(tree: Tree, root: Path) -> None:
    root.mkdir()
    files = {
        each for each in tree.photos | tree.others if not any(above in tree.photos for above in _above(each))
    }
    for path in sorted(files) + [f"{each}/" for each in tree.empty]:
        place = root / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/") and not place.is_dir():
            place.write_bytes(os.fsencode(path))
    for link, target in tree.links.items():
        if not (root / link).exists() and (root / target).is_dir():
            (root / link).symlink_to(root / target)


def visible(tree: Tree, root: Path) -> set[str]:
    """Real files that are photos: what a person would count."""
    return {path for path in tree.photos if (root / path).is_file() and is_plain(path)}


def places(listing: Listing) -> set[str]:
    return {str(listing.root / entry.path) for entry in listing.entries}


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def images_of(*words: object) -> set[str]:
    found = list(find_images([str(word) for word in words]))
    assert len(found) == len(set(found)), "each file once"
    return {str(path) for path in found}


@EXAMPLES
@given(trees())
def test_every_way_in_sees_the_same_images_of_a_tree(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve() / "root"
        note(f"{tree}")
        write(tree, root)
        wanted = visible(tree, root)
        found = look_through(root, NOBODY)
        kept = {os.path.realpath(root / entry.path) for entry in found.listing.entries}
        assert kept == {str(root / path) for path in wanted}
        try:
            listing = scan(root)
        except UserError as error:
            event("nothing there" if not wanted else "refused")
            assert "\n" not in str(error) and str(error).isprintable()
            if wanted:
                assert "beside others" in str(error) or "no class folders" in str(error), str(error)
                assert {os.path.realpath(path) for path in images_of(root)} == kept
            return
        assert images_of(root) == places(listing) and found.files == len(listing.entries)
        assert {os.path.realpath(path) for path in places(listing)} == kept
        assert [entry.path for entry in listing.entries] == sorted({entry.path for entry in listing.entries})
        event(listing.layout)
        nothing_is_lost(tree, listing)
        told_sees_the_same(root, listing, tree.classes)
        truth_finds_the_same(root, listing)


def nothing_is_lost(tree: Tree, listing: Listing) -> None:
    """Every folder that was meant as a class is a class, or a line has its name."""
    known = {entry.label for entry in listing.entries}
    for place in tree.classes:
        name = place.rpartition("/")[2]
        if clean_label(name) not in known and name not in known:
            one = [line for line in listing.notes if "one class each" in line]
            named = any(printable(name) in line for line in listing.notes)
            assert named or any(above in line for above in _above(place) for line in one), (
                place,
                listing.notes,
            )


def told_sees_the_same(root: Path, listing: Listing, classes: set[str]) -> None:
    """Who gives the folder with --labelled or --holdout, of classes that exist."""
    labelled = {str(root / entry.path): entry.label for entry in listing.entries if entry.label is not None}
    names = {str(label): f"c-{label}" for label in labelled.values()}
    if not names:
        return
    # A class may be called as a folder is that holds classes or parts: to who names classes that one is the class.
    others = {above for entry in listing.entries for above in _above(entry.path)}
    others -= {
        place for place in others if place in classes or any(above in classes for above in _above(place))
    }
    if {place.rpartition("/")[2] for place in others} & set(names) or any(map(means_part, names)):
        event("classes called as folders of classes")
        return
    try:
        annotations = read_annotations(root, root, False, names)
    except UserError as error:
        assert "may be one class or hold several" in str(error)
        event("unclear to who names classes")
        return
    for entries in (annotations.entries, annotations.held):
        assert {entry.path: entry.label for entry in entries} == {
            p: f"c-{label}" for p, label in labelled.items()
        }
    silent = len(listing.entries) - len(labelled)
    assert silent == 0 or "left out" in annotations.left_out()


def truth_finds_the_same(root: Path, listing: Listing) -> None:
    paths = [
        entry.path for entry in listing.entries if entry.path.encode(errors="replace").decode() == entry.path
    ]
    if not paths:
        return
    file = root.parent / "truth.csv"
    with file.open("w", newline="", encoding="utf-8-sig") as stream:
        csv.writer(stream).writerows([("path", "truth"), *((str(root / path), "x") for path in paths)])
    assert set(read_truth(file, listing.root, [entry.path for entry in listing.entries])) == set(paths)


# Manifests. Every file has a name of its own whatever its case, form and folder.
FILES = [
    "cat/0.jpg",
    "cat/1 a.JPG",
    "dog/café 2.png",
    "dog/sub/e\u0301 3.tif",
    "4.jpg",
    "日本/猫 5.webp",
    "x, y/6;.gif",
]
LABELS = {
    "": None, " ": None, "cat": "cat", " dog ": "dog", "b, c": "b, c", "é": "é", "e\u0301": "é", "unlabelled": None,
    "Unknown": None, "n/a": None, "NaN": None, "NONE": None, "no_label": None, "?": None, "other": "other",
    'say "x"': 'say "x"', "7": "7", "007": "007", "unknown 1": "unknown 1",
}  # fmt: skip


def spelt(path: str, how: str, root: Path) -> str:
    match how:
        case "exact":
            return path
        case "dot":
            return f"./{path}"
        case "backslashes":
            return path.replace("/", "\\")
        case "form":
            flipped = unicodedata.normalize("NFD", path)
            return flipped if flipped != path else unicodedata.normalize("NFC", path)
        case "case":
            return path.swapcase()
        case "blanks":
            return f" {path}\t"
        case "mark":
            return f"\ufeff{path}"
        case "quotes":
            return f"'{path}'"
        case "absolute":
            return str(root / path)
        case "address":
            return "file://" + quote(str(root / path))
        case "escaped":
            return quote(path)
        case "drive":
            return f"D:\\old\\{root.name}\\" + path.replace("/", "\\")
        case "moved":
            return f"/old/{root.name}/{path}"
        case "above":
            return f"{root.name}/{path}"
        case "bare":
            return str(Path(path).with_suffix(""))
    raise ValueError(how)


HOW = [
    "exact", "dot", "backslashes", "form", "case", "blanks", "mark", "quotes", "absolute", "address", "escaped",
    "drive", "moved", "above", "bare",
]  # fmt: skip
ROWS = st.lists(
    st.tuples(st.sampled_from(FILES), st.sampled_from(HOW), st.sampled_from(sorted(LABELS))),
    min_size=1, max_size=len(FILES), unique_by=lambda row: row[0],
)  # fmt: skip


@dataclass
class Dress:
    """How a table is written."""

    suffix: str
    path: str
    label: str
    separator: str
    end: str
    encoding: str
    quotes: int
    gap: str


DRESSES = st.builds(
    Dress,
    st.sampled_from([".csv", ".csv", ".CSV", ".tsv", ".parquet"]),
    st.sampled_from(["path", "Path ", "PATH", "file", "File Name", "image_path", "filename"]),
    st.sampled_from(["label", " Label", "class", "species", "category", "target", "y"]),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["", "", " "]),
)


def write_table(file: Path, dress: Dress, rows: list[tuple[str, str]], path: str, label: str) -> Path:
    if dress.suffix == ".parquet":
        columns = {
            path: [row[0] for row in rows],
            label: [row[1] or None for row in rows],
            "extra": [1] * len(rows),
        }
        pq.write_table(
            pa.table(
                columns, schema=pa.schema([(path, pa.string()), (label, pa.string()), ("extra", pa.int64())])
            ),
            file,
        )
        return file
    buffer = io.StringIO(newline="")
    gap = dress.gap if dress.quotes == csv.QUOTE_ALL else ""
    for row in [(path, label, "extra"), *((*row, "1") for row in rows)]:
        cells = io.StringIO(newline="")
        csv.writer(cells, delimiter=dress.separator, quoting=dress.quotes, lineterminator="").writerow(row)  # type: ignore[arg-type]
        line = cells.getvalue()
        if gap:
            line = line.replace(f'"{dress.separator}"', f'"{dress.separator}{gap}"')
        buffer.write(line + dress.end)
    file.write_bytes(buffer.getvalue().encode(dress.encoding))
    return file


@EXAMPLES
@given(ROWS, DRESSES)
def test_every_way_in_finds_the_files_of_a_manifest(rows: list[tuple[str, str, str]], dress: Dress) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve() / "set"
        for path in FILES:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(path.encode())
        written = [(spelt(path, how, root), label) for path, how, label in rows]
        wanted = {path: LABELS[label] for path, _, label in rows}
        file = write_table(root / f"m{dress.suffix}", dress, written, dress.path, dress.label)
        listing = scan(file)
        assert {entry.path: entry.label for entry in listing.entries} == wanted, (written, listing.notes)
        event(dress.suffix.lower())
        notes = "\n".join(listing.notes)
        assert "columns not used: extra" in notes
        for path, how, label in rows:
            assert LABELS[label] is not None or not label.strip() or label.strip() in notes
            plain = tidy(spelt(path, how, root)) in (path, str(root / path))
            assert plain or "written otherwise" in notes
        found = look_through(file, NOBODY)
        assert {entry.path for entry in found.listing.entries} == set(wanted) and found.unreadable == 0
        labelled = {path: label for path, label in wanted.items() if label is not None}
        if labelled:
            names = {str(label): f"c-{label}" for label in labelled.values()}
            annotations = read_annotations(file, file, False, names)
            assert {entry.path for entry in annotations.entries} == {str(root / path) for path in labelled}
            truth = write_table(root.parent / f"t{dress.suffix}", dress, written, dress.path, "truth")
            assert read_truth(truth, root, FILES) == labelled
        with (
            working_in(root),
            mock.patch("sys.stdin", io.StringIO("".join(f"{each}\n" for each, _ in written))),
        ):
            assert {str(path) for path in find_images(["-"])} == {
                str(root / path) if how == "absolute" else path for path, how, _ in rows
            }
        split = root.parent / "split.json"
        known = Listing(root, scan_of(FILES, root).entries, [], "manifest")
        split.write_text(
            json.dumps({"old_classes": ["x"], "labelled": [each for each, _ in written]}), "utf-8"
        )
        kept, _ = read_split(split, known)
        assert {entry.path for entry in kept.entries if entry.label} == set(wanted)


def scan_of(paths: list[str], root: Path) -> Listing:
    file = root.parent / "all.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("path", "label"), *((path, "x") for path in paths)])
    listing = scan(file.rename(root / "all.csv"))
    assert [entry.path for entry in listing.entries] == sorted(paths)
    return listing
