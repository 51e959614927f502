from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from partgcd.bench import lives
from partgcd.bench.arrivals import Shares, deal
from partgcd.bench.life_plan import PACKAGED, LifeJob, read_life_plan
from partgcd.bench.life_score import changed_meaning, moved_away, score, unknown_classes
from partgcd.bench.life_table import COLUMNS, interval, rows
from partgcd.bench.lives import _asked, _drawn, pending, results_of
from partgcd.bench.plan import SetSpec
from partgcd.bench.quality_table import markdown
from partgcd.bench.results import LIFE, add_result
from partgcd.config.errors import UserError
from partgcd.disk.files import write_json


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A data set ``set`` of 8 classes of 20 images."""
    for kind in range(8):
        folder = tmp_path / "photos" / "set" / f"class {kind}"
        folder.mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (4, 4), (kind, number, 0)).save(folder / f"{number}.png")
    return tmp_path / "photos"


def test_a_life_deals_every_image_once_and_hides_labels(photos: Path, tmp_path: Path) -> None:
    life = deal(SetSpec(folder="set"), photos, tmp_path, 3, 0, Shares())
    dealt = [path for stage in life.stages for path in stage] + life.test
    assert sorted(dealt) == sorted(life.truth) and len(set(dealt)) == 160
    assert [len(life.classes(stage)) for stage in range(4)] == [4, 6, 7, 8]
    assert set(life.labelled) < set(life.stages[0]) and len(life.labelled) == 4 * 5
    for stage, files in enumerate(life.stages):
        came = {life.introduced[life.truth[path]] for path in files}
        assert came == set(range(stage + 1)), "known and new classes at every arrival, none from the future"
    assert {life.truth[path] for path in life.test} == set(life.introduced)
    assert deal(SetSpec(folder="set"), photos, tmp_path, 3, 0, Shares()) == life
    assert deal(SetSpec(folder="set"), photos, tmp_path, 3, 1, Shares()).introduced != life.introduced
    with pytest.raises(UserError, match="5 arrivals need 10"):
        deal(SetSpec(folder="set"), photos, tmp_path, 5, 0, Shares())


def test_a_quiet_life_brings_no_class_and_leaves_the_others_out(photos: Path, tmp_path: Path) -> None:
    life = deal(SetSpec(folder="set"), photos, tmp_path, 1, 0, Shares(), fresh=False)
    assert set(life.introduced.values()) == {0} and len(life.introduced) == 4
    assert sorted(path for stage in life.stages for path in stage) == sorted(set(life.truth) - set(life.test))
    assert len(life.truth) == 80 and {life.truth[path] for path in life.stages[1]} == set(life.introduced)


def test_the_packaged_plan_names_what_there_is() -> None:
    plan = read_life_plan(PACKAGED)
    assert plan.jobs(["table"]) == [LifeJob("grocery50", seed) for seed in (0, 1, 2)]
    assert plan.arrivals_of("cub50") == 3 and plan.methods_of("cub50") == plan.methods
    assert plan.arrivals_of("cub16-quiet") == 1 and plan.methods_of("cub16-quiet") == ["none", "rediscover"]
    assert plan.settings(LifeJob("cub50", 1), 8, {"train.threads": 1}).discovery.classes == 8
    with pytest.raises(UserError, match="no block 'x'"):
        plan.jobs(["x"])


def test_results_of_other_settings_or_images_are_pending(tmp_path: Path) -> None:
    text = (
        "sets: {a: {folder: a%s}}\narrivals: 1\nmethods: [none, rediscover]\nblocks: [{name: b, sets: [a]}]\n"
    )
    (tmp_path / "plan.yaml").write_text(text % "")
    (tmp_path / "other.yaml").write_text(text % ", settings: {train.lr: 0.5}")
    (tmp_path / "longer.yaml").write_text(text.replace("arrivals: 1", "arrivals: 2") % "")
    plan, other = read_life_plan(tmp_path / "plan.yaml"), read_life_plan(tmp_path / "other.yaml")
    longer = read_life_plan(tmp_path / "longer.yaml")
    job = LifeJob("a", 0)
    assert other.settings(job, 4, {}).train.lr == 0.5
    assert len(pending(plan, [job], tmp_path)) == 4
    for method, settings in (
        ("none", {"epochs": 6}),
        ("rediscover", {"epochs": 6, "train.lr": 0.5, "gone.since": 1}),
    ):
        for stage in (0, 1):
            kept = {"drawn": _drawn(plan, job), "settings": {**_asked(plan, job), **settings}}
            add_result(tmp_path, LIFE, {**job._asdict(), "method": method, "stage": stage, **kept})
    assert pending(plan, [job], tmp_path) == [(job, "rediscover", 0), (job, "rediscover", 1)]
    assert pending(other, [job], tmp_path) == [(job, "none", 0), (job, "none", 1)]
    assert len(pending(longer, [job], tmp_path)) == 6, "other photos come when there are more arrivals"
    assert (len(results_of(plan, [job], tmp_path)), len(results_of(other, [job], tmp_path))) == (2, 2)


@pytest.mark.parametrize(("there", "taken"), [((), [1, 2, 3]), ((1, 2), [3]), ((1, 2, 3), [])])
def test_a_stage_takes_in_the_arrivals_before_it_that_its_registry_lacks(
    there: tuple[int, ...], taken: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def take_in(at: object, registry: object, method: str, stage: int) -> dict[str, int]:
        found.append(stage)
        return {"new_classes": stage}

    registry = SimpleNamespace(versions=lambda: ["1"], aliases=lambda: {"champion": "1"})
    monkeypatch.setattr(lives, "Registry", SimpleNamespace(init=lambda folder: registry))
    monkeypatch.setattr(lives, "_take_in", take_in)
    for each in there:
        write_json(tmp_path / f"rediscover-{each}.json", {"new_classes": each})
    at = SimpleNamespace(ground=tmp_path)
    for _ in range(2):  # what came of an arrival is kept
        assert lives._arrive(at, "rediscover", 3)[1] == {"new_classes": 3}  # type: ignore[arg-type]
        assert found == taken


@pytest.mark.parametrize(
    "text", ["sets: {}", "[]", "sets: {a: {folder: a}}\nmethods: [magic]\nblocks: []", ":::"]
)
def test_plans_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(UserError, match=r"plan\.yaml"):
        read_life_plan(tmp_path / "plan.yaml")


INTRODUCED = {"ash": 0, "birch": 0, "cedar": 1, "date": 1, "elm": 2}
NAMES = {"c-a": "ash", "c-b": "birch"}


def test_people_s_classes_count_under_their_own_id_and_discovered_ones_are_matched() -> None:
    truth = ["ash", "ash", "birch", "cedar", "cedar", "date", "date", "elm"]
    answered = ["c-a", "c-b", "c-b", "c-x", "c-x", "c-y", "c-a", "c-x"]
    found = score(answered, truth, NAMES, INTRODUCED, 1)
    assert found["images"] == 7, "elm has not come yet"
    assert (found["old"], found["new"], found["now"], found["earlier"]) == (0.6667, 0.75, 0.75, None)
    assert score(answered, truth, NAMES, INTRODUCED, 2)["now"] == 0.0
    assert found["majority"]["c-x"] == {"class": "cedar", "images": 2, "of": 2}


@pytest.mark.parametrize(
    ("stages", "changed"),
    [
        ([{"cedar": 4}, {"date": 3, "cedar": 1}], True),
        ([{"cedar": 4}, {"date": 2, "cedar": 2}], False),  # of both: not clear
        (
            [{"cedar": 4}, {"date": 2, "cedar": 2}, {"date": 3, "cedar": 2}],
            True,
        ),  # by way of a stage that was not clear
        ([{"cedar": 4}, {"date": 2, "cedar": 2}, {"cedar": 3, "date": 2}], False),
        ([{"cedar": 2, "date": 2}, {"date": 3}, {"date": 3}], False),  # it had none before
        ([{"cedar": 4}, {"date": 2}], False),  # too few to tell
    ],
)
def test_an_id_that_comes_to_mean_another_class_is_seen(stages: list[dict[str, int]], changed: bool) -> None:
    scores = []
    for stage in stages:
        truth = [name for name, count in stage.items() for _ in range(count)]
        scores.append(score(["c-x"] * len(truth), truth, NAMES, INTRODUCED, 1))
    assert changed_meaning(scores[:-1], scores[-1]) == (["c-x"] if changed else [])


def test_an_id_whose_images_go_to_another_one_is_seen() -> None:
    truth = ["cedar"] * 4 + ["date"] * 2
    before = score(["c-x"] * 4 + ["c-y"] * 2, truth, NAMES, INTRODUCED, 1)
    mixed = score(["c-x"] * 6, truth, NAMES, INTRODUCED, 1)
    gone = score(["c-z"] * 3 + ["c-x"] * 3, truth, NAMES, INTRODUCED, 1)
    assert mixed["homes"]["date"] == {"id": "c-x", "images": 2, "of": 2}
    assert moved_away([before], before) == [] and moved_away([before], mixed) == []
    assert moved_away([before], gone) == ["c-x"], "c-y stood for too few to tell"


def test_what_an_arrival_lets_find_counts_classes_missed_before() -> None:
    """Of four classes with enough photos birch is answered to, and cedar was missed: its images go by birch's id."""
    before = score(["c-a", "c-b", "c-b", "c-b"], ["ash", "birch", "birch", "cedar"], NAMES, INTRODUCED, 1)
    came = ["birch"] * 4 + ["cedar"] * 4 + ["date"] * 4 + ["elm"] * 9 + ["ash"] + ["fir"] * 3
    assert unknown_classes(before["majority"], came) == ["cedar", "date", "elm"]


