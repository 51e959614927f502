from __future__ import annotations

from pathlib import Path

import pytest

from partgcd.bench.plan import PACKAGED, Job, read_plan
from partgcd.config.errors import UserError

PLAN = """
common: {train.epochs: 3}
sets:
  a: {folder: a}
  b: {folder: b, draw: 4, settings: {data.image_size: 112, train.lr: 0.125}}
methods:
  one: {settings: {train.lr: 0.5}, by_backbone: {test_vit: {train.lr: 0.25}}}
  two: {preset: paper}
blocks:
  - {name: first, sets: [a], methods: [one, two], seeds: [0, 1], backbones: [test_vit, other]}
  - {name: second, sets: [a, b], methods: [one], backbones: [other]}
  - {name: quick, sets: [b], methods: [two], backbones: [other]}
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return file


def test_jobs_come_once_and_what_shares_views_stands_together(plan_file: Path) -> None:
    jobs = list(read_plan(plan_file).jobs())
    assert len(jobs) == len(set(jobs)) == 8 + 1 + 1
    assert jobs[:3] == [
        Job("a", "test_vit", "one", 0),
        Job("a", "test_vit", "two", 0),
        Job("a", "other", "one", 0),
    ]


def test_blocks_and_methods_are_chosen_by_name_and_quick_only_when_asked(plan_file: Path) -> None:
    plan = read_plan(plan_file)
    assert len(plan.chosen()) == 9
    assert plan.chosen(["quick"]) == [Job("b", "other", "two", 0)]
    assert {job.method for job in plan.chosen(["first"], ["two"])} == {"two"}
    with pytest.raises(UserError, match=r"no block .third..*first, second, quick"):
        plan.chosen(["third"])
    with pytest.raises(UserError, match="no method 'three'"):
        plan.chosen(None, ["three"])


def test_a_set_changes_what_all_share_and_a_method_has_its_way(plan_file: Path) -> None:
    plan = read_plan(plan_file)
    one, two = (plan.settings(Job("b", "other", name, 0), 5, {}) for name in ("one", "two"))
    assert (one.data.image_size, one.train.lr) == (112, 0.5)
    assert (two.data.image_size, two.train.lr, two.train.epochs) == (112, 0.125, 3)


def test_later_settings_win_and_the_machine_has_the_last_word(plan_file: Path) -> None:
    plan = read_plan(plan_file)
    machine: dict[str, object] = {"train.threads": 1}
    one = plan.settings(Job("a", "test_vit", "one", 7), 5, machine)
    assert (one.train.lr, one.train.epochs, one.seed, one.train.threads) == (0.25, 3, 7, 1)
    assert plan.settings(Job("a", "other", "one", 0), 5, machine).train.lr == 0.5
    two = plan.settings(Job("a", "other", "two", 0), 5, machine)
    assert (two.train.lr, two.train.epochs, two.discovery.classes) == (0.1, 3, 5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("sets: [b]", "sets: [c]"), "block quick names no set 'c'"),
        (("methods: [two]", "methods: [three]"), "block quick names no method 'three'"),
        (("train.lr: 0.5", "train.rate: 0.5"), "unknown setting 'train.rate'"),
        (("draw: 4", "draw: one"), "sets.b.draw"),
        (("folder: b,", "folder: b, colour: red,"), "colour"),
        (("name: first", "name: ../first"), "blocks.0.name"),
        (("common:", "common: ["), "can't be read"),
    ],
)
def test_a_wrong_plan_is_one_clear_line(plan_file: Path, change: tuple[str, str], says: str) -> None:
    plan_file.write_text(PLAN.replace(*change))
    with pytest.raises(UserError, match=says) as caught:
        read_plan(plan_file)
    assert "\n" not in str(caught.value)


def test_no_such_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no plan"):
        read_plan(tmp_path / "none.yaml")


def test_the_packaged_plan_tunes_on_no_reported_class() -> None:
    plan = read_plan(PACKAGED)
    assert plan.chosen(["quick"])
    reported = {job.set for job in plan.chosen(["headline"])}
    assert reported == {"cub50", "grocery50"}
    for name in reported:
        rest = plan.sets[f"{name}-rest"]
        assert rest.rest and (rest.folder, rest.draw, rest.draw_seed) == (
            plan.sets[name].folder, plan.sets[name].draw, plan.sets[name].draw_seed,
        )  # fmt: skip
