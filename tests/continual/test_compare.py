from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from partgcd.continual.compare import About, Judged, describe_changes
from partgcd.continual.gate import Margins, Measured, judge
from partgcd.continual.growth import Growth, Unknown
from partgcd.continual.intake import Arrivals
from partgcd.continual.retained import Retained
from partgcd.continual.retrain import Trained
from partgcd.data.catalog import Catalog
from partgcd.data.listing import Listing
from partgcd.discovery.class_records import ClassRecord, Nearest
from partgcd.discovery.fit import Fitted
from partgcd.export.manifest import ClassEntry

NAMES = ["ash", "birch", "new-1"]
OWN = 4  # of the photos taken for ash, the first of which are ash


def about(axis: int, count: int, seed: int) -> NDArray[np.float32]:
    rows = 0.3 * np.random.default_rng(seed).normal(size=(count, 12))
    rows[:, axis] += 1.0
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def told(answers: list[int]) -> NDArray[np.float32]:
    rows = np.full((len(answers), 3), 0.05, np.float32)
    rows[np.arange(len(answers)), answers] = 0.9
    return rows


@pytest.fixture
def describe() -> Any:
    def made(ash: int, axis: int, birch: int = 8, coherence: float = 0.9) -> dict[str, Any]:
        """``ash`` photos taken for ash that lie about ``axis``, a few about 0 as ash's remembered ones do."""
        answers = [0] * ash + [1] * birch + [2] * 6
        total = len(answers) + 40
        catalog = Catalog(
            Path("/"), [f"{row}.jpg" for row in range(total)], np.arange(total, dtype=np.uint64),
            np.array([-1] * len(answers) + [0] * 20 + [1] * 20), NAMES[:2], np.zeros((total, 2), np.int32),
        )  # fmt: skip
        features = np.concatenate([
            about(0, min(ash, OWN), 6), about(axis, max(ash - OWN, 0), 1), about(1, birch, 2), about(2, 6, 3),
            about(0, 20, 4), about(1, 20, 5),
        ])  # fmt: skip
        records = [
            ClassRecord(
                i, f"c-{i}", name, "old" if i < 2 else "discovered", 20, 0, (Nearest("c-0", "ash", 0.5),)
            )
            for i, name in enumerate(NAMES)
        ]
        trained = Trained(cast(Fitted, None), records, told(answers), features, np.array([coherence]))
        kept = [
            ClassEntry(index=i, id=f"c-{i}", name=NAMES[i], kind="old", labelled=20, assigned=0)
            for i in (0, 1)
        ]
        held = np.array([0, 1] * 10)
        found = Measured(
            (told(held.tolist()), told(held.tolist()), held),
            (told([min(a, 1) for a in answers]), told(answers)), np.zeros(len(answers), bool),
            np.ones(len(answers), bool), [coherence], NAMES, 2,
        )  # fmt: skip
        arrivals = Arrivals(Listing(Path("/"), [], [], ""), np.zeros(0, np.uint64), 0, 0, 0, 0)
        growth = Growth(1, np.zeros(total, np.int64), Unknown(0.3, 0.1), 1.2)
        judged = Judged(trained, found, judge(found, Margins()), Path("/"))
        retained = Retained(kept, np.zeros(0, np.int64), [0, 1], [])
        return describe_changes(judged, retained, catalog, growth, arrivals, About(1, 0, 1.0))

    return made


@pytest.mark.parametrize(
    ("ash", "axis", "birch", "mixed"),
    [(30, 5, 8, True), (30, 0, 8, False), (8, 5, 12, False), (0, 0, 8, None)],
    ids=["many and unlike", "many alone", "unlike alone", "none"],
)
def test_a_class_is_marked_where_its_new_photos_are_many_and_unlike_it(
    describe: Any, ash: int, axis: int, birch: int, mixed: bool | None
) -> None:
    grew = describe(ash, axis, birch)["grew"]
    marks = {one["name"]: one["mixed"] for one in grew}
    assert marks.get("ash") == mixed and marks["birch"] is False
    if mixed:
        assert grew[0]["name"] == "ash" and grew[0]["times"] > 1.5 and grew[0]["unlike"] > 2
        assert len(grew[0]["images"]) == 12, "strangers first"
        assert min(image["row"] for image in grew[0]["images"]) >= OWN


@pytest.mark.parametrize(("coherence", "steady"), [(0.9, True), (0.1, False)])
def test_a_new_class_is_told_with_its_pictures_and_whether_it_is_steady(
    describe: Any, coherence: float, steady: bool
) -> None:
    changes = describe(8, 0, coherence=coherence)
    (one,) = changes["appeared"]
    assert one["photos"] == 6 and len(one["images"]) == 6 and one["steady"] is steady
    assert one["came_from"] == [{"name": "birch", "photos": 6}]
    assert changes["classes"] == {"known": 2, "taught": 0, "new": 1}
