from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from partgcd.config.errors import UserError
from partgcd.disk.files import read_json
from partgcd.schedule.due import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    History,
    Plan,
    check_plan,
    decide,
    ended,
    jitter_of,
    newest_due,
    next_due,
    pause_after,
)
from partgcd.schedule.timer import STATUS, follow, read_history

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAYS = timedelta(days=30)


class World:
    """A clock that only sleeping and running move, and what happens in it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.time, self.end = START, START + DAYS
        self.runs: list[tuple[datetime, datetime, str]] = []
        self.photos: Callable[[], int] = lambda: 5
        self.code: Callable[[], int] = lambda: 0
        self.minutes: Callable[[], float] = lambda: 40.0
        self.counters: Callable[[], tuple[float, float] | None] = lambda: None
        self.looks = 0

    def live(self, until: datetime | None = None) -> list[tuple[datetime, datetime, str]]:
        self.end = until or self.end
        follow(
            self.folder, self.plan, self.run, lambda: self.photos(), self.look, lambda text: None,
            lambda: self.time, self.wait, 1800.0,
        )  # fmt: skip
        return self.runs

    def look(self) -> tuple[float, float] | None:
        self.looks += 1
        return self.counters()

    def run(self, why: str) -> int:
        began = self.time
        self.time += timedelta(minutes=self.minutes())
        self.runs.append((began, self.time, why))
        return self.code()

    def wait(self, seconds: float) -> bool:
        assert 0 <= seconds <= 1800
        self.time += timedelta(seconds=seconds)
        return self.time >= self.end


def apart(runs: list[tuple[datetime, datetime, str]]) -> bool:
    return all(one[1] <= other[0] for one, other in pairwise(runs))


def test_every_six_hours_for_thirty_days(tmp_path: Path) -> None:
    runs = World(tmp_path, Plan(every=6 * 3600)).live()
    assert len(runs) == 120 and apart(runs)
    assert all(began == START + timedelta(hours=6 * number) for number, (began, _, _) in enumerate(runs))
    told = read_json(tmp_path / STATUS)
    assert told["state"] == "stopped" and told["history"]["runs"] == 120


def test_cron_at_three_every_night(tmp_path: Path) -> None:
    runs = World(tmp_path, Plan(cron="0 3 * * *")).live()
    assert len(runs) == 30 and all((began.hour, began.minute) == (3, 0) for began, _, _ in runs)


def test_cron_follows_a_zone_through_summer_time(tmp_path: Path) -> None:
    runs = World(tmp_path, Plan(cron="0 3 * * *", zone="Europe/Berlin")).live()
    assert {began.hour for began, _, _ in runs[:10]} == {2}
    assert runs[-1][0].hour == 1  # from 29 March on
    assert len(runs) == 30


def test_runs_longer_than_the_interval_neither_overlap_nor_pile_up(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(every=3600))
    world.minutes = lambda: 150.0
    runs = world.live()
    assert apart(runs) and len(runs) == 288  # of 720 due times one in two and a half
    assert all(other[0] - one[1] < timedelta(minutes=60) for one, other in pairwise(runs))


def test_after_a_week_asleep_one_run_makes_up_for_all(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(every=6 * 3600))
    world.live(START + timedelta(days=2))
    before = len(world.runs)
    world.time = START + timedelta(days=9, hours=1)
    world.live(START + timedelta(days=9, hours=5))
    assert len(world.runs) == before + 1
    assert world.runs[-1][0] == START + timedelta(days=9, hours=1)
    world.live(START + timedelta(days=9, hours=7))
    assert world.runs[-1][0] == START + timedelta(days=9, hours=6), "the rhythm stays that of the first start"


def test_failures_are_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(every=6 * 3600))
    world.minutes, world.code = lambda: 1.0, lambda: 1
    runs = world.live()
    gaps = [(other[0] - one[1]).total_seconds() for one, other in pairwise(runs)]
    assert gaps[:5] == [60, 120, 240, 480, 960] and max(gaps) == LONGEST_PAUSE
    assert len(runs) < 130 and apart(runs)
    assert read_json(tmp_path / STATUS)["history"]["failures"] == len(runs)
    world.code = lambda: 0
    world.live(world.time + timedelta(hours=13))
    assert read_json(tmp_path / STATUS)["history"]["failures"] == 0


@pytest.mark.parametrize(("code", "failures"), [(0, 0), (1, 1), (2, 1), (3, 0), (75, 0), (-9, 1), (130, 1)])
def test_which_ends_are_failures(code: int, failures: int) -> None:
    assert ended(History(began=START), START, code).failures == failures


def test_pauses_have_bounds() -> None:
    assert pause_after(0) == timedelta(0) and pause_after(1).total_seconds() == FIRST_PAUSE
    assert pause_after(10_000).total_seconds() == LONGEST_PAUSE


def test_too_few_photos_wait_for_the_next_time(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(every=6 * 3600, min_new=200))
    world.photos = lambda: int((world.time - START).total_seconds() / 3600 * 8) % 250
    runs = world.live()
    assert 0 < len(runs) < 120
    for began, _, why in runs:
        assert int((began - START).total_seconds() / 3600 * 8) % 250 >= 200 and "new photos" in why


def test_drift_starts_a_run_out_of_turn_once(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(cron="0 3 1 1 *", drift=0.3, look=3600))
    flood = (START + timedelta(days=10), START + timedelta(days=10, hours=2))

    def counters() -> tuple[float, float]:
        hours = (world.time - START).total_seconds() / 3600
        inside = max(0.0, (min(world.time, flood[1]) - flood[0]).total_seconds() / 3600)
        return 1000 * hours, 50 * hours + 700 * inside

    world.counters, world.minutes = counters, lambda: 180.0  # the flood is over when the run is
    runs = world.live()
    assert len(runs) == 1 and "novel" in runs[0][2]
    assert flood[0] < runs[0][0] <= flood[0] + timedelta(minutes=61)
    assert 700 < world.looks <= 720


def test_drift_needs_answers_and_survives_a_server_that_begins_anew(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(drift=0.3, drift_answers=100, look=300))
    told = [(50.0, 50.0), None, (90.0, 90.0), (2000.0, 100.0), (10.0, 0.0), (500.0, 400.0), (501.0, 401.0)]
    world.counters = lambda: told[min(world.looks - 1, len(told) - 1)]
    runs = world.live(START + timedelta(hours=2))
    assert len(runs) == 1 and "490 answers" not in runs[0][2] and "500 answers" in runs[0][2]


def test_jitter_is_the_registrys_own_and_stays_within_its_bound(tmp_path: Path) -> None:
    plan = Plan(every=6 * 3600, jitter=1800)
    due = START + timedelta(hours=6)
    found = {jitter_of(plan, due, f"r{number}").total_seconds() for number in range(200)}
    assert len(found) == 200 and 0 <= min(found) < 60 and 1740 < max(found) <= 1800
    assert jitter_of(plan, due, "r1") == jitter_of(plan, due, "r1")
    runs = World(tmp_path, plan).live()
    assert len(runs) in (119, 120, 121) and apart(runs)
    for number, (began, _, _) in enumerate(runs):
        late = (began - START - timedelta(hours=6 * number)).total_seconds()
        assert 0 <= late <= 1860


def test_random_lives_never_overlap_and_never_starve(tmp_path: Path) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        world = World(
            tmp_path / str(seed), Plan(every=draw.choice([600, 3600, 20000]), jitter=draw.choice([0, 200]))
        )
        world.folder.mkdir()
        world.minutes = lambda draw=draw: draw.uniform(0.1, 200)
        world.code = lambda draw=draw: draw.choice([0, 0, 0, 1, 3, 75])
        runs = world.live(START + timedelta(days=5))
        assert runs and apart(runs)
        longest = max((b[0] - a[1]).total_seconds() for a, b in pairwise(runs))
        assert longest <= max(world.plan.every or 0, 3600) + 400


def test_a_killed_scheduler_goes_on_where_it_was(tmp_path: Path) -> None:
    world = World(tmp_path, Plan(every=6 * 3600))
    world.live(START + timedelta(days=3))
    history = read_history(tmp_path / STATUS, world.time)
    assert history.began == START and history.runs == len(world.runs)
    (tmp_path / STATUS).write_text("{half")
    assert read_history(tmp_path / STATUS, world.time) == History(began=world.time)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (Plan(), "needs --every"),
        (Plan(every=60, cron="* * * * *"), "one of them"),
        (Plan(every=0.1), "below a second"),
        (Plan(cron="0 25 * * *"), "is no time"),
        (Plan(cron="hello"), "is no time"),
        (Plan(cron="0 3 * * * *"), "6 fields.*five fields"),
        (Plan(cron="0 3 * * * 2026"), "6 fields"),
        (Plan(cron="0 0 3 * * * 2026"), "7 fields"),
        (Plan(cron="0 3 * *"), "4 fields"),
        (Plan(cron="@daily"), "1 field[^s]"),
        (Plan(cron=""), "0 fields"),
        (Plan(cron="0 0 31 4,6,9,11 *"), "is no time"),
        (Plan(cron="0 0 31 2 *"), "is no time"),
        (Plan(cron="0 3 30 2 *"), "is no time"),
        (Plan(cron="* * * * *", zone="Mars/Olympus"), "no time zone"),
        (Plan(every=600, jitter=400), "--jitter"),
        (Plan(drift=1.5), "--on-drift"),
    ],
)
def test_plans_that_mean_nothing(plan: Plan, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_plan(plan)


def test_due_times_are_exact() -> None:
    plan = Plan(every=60)
    assert next_due(plan, START, START) == START + timedelta(minutes=1)
    assert next_due(plan, START - timedelta(seconds=1), START) == START
    assert newest_due(plan, START, History(began=START)) == START
    assert newest_due(plan, START, History(began=START, handled=START)) is None
    decision = decide(Plan(cron="0 3 * * *"), History(began=START), START, "r", lambda: 9, lambda: None)
    assert not decision.run and decision.again == datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
    assert History.from_json(History(began=START, handled=START, code=3).as_json()) == History(
        began=START, handled=START, code=3
    )
