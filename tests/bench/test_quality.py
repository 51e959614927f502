"""The bench on tiny drawn photos and a tiny random backbone: what is kept, what is run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from partgcd.bench import quality
from partgcd.bench.plan import Plan, SetSpec
from partgcd.bench.quality import Session, pending, results_of, run_plan
from partgcd.bench.quality_table import COLUMNS, markdown, rows
from partgcd.bench.results import QUALITY, add_result, measured_settings
from partgcd.disk.lock import claimed
from partgcd.run.world import Interrupted

COMMON: dict[str, object] = {
    "backbone.random_weights": True, "data.image_size": 160, "train.epochs": 2, "train.batch_size": 8,
    "train.view_pool": 2, "train.precision": "fp32", "loss.projector_hidden": 16, "loss.projector_out": 8,
    "parts.count": 2, "parts.min_patches": 20,
}  # fmt: skip
MACHINE: dict[str, object] = {"train.device": "cpu", "train.threads": 1}


def make_plan(lr: float = 0.01, seeds: tuple[int, ...] = (0, 1)) -> Plan:
    return Plan.model_validate({
        "common": COMMON,
        "sets": {"shapes": {"folder": "shapes"}},
        "methods": {"gcd": {"settings": {"discovery.method": "gcd"}},
                    "simgcd": {"settings": {"discovery.method": "simgcd", "train.lr": lr}},
                    "partgcd": {}},
        "blocks": [{"name": "all", "sets": ["shapes"], "methods": ["gcd", "simgcd", "partgcd"],
                    "backbones": ["test_vit"], "seeds": list(seeds)}],
    })  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for kind in range(4):
        folder = root / "shapes" / f"kind{kind}"
        folder.mkdir(parents=True)
        for number in range(8):
            draw = np.random.default_rng([kind, number])
            picture = draw.normal(60 * kind + 30, 15, (48, 48, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(picture).save(folder / f"{number}.png")
    return root


def session(photos: Path, folder: Path, say: Callable[[str], None] = lambda _: None) -> Session:
    return Session(photos, folder / "results", folder / "work", MACHINE, say)


def work(plan: Plan, photos: Path, folder: Path) -> list[str]:
    lines: list[str] = []
    held = run_plan(plan, plan.chosen(), session(photos, folder, lines.append))
    assert not held
    return lines


def test_results_are_kept_and_only_what_changed_runs_again(photos: Path, tmp_path: Path) -> None:
    plan = make_plan()
    assert len(work(plan, photos, tmp_path)) == 6
    results = tmp_path / "results"
    found = results_of(plan, plan.chosen(), results)
    assert len(found) == 6 and not pending(plan, plan.chosen(), results)
    for result in found:
        assert result["classes"]["true"] == 4 and 0 <= result["accuracy"]["v2"]["all"] <= 1
        assert result["seconds"]["total"] > 0 and result["machine"]["cores"]
    assert set(found[2]["accuracy"]["heads"]) == {"global", "part", "fused"}
    assert not list((tmp_path / "work" / "runs").iterdir())
    assert not list((tmp_path / "work" / "ground").iterdir())

    changed = make_plan(lr=0.02)
    assert {job.method for job in pending(changed, changed.chosen(), results)} == {"simgcd"}
    assert len(results_of(changed, changed.chosen(), results)) == 4
    lines = work(changed, photos, tmp_path)
    assert len(lines) == 2 and all("simgcd" in line for line in lines)


def test_shared_views_change_no_result(photos: Path, tmp_path: Path) -> None:
    plan = make_plan(seeds=(0,))
    work(plan, photos, tmp_path / "together")
    for job in plan.chosen():
        alone = tmp_path / "alone" / job.method
        run_plan(plan, [job], session(photos, alone))
        (one,) = results_of(plan, [job], alone / "results")
        (other,) = results_of(plan, [job], tmp_path / "together" / "results")
        assert one["accuracy"] == other["accuracy"] and one["curve"] == other["curve"]


def test_a_bench_broken_off_goes_on(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(seeds=(0,))
    real, calls = quality.discover, [0]

    def breaks(*given):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] == 2:
            raise Interrupted
        return real(*given)

    monkeypatch.setattr(quality, "discover", breaks)
    with pytest.raises(Interrupted):
        work(plan, photos, tmp_path)
    assert len(results_of(plan, plan.chosen(), tmp_path / "results")) == 1
    assert len(work(plan, photos, tmp_path)) == 2


def test_a_group_that_another_process_holds_is_left_to_it(photos: Path, tmp_path: Path) -> None:
    plan = make_plan()
    ground = (
        tmp_path / "work" / "ground" / f"shapes+test_vit+1+{quality._digest(plan.sets['shapes'].drawn())}"
    )
    with claimed(ground, "runs a bench"):
        held = run_plan(plan, plan.chosen(None, ["gcd"]), session(photos, tmp_path))
    assert [job.seed for job in held] == [1]


def fake(method: str, seed: int, accuracy: float, purity: list[float | None]) -> dict[str, object]:
    three = {"all": accuracy, "old": accuracy, "new": None}
    return {"set": "s", "backbone": "b", "method": method, "seed": seed,
            "accuracy": {"v2": three, "heads": {"global": three, "fused": three}, "nmi": 0.5, "ari": 0.25},
            "purity": purity, "classes": {"true": 4, "used": 4, "empty": seed},
            "seconds": {"epochs": 10.0, "discovery": 12.0}}  # fmt: skip


def test_the_table_gives_mean_and_deviation_over_seeds() -> None:
    results = [fake("m", 0, 0.5, [0.2, None, 0.4]), fake("m", 1, 0.7, [0.4, 0.6]), fake("l", 0, 0.9, [])]
    table = rows(results, ["s"], ["m", "l"])
    assert [row["method"] for row in table] == ["m", "l"]
    assert (
        table[0]["All"] == "60.0 ± 14.1" and table[0]["seeds"] == "0 1" and table[0]["purity"] == "30 to 50"
    )
    assert table[1]["All"] == "90.0" and table[1]["purity"] == "" and table[1]["New"] == ""
    assert table[0]["classes"] == "3 4 of 4", "classes without an image are not counted"
    text = markdown(table, COLUMNS)
    assert text.count("\n") == 4 and "part head" not in text


def test_a_setting_that_is_not_asked_does_not_void_a_result(photos: Path, tmp_path: Path) -> None:
    plan, results = make_plan(seeds=(0,)), tmp_path / "results"
    job = plan.chosen(None, ["gcd"])[0]
    run_plan(plan, [job], session(photos, tmp_path))
    (result,) = results_of(plan, [job], results)
    result["settings"]["parts.adapter"] = "mean"  # a method without parts does not depend on theirs
    result["settings"]["loss.mean_entropy_weight"] = 9.0  # nor a clustering on losses
    add_result(results, QUALITY, result)
    assert not pending(plan, [job], results)
    result["settings"]["train.momentum"] = 0.5
    add_result(results, QUALITY, result)
    assert pending(plan, [job], results) == [job]


@pytest.mark.parametrize(
    "change", [{"draw": 3}, {"draw": 3, "rest": True}, {"tail": [5, 4]}, {"folder": "forms"}]
)
def test_a_result_of_other_images_is_run_again(change: dict[str, object], tmp_path: Path) -> None:
    plan = make_plan(seeds=(0,))
    job = plan.chosen(None, ["gcd"])[0]
    add_result(tmp_path, QUALITY, {
        **job._asdict(), "drawn": plan.sets["shapes"].drawn(),
        "settings": measured_settings(plan.settings(job, 4, {})), "classes": {"true": 4},
    })  # fmt: skip
    assert not pending(plan, [job], tmp_path)
    other = SetSpec.model_validate({"folder": "shapes", **change})
    assert pending(plan.model_copy(update={"sets": {"shapes": other}}), [job], tmp_path) == [job]
    told = SetSpec(folder="shapes", note="what a reader is told")
    assert not pending(plan.model_copy(update={"sets": {"shapes": told}}), [job], tmp_path)