def test_the_table_pairs_forgetting_by_seed() -> None:
    results = [
        {"set": "s", "stage": 1, "method": "rediscover", "seed": seed, "forgetting": 0.01 * seed, "new_classes": 2,
         "true_new": 3, "seconds": 10.0, "cpu_seconds": 7.0,
         "accuracy": {"all": 0.5, "old": 0.6, "new": 0.4, "earlier": None}}
        for seed in (0, 1, 2)
    ]  # fmt: skip
    (row,) = rows(results, ["rediscover"])
    assert (
        row["forgetting"] == "1.0 [-1.5, 3.5]"
        and row["new classes"] == "2/3 2/3 2/3"
        and row["All"] == "50.0 ± 0.0"
        and (row["seconds"], row["CPU seconds"]) == ("10", "7")
    )
    (row,) = rows([result | {"unknown_classes": 5} for result in results], ["rediscover"])
    assert row["new classes"] == "2/3 (5) 2/3 (5) 2/3 (5)" and row["ids changed"] == ""
    moved = [{"changed_meaning": ["c-x"]}, {"changed_meaning": [], "moved_away": ["c-y", "c-z"]}]
    (row,) = rows([result | more for result, more in zip(results, moved, strict=False)], ["rediscover"])
    assert row["ids changed"] == "1 0 (2)"
    assert interval([3.0]) == "3.0" and interval([]) == ""
    assert (
        markdown([row], COLUMNS)
        .splitlines()[0]
        .startswith("| set | stage | method | seeds | All | Old | New | forgetting")
    )
