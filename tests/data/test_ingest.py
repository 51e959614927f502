from __future__ import annotations

import csv
import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings
from partgcd.data import ingest as ingesting
from partgcd.data.catalog import Broken, Catalog, Duplicate
from partgcd.data.ingest import ingest
from partgcd.data.pixels import PixelStore, planes, resize
from partgcd.data.scan import scan

SETTINGS = DataSettings(image_size=32, crop_ratio=0.8)
ANY = DataSettings(image_size=32, crop_ratio=0.8, max_broken=1.0)


def image(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(
        rng.integers(0, 256, (int(rng.integers(20, 70)), int(rng.integers(20, 70)), 3), np.uint8)
    )


def fill(root: Path, **seeds: int | bytes) -> Path:
    """Files by name ('__' is a folder's '/'): a picture for a number, else the bytes."""
    for name, what in seeds.items():
        path = root / (name.replace("__", "/") + ".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(what) if isinstance(what, bytes) else image(what).save(path)
    return root


def some(root: Path, count: int = 12) -> Path:
    return fill(root, **{f"c{number % 3}__i{number:02}": number for number in range(count)})


def test_rows_are_in_path_order_with_keys_sizes_and_labels(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", dog__a=1, cat__b=2, unlabelled__c=3)
    seen: list[tuple[int, int]] = []
    catalog = ingest(scan(data), tmp_path / "run" / "store", SETTINGS, lambda *done: seen.append(done))
    assert catalog.paths == ["cat/b.png", "dog/a.png", "unlabelled/c.png"]
    assert catalog.label_names == ["cat", "dog"] and catalog.labels.tolist() == [0, 1, -1]
    digest = hashlib.sha256((data / "dog/a.png").read_bytes()).digest()
    assert int(catalog.keys[1]) == int.from_bytes(digest[:8], "big")
    assert [tuple(size) for size in catalog.sizes] == [image(2).size, image(1).size, image(3).size]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    store = PixelStore.open(tmp_path / "run" / "store")
    for row, seed in enumerate((2, 1, 3)):
        wanted = planes(resize(image(seed), SETTINGS))
        assert store.shape(np.array([row])).tolist() == [list(wanted.shape[1:])]
        alone = PixelStore(wanted.ravel(), np.array([[0, *wanted.shape[1:]]]))
        assert (store.centre(np.array([row]), 40) == alone.centre(np.array([0]), 40)).all()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["quarantine.csv", "store"]


def test_the_result_does_not_depend_on_threads(tmp_path: Path) -> None:
    listing = scan(some(tmp_path / "data", 30))
    one = ingest(listing, tmp_path / "one" / "store", SETTINGS, threads=1)
    many = ingest(listing, tmp_path / "many" / "store", SETTINGS, threads=7)
    assert one.digest() == many.digest()
    for name in ("pixels.u8", "index.npy"):
        assert (tmp_path / "one/store" / name).read_bytes() == (tmp_path / "many/store" / name).read_bytes()


def test_only_a_few_images_are_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = scan(some(tmp_path / "data", 40))
    started = 0
    real, lock = ingesting._look, threading.Lock()

    def counted(*arguments: Any) -> Any:
        nonlocal started
        with lock:
            started += 1
        return real(*arguments)

    monkeypatch.setattr(ingesting, "_look", counted)

    def check(done: int, total: int) -> None:
        assert started <= done + 4 and total == 40

    ingest(listing, tmp_path / "store", SETTINGS, check, threads=2)


def test_duplicates_keep_the_labelled_copy_else_the_first(tmp_path: Path) -> None:
    data = fill(
        tmp_path / "data",
        unlabelled__a=1,
        zebra__b=1,
        unlabelled__c=2,
        unlabelled__d=2,
        ant__e=3,
        bee__f=3,
        bee__g=3,
        bee__h=4,
    )
    catalog = ingest(scan(data), tmp_path / "store", SETTINGS)
    assert catalog.paths == ["ant/e.png", "bee/h.png", "unlabelled/c.png", "zebra/b.png"]
    assert catalog.duplicates == [
        Duplicate("bee/f.png", "ant/e.png"),
        Duplicate("bee/g.png", "ant/e.png"),
        Duplicate("unlabelled/a.png", "zebra/b.png"),
        Duplicate("unlabelled/d.png", "unlabelled/c.png"),
    ]
    assert any(
        "2 copies have another label" in note and "ant/e.png (ant) = bee/f.png (bee)" in note
        for note in catalog.notes
    )
    store = PixelStore.open(tmp_path / "store")
    for row, seed in enumerate((3, 4, 2, 1)):
        assert store.shape(np.array([row]))[0].tolist() == list(
            planes(resize(image(seed), SETTINGS)).shape[1:]
        )


def test_broken_images_are_listed_and_nothing_takes_their_place(tmp_path: Path) -> None:
    data = some(tmp_path / "data")
    fill(data, c0__empty=b"", c1__text=b"no image", lost__all=b"")
    (data / "c2" / "gone.jpg").symlink_to("nowhere")
    (data / os.fsdecode(b"c2/\xff.png")).write_bytes((data / "c0/i00.png").read_bytes())
    (data / "c2" / "new\nline.jpg").write_bytes(b"")
    catalog = ingest(scan(data), tmp_path / "store", ANY)
    assert len(catalog) == 12 and len(set(catalog.paths)) == 12
    assert catalog.broken == [
        Broken("c0/empty.png", "empty file"),
        Broken("c1/text.png", "not an image, or in a format that is not read"),
        Broken("c2/gone.jpg", "file not found"),
        Broken("c2/new\nline.jpg", "empty file"),
        Broken("c2/\\udcff.png", "file name is not UTF-8: rename it"),
        Broken("lost/all.png", "empty file"),
    ]
    assert any("classes without a usable image are dropped: lost" in note for note in catalog.notes)
    with (tmp_path / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        assert [tuple(row) for row in csv.reader(file)][1:] == [
            (each.path, each.reason) for each in catalog.broken
        ]
    assert Catalog.load(tmp_path / "store").broken == catalog.broken


def test_missing_files_of_a_manifest_are_broken(tmp_path: Path) -> None:
    some(tmp_path / "data", 3)
    (tmp_path / "m.csv").write_text(
        f"path,label,truth\nnone.jpg,a,\n{tmp_path}/data/c0/i00.png,a,\ndata/c1/i01.png,,b\n"
    )
    catalog = ingest(scan(tmp_path / "m.csv"), None, ANY)
    assert catalog.broken == [Broken("none.jpg", "file not found")]
    assert catalog.paths == ["data/c0/i00.png", "data/c1/i01.png"] and catalog.label_names == ["a"]


@pytest.mark.parametrize("good, share", [(9, "10.0%"), (0, "100.0%")])
def test_too_many_broken_images_stop_with_a_full_quarantine(tmp_path: Path, good: int, share: str) -> None:
    data = fill(some(tmp_path / "data", good) if good else tmp_path / "data", x__broken=b"text")
    with pytest.raises(UserError) as caught:
        ingest(scan(data), tmp_path / "run" / "store", SETTINGS)
    message = str(caught.value)
    assert caught.value.code == 1 and "\n" not in message
    for part in (share, "5.0%", "x/broken.png (not an image", str(tmp_path / "run" / "quarantine.csv")):
        assert part in message
    assert "x/broken.png" in (tmp_path / "run" / "quarantine.csv").read_text()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["quarantine.csv"]


def test_everything_broken_stops_whatever_the_limit_but_may_be_looked_at(tmp_path: Path) -> None:
    listing = scan(fill(tmp_path / "data", a=b"x", b=b"y"))
    with pytest.raises(UserError, match="2 of 2 images"):
        ingest(listing, tmp_path / "store", ANY)
    (tmp_path / "quarantine.csv").unlink()
    catalog = ingest(listing, None, SETTINGS)
    assert len(catalog) == 0 and len(catalog.broken) == 2 and catalog.sizes.shape == (0, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_looking_agrees_with_storing(tmp_path: Path) -> None:
    listing = scan(some(tmp_path / "data"))
    assert ingest(listing, None, SETTINGS).digest() == ingest(listing, tmp_path / "store", SETTINGS).digest()


def test_a_finished_store_is_used_again_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = some(tmp_path / "data")
    store = tmp_path / "store"
    first = ingest(scan(data), store, SETTINGS)
    looks = 0
    real = ingesting.decoded

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return real(*arguments)

    monkeypatch.setattr(ingesting, "decoded", counted)
    again = ingest(scan(data), store, SETTINGS)
    assert looks == 0 and again.digest() == first.digest() and again.root == first.root
    ingest(scan(data), store, SETTINGS.model_copy(update={"max_broken": 0.5}))
    assert looks == 0
    fill(data, c0__i00=77)
    os.utime(data / "c0/i00.png", (1, 1))
    changed = ingest(scan(data), store, SETTINGS)
    assert looks == 12 and changed.digest() != first.digest()
    ingest(scan(data), store, SETTINGS.model_copy(update={"image_size": 48}))
    assert looks == 24 and PixelStore.open(store).shape(np.array([0])).min() == 60
    (data / "c0/i00.png").rename(data / "c1/moved.png")
    assert ingest(scan(data), store, SETTINGS).labels.tolist() != first.labels.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "quarantine.csv", "store"]


@pytest.mark.parametrize(
    "number, message", [(errno.ENOSPC, "no space left for the pixel store"), (errno.EIO, "cannot write")]
)
def test_a_failing_disk_is_one_clear_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    data = some(tmp_path / "data")
    ingest(scan(data), tmp_path / "run" / "store", SETTINGS)
    fill(data, c0__new=99)
    written = 0

    def full(file: Any, pixels: Any) -> int:
        nonlocal written
        written += 1
        if written > 5:
            raise OSError(number, os.strerror(number))
        return file.write(pixels.data)

    monkeypatch.setattr(ingesting, "_append", full)
    with pytest.raises(UserError, match=message) as caught:
        ingest(scan(data), tmp_path / "run" / "store", SETTINGS)
    assert caught.value.code == 1
    assert len(PixelStore.open(tmp_path / "run" / "store")) == 12, "the finished store is still there"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["quarantine.csv", "store"]


def test_an_interrupt_leaves_no_half_store(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(scan(some(tmp_path / "data")), tmp_path / "run" / "store", SETTINGS, stop)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_is_no_store_is_not_overwritten(tmp_path: Path) -> None:
    listing = scan(some(tmp_path / "data"))
    fill(tmp_path / "mine", precious=1)
    with pytest.raises(UserError, match="is no pixel store"):
        ingest(listing, tmp_path / "mine", SETTINGS)
    assert (tmp_path / "mine/precious.png").exists()
    (tmp_path / "empty").mkdir()
    assert len(ingest(listing, tmp_path / "empty", SETTINGS)) == 12


def test_the_malformed_corpus_is_sorted_into_rows_and_quarantine(
    malformed_corpus: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, expectations = malformed_corpus
    (folder / "zeros.tif").rename(folder / "zeros.TIF")
    expectations["zeros.TIF"] = expectations.pop("zeros.tif")
    catalog = ingest(scan(folder), tmp_path / "run" / "store", ANY, threads=3)
    good = {name for name, expected in expectations.items() if expected.pixels is not None}
    assert set(catalog.paths) == good and not catalog.duplicates
    assert {each.path for each in catalog.broken} == set(expectations) - good
    for row, path in enumerate(catalog.paths):
        height, width, _ = expectations[path].pixels.shape
        assert catalog.sizes[row].tolist() == [width, height], path


def test_pictures_of_one_colour_are_told(tmp_path: Path) -> None:
    data = some(tmp_path / "data")
    for name, colour in (("c0/flat.png", "grey"), ("c1/white.png", "white")):
        Image.new("RGB", (50, 40), colour).save(data / name)
    almost = Image.new("RGB", (50, 40), "grey")
    almost.putpixel((33, 21), (0, 0, 0))
    almost.save(data / "c1/almost.png")
    for folder in (tmp_path / "store", None, tmp_path / "store"):
        catalog = ingest(scan(data), folder, SETTINGS)
        assert "2 images are one flat colour: c0/flat.png, c1/white.png" in catalog.notes
