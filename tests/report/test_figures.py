from __future__ import annotations

import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from markupsafe import Markup

from partgcd.report.figures import changed_curve, feature_map, loss_curves, quality_curves

LINES = [{"epoch": e, "loss": {"total": 3.0 / e, "pdr": 1.0}, "changed": 0.5 / e} for e in (1, 2, 3)]


def words(svg: Markup | None) -> list[str]:
    assert svg is not None
    root = ElementTree.fromstring(str(svg))
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def drawn(names: list[str], count: int = 12) -> Markup:
    rng = np.random.default_rng(0)
    category = np.arange(count) % len(names)
    points = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return feature_map(points, category, names, ["#ff0000"] * len(names), [False] * len(names))


def test_loss_curves_name_every_term() -> None:
    assert {"total", "pdr", "epoch", "loss"} <= set(words(loss_curves(LINES)))


@pytest.mark.parametrize(
    "lines", [[], [{"epoch": 1}], [{"epoch": 1, "loss": {"total": None}}], [{"loss": 3}]]
)
def test_nothing_recorded_draws_nothing(lines: list[dict[str, object]]) -> None:
    assert loss_curves(lines) is None
    assert changed_curve(lines) is None


@pytest.mark.parametrize("evaluation", [None, {}, {"curve": []}, {"curve": [{"epoch": 1, "purity": None}]}])
def test_quality_needs_a_curve(evaluation: dict[str, object] | None) -> None:
    assert quality_curves(evaluation) is None


def test_quality_leaves_out_what_was_not_measured() -> None:
    found = words(quality_curves({"curve": [{"epoch": 1, "purity": None, "all": 0.5}]}))
    assert "accuracy, all images" in found and "purity of candidates" not in found


def test_one_epoch_is_visible_as_a_dot() -> None:
    assert "<use" in str(loss_curves(LINES[:1]))


def test_colours_come_from_the_page() -> None:
    svg = str(loss_curves(LINES))
    assert "currentColor" in svg and "var(--line)" in svg
    assert "#010203" not in svg and "#040506" not in svg


@pytest.mark.parametrize(
    "name", ["<b>&\"'", "$\\frac{1}$", "$x", "猫 の 名前", 'id="a" #010203', "NAME0NAME"]
)
def test_any_name_is_written_as_it_is(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert words(drawn([name])) == [name]


def test_map_of_many_points_stays_small() -> None:
    assert len(drawn([f"c{c}" for c in range(100)], 20_000)) < 1_500_000


def test_labels_do_not_lie_on_each_other() -> None:
    points = np.zeros((40, 2), np.float32)
    svg = feature_map(points, np.arange(40), [f"c{c}" for c in range(40)], ["#00ff00"] * 40, [True] * 40)
    assert 1 <= len(words(svg)) <= 3


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    loss_curves(LINES)
    assert dict(matplotlib.rcParams) == before
