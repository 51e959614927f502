from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.report.build import (
    IMAGE_CHARACTERS,
    build_report,
    choose,
    duration,
    middle,
    percent,
    sentence,
    visible,
)
from partgcd.report.read import read_run

Pixels = Callable[[list[int]], NDArray[np.uint8]]
VOID = {"meta", "img", "input", "br", "link", "hr"}


class Page(HTMLParser):
    """Collects what a browser would see: elements, attributes, text; and tags that do not nest."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def noise(rows: list[int]) -> NDArray[np.uint8]:
    """The worst images for a JPEG."""
    return np.random.default_rng(rows[0]).integers(0, 256, (len(rows), 3, 112, 112), dtype=np.uint8)


def test_full_run_has_every_section(full_run: Path, colours: Pixels) -> None:
    file = build_report(full_run, None, colours)
    page = Page(file)
    assert file == full_run / "report.html"
    sections = {
        "found", "accuracy", "categories", "sizes", "map", "training",
        "quarantine", "duplicates", "notes", "settings", "environment",
    }  # fmt: skip
    assert sections <= set(page.ids)
    assert page.open == []
    assert "6 categories: 3 you named, 3 discovered; 90 images, 3 could not be read" in page.words
    assert "all unlabelled training images (392)" in page.words
    assert "ViT-S/16 trained on ImageNet-21k with labels, then distilled" in page.words
    assert "2 files are not images and were passed over" in page.words
    assert len(page.all("article")) == 6
    assert len(page.all("svg")) == 4
    assert not (full_run / "report.html.tmp").exists()


def test_links_inside_the_page_lead_somewhere_and_ids_are_unique(full_run: Path, colours: Pixels) -> None:
    page = Page(build_report(full_run, None, colours))
    assert len(page.ids) == len(set(page.ids))
    targets = {link["href"].removeprefix("#") for link in page.all("a")}
    assert targets <= set(page.ids)


def test_page_needs_no_network(full_run: Path, colours: Pixels) -> None:
    page = Page(build_report(full_run, None, colours))
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:image/")), attributes
    assert "link" not in {tag for tag, _ in page.elements}
    assert not re.search(r"@import|url\(\s*['\"]?http", file_text(full_run))
    policy = next(m["content"] for m in page.all("meta") if "content" in m and "default-src" in m["content"])
    assert "default-src 'none'" in policy


def test_every_picture_has_words(full_run: Path, colours: Pixels) -> None:
    page = Page(build_report(full_run, None, colours))
    images = page.all("img")
    assert len(images) == 6 * (8 + 4 + 3)
    assert all(image["alt"] and "photo" in image["title"] for image in images)
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in page.all("svg"))


def test_discovered_categories_come_first_and_largest_first(
    make_run: Callable[..., Path], tmp_path: Path, colours: Pixels
) -> None:
    sizes = [9, 4, 2, 7]
    paths = [[f"{c}/{i}.jpg" for i in range(size)] for c, size in enumerate(sizes)]
    run = make_run(tmp_path / "run", ["a", "b", "small", "large"], 2, paths)
    text = Page(build_report(run, None, colours)).words
    heads = ("large discovered", "small discovered", "a named by you", "b named by you")
    order = [text.index(head) for head in heads]
    assert order == sorted(order)


def test_minimal_run_renders_and_says_what_it_lacks(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["g1", "g2"], 0, [["x.jpg", "y.jpg"], ["z.jpg"]], full=False)
    page = Page(build_report(run))
    assert "2 categories, all discovered; 3 images, all readable" in page.words
    assert "Not known: nobody told this run the true categories" in page.words
    for missing in ("Pictures:", "Part maps:", "Map of the images:", "Training curves:"):
        assert f"Not in this report — {missing}" in page.words
    assert not {"map", "training", "quarantine", "duplicates", "settings"} & set(page.ids)
    assert page.all("img") == []


def test_names_cannot_become_markup(make_run: Callable[..., Path], tmp_path: Path, colours: Pixels) -> None:
    evil = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\n\"' $x^2$ NAME0NAME"
    rng = np.random.default_rng(0)
    run = make_run(
        tmp_path / "run", [evil, evil + "2"], 1, [[f"{evil}/{i}.jpg" for i in range(6)], [f"{evil}.png"] * 1],
        features=rng.normal(size=(7, 5)),
    )  # fmt: skip
    record = json.loads((run / "run.json").read_text()) | {"id": evil, "data": evil}
    record["backbone"]["lineage"] = evil
    (run / "run.json").write_text(json.dumps(record))
    (run / "config.yaml").write_text(f"a: '{evil}'")
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation |= {"set": evil, "heads": {evil: evaluation["v2"]}}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    page = Page(build_report(run, None, colours))
    assert page.open == []
    assert len(page.all("script")) == 1
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert "<script>alert(1)</script>.png" in page.words  # the quarantined file's name, as text
    assert "Melon/cut\\nshort.jpg" in page.words
    assert all("\n" not in image["title"] for image in page.all("img"))


def test_page_of_many_categories_stays_below_15_mb_and_says_what_it_left_out(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    paths = [[f'{"long folder name/" * 20}{c}/{i} ".jpg' for i in range(15)] for c in range(100)]
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(5), size=(1500, 16))
    names = [f"name {c} " + "&" * 300 for c in range(100)]
    run = make_run(tmp_path / "run", names, 50, paths, maps=maps)
    file = build_report(run, None, noise)
    assert IMAGE_CHARACTERS * 0.8 < file.stat().st_size < 15_000_000
    assert re.search(r"only the first \d\d of 100 categories show pictures", Page(file).words)


def test_more_than_100_categories_show_fewer_images_each(
    make_run: Callable[..., Path], tmp_path: Path, colours: Pixels
) -> None:
    paths = [[f"{c}/{i}.jpg" for i in range(9)] for c in range(101)]
    page = Page(
        build_report(make_run(tmp_path / "r", [f"c{c}" for c in range(101)], 9, paths), None, colours)
    )
    assert len(page.all("img")) == 101 * (4 + 2)
    assert "each shows at most 4 typical and 2 borderline images" in page.words


def test_512_images_take_less_than_20_seconds_of_one_core(
    make_run: Callable[..., Path], tmp_path: Path, colours: Pixels
) -> None:
    rng = np.random.default_rng(0)
    paths = [[f"{c}/{i}.jpg" for i in range(32)] for c in range(16)]
    run = make_run(
        tmp_path / "run", [f"c{c}" for c in range(16)], 8, paths,
        features=rng.normal(size=(512, 64)), maps=rng.dirichlet(np.ones(4), size=(512, 196)),
    )  # fmt: skip
    began = time.process_time()
    build_report(run, None, colours)
    assert time.process_time() - began < 20


def test_same_run_gives_the_same_bytes(full_run: Path, colours: Pixels, tmp_path: Path) -> None:
    first = build_report(full_run, tmp_path / "a.html", colours).read_bytes()
    assert build_report(full_run, tmp_path / "b.html", colours).read_bytes() == first


def test_out_may_be_a_folder(unmapped_run: Path, tmp_path: Path, colours: Pixels) -> None:
    assert build_report(unmapped_run, tmp_path, colours) == tmp_path / "report.html"


def test_pixels_come_from_the_store_as_the_evaluation_view(
    unmapped_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.data.pixels import PixelStore

    asked: list[int] = []

    class Store:
        def centre(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
            asked.append(size)
            return np.zeros((len(rows), 3, size, size), np.uint8)

    monkeypatch.setattr(PixelStore, "open", lambda folder: Store())
    (unmapped_run / "store").mkdir()
    (unmapped_run / "config.yaml").write_text("data: {image_size: 154}")
    page = Page(build_report(unmapped_run))
    assert set(asked) == {154}
    assert len(page.all("img")) == 6 * 12


@pytest.mark.parametrize("score", [{"all": None, "old": float("nan"), "new": 0.5}, {}])
def test_scores_that_were_not_counted_read_as_a_dash(unmapped_run: Path, score: dict[str, Any]) -> None:
    (unmapped_run / "evaluation.json").write_text(json.dumps({"set": "s", "v2": score, "plain": None}))
    assert "All – %" in Page(build_report(unmapped_run)).words


def test_accuracy_in_the_summary_is_used_without_an_evaluation_file(unmapped_run: Path) -> None:
    (unmapped_run / "evaluation.json").unlink()
    summary = {"accuracy": {"set": "the set", "v2": {"all": 0.123, "old": 0.2, "new": 0.3}}}
    (unmapped_run / "summary.json").write_text(json.dumps(summary))
    assert "All 12.3 %" in Page(build_report(unmapped_run)).words


def test_typical_are_the_surest_and_borderline_the_closest_calls(full_run: Path) -> None:
    record = read_run(full_run)
    category = record.categories[0]
    typical, borderline = choose(record, category, 8, 4)
    others = [row for row in category.rows.tolist() if row not in typical]
    assert len(typical) == 8 and len(borderline) == 4
    assert record.confidence[typical].min() >= record.confidence[others].max()
    rest = [row for row in others if row not in borderline]
    assert record.margin[borderline].max() <= record.margin[rest].min()


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (1, 0)), (2, (2, 0)), (3, (2, 1)), (6, (4, 2)), (50, (8, 4))]
)
def test_small_categories_share_their_images(
    make_run: Callable[..., Path], tmp_path: Path, size: int, expected: tuple[int, int]
) -> None:
    run = make_run(tmp_path / "r", ["a"], 0, [[f"{i}.jpg" for i in range(size)]], full=False)
    record = read_run(run)
    typical, borderline = choose(record, record.categories[0], 8, 4)
    assert (len(typical), len(borderline)) == expected
    assert not set(typical) & set(borderline)


def test_place_that_stayed_empty_is_no_discovery(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ["a", "new-01"], 1, [["1.jpg"], []], full=False)
    page = Page(build_report(run))
    assert "1 category, named by you; 1 image, all readable" in page.words
    assert "One place for new categories stayed empty." in page.words
    assert "No image was put into new-01 c-" in page.words
    assert len(page.all("article")) == 1


@pytest.mark.parametrize(
    ("old", "names", "expected"),
    [
        (1, ["a"], "1 category, named by you; 1 image, all readable"),
        (2, ["a", "b"], "2 categories, all named by you; 2 images, all readable"),
        (1, ["a", "b"], "2 categories: 1 you named, 1 discovered; 2 images, all readable"),
    ],
)
def test_sentence_reads_well_for_any_count(
    make_run: Callable[..., Path], tmp_path: Path, old: int, names: list[str], expected: str
) -> None:
    run = make_run(tmp_path / "r", names, old, [[f"{name}.jpg"] for name in names], full=False)
    assert sentence(read_run(run)) == expected


def test_unwritable_target_is_a_user_error(unmapped_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        build_report(unmapped_run, tmp_path / "file" / "report.html")


def test_control_and_direction_characters_are_written_out() -> None:
    assert visible("a\nb\u202egpj.\ud800 é 猫") == "a\\nb\\u202egpj.\\ud800 é 猫"


@pytest.mark.parametrize(
    ("text", "most", "expected"), [("abc", 3, "abc"), ("abcdef", 5, "ab…ef"), ("abcdef", 4, "a…ef")]
)
def test_middle_keeps_both_ends(text: str, most: int, expected: str) -> None:
    assert middle(text, most) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.684, "68.4"), (1, "100.0"), (0.0, "0.0"), (None, "–")])
def test_percent(share: float | None, expected: str) -> None:
    assert percent(share) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(48, "48 s"), (720, "12 min"), (12000, "3 h 20 min")])
def test_duration(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def file_text(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")
