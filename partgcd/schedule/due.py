"""When a rediscovery is due: pure functions of a plan, what happened so far, and a clock that is passed in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from partgcd.config.errors import UserError
from partgcd.disk.lock import BUSY

FIRST_PAUSE, LONGEST_PAUSE = 60.0, 6 * 3600.0
"""Seconds until a failed run is tried again: doubled with every failure, up to the longest."""

KEPT = 3
"""Exit code of a run whose candidate was kept and not promoted."""

_MOST_MISSED = 5000
_MANY = 64  # doublings after which a pause is surely the longest


@dataclass(frozen=True)
class Plan:
    """What a person asked for.

    Attributes:
        every: seconds between runs, counted from the first; or
        cron: five fields (minute hour day month weekday) and no name like '@daily', read in ``zone``; or neither:
            only drift starts a run.
        min_new: photos that must have come since the last run.
        drift: share of novel answers from which a run starts out of turn; None never asks.
        drift_answers: answers that such a share needs.
        look: seconds between looks at the drift.
        jitter: most seconds that a start is put off, so that many machines do not start as one.
    """

    every: float | None = None
    cron: str | None = None
    zone: str = "UTC"
    min_new: int = 1
    drift: float | None = None
    drift_answers: int = 100
    look: float = 300.0
    jitter: float = 0.0


@dataclass(frozen=True)
class History:
    """What happened so far; times are UTC. It is all that a restarted scheduler has to know.

    Attributes:
        began: when the schedule first ran; what ``every`` counts from.
        handled: the newest due time that was dealt with, by a run or by seeing that nothing came.
        ended: when the last run ended; failures: how many of the last runs failed in a row.
        runs: how many there were; code: exit code of the last.
        answers, novel: the server's counters when drift was last judged.
        looked: when that was.
    """

    began: datetime
    handled: datetime | None = None
    ended: datetime | None = None
    failures: int = 0
    runs: int = 0
    code: int | None = None
    answers: float = 0.0
    novel: float = 0.0
    looked: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> History:
        """What `as_json` gave."""
        times = {"began", "handled", "ended", "looked"}
        known: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        for name in times & set(known):
            known[name] = datetime.fromisoformat(known[name]) if known[name] is not None else None
        return cls(**known)


@dataclass(frozen=True)
class Decision:
    """What to do now: start a run because of ``why``, or look again at ``again``."""

    run: bool
    why: str
    again: datetime
    history: History


def check_plan(plan: Plan) -> None:
    """Refuse plans that mean nothing.

    Raises:
        UserError: with the option to mend.
    """
    if plan.every is not None and plan.cron is not None:
        raise UserError("--every and --cron both say when to run: give one of them")
    if plan.every is None and plan.cron is None and plan.drift is None:
        raise UserError("a schedule needs --every, --cron or --on-drift")
    if plan.every is not None and plan.every < 1:
        raise UserError("--every is below a second")
    if plan.drift is not None and not 0 < plan.drift < 1:
        raise UserError("--on-drift is a share of novel answers above 0 and below 1")
    try:
        ZoneInfo(plan.zone)
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"no time zone '{plan.zone}'") from error
    if plan.cron is not None:
        try:
            next(_times(plan.cron, datetime(2000, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            raise UserError(
                f"--cron '{plan.cron}' is no time ({error or 'it never comes'}): give five fields, minute hour day "
                "month weekday, as '0 3 * * *'"
            ) from error
    start = datetime(2000, 1, 1, tzinfo=UTC)
    first = next_due(plan, start, start)
    second = next_due(plan, first, start) if first is not None else None
    if first is not None and second is not None and plan.jitter > (second - first).total_seconds() / 2:
        raise UserError("--jitter is more than half of the time between two runs: lower it")


def next_due(plan: Plan, after: datetime, began: datetime) -> datetime | None:
    """The first due time later than ``after``; None where the plan has none. Without jitter."""
    if plan.every is not None:
        done = math.floor((after - began).total_seconds() / plan.every + 1e-9)
        return began + timedelta(seconds=plan.every * max(done + 1, 0))
    if plan.cron is not None:
        local = after.astimezone(ZoneInfo(plan.zone))
        return next(_times(plan.cron, local)).astimezone(UTC)
    return None


def _times(cron: str, after: datetime, backwards: bool = False) -> CronSim:
    """The times later than ``after``, or earlier. Raises CronSimError where ``cron`` says none."""
    fields = len(cron.split())
    if fields != 5:  # cronsim takes a sixth for seconds, others for years
        raise CronSimError(f"it has {fields} {'field' if fields == 1 else 'fields'}")
    return CronSim(cron, after, reverse=backwards)


def newest_due(plan: Plan, now: datetime, history: History) -> datetime | None:
    """The newest due time not later than ``now`` that was not dealt with: of many missed ones, one is left."""
    if plan.every is not None:
        done = math.floor((now - history.began).total_seconds() / plan.every + 1e-9)
        due = history.began + timedelta(seconds=plan.every * done) if done >= 0 else None
    elif plan.cron is not None:
        due = _newest_cron(plan.cron, ZoneInfo(plan.zone), history.handled or history.began, now)
    else:
        due = None
    if due is None or (history.handled is not None and due <= history.handled):
        return None
    return due


def _newest_cron(cron: str, zone: ZoneInfo, after: datetime, now: datetime) -> datetime | None:
    due = None
    for time in islice(_times(cron, after.astimezone(zone)), _MOST_MISSED):
        if time > now:
            return due
        due = time.astimezone(UTC)
    # Backwards costs a thousand times more, and is needed once after a long sleep.
    return next(_times(cron, (now + timedelta(seconds=1)).astimezone(zone), backwards=True)).astimezone(UTC)


def jitter_of(plan: Plan, due: datetime, who: str) -> timedelta:
    """How long a start is put off: the same for one registry and due time, another for others."""
    digest = hashlib.sha256(f"{who}/{due.isoformat()}".encode()).digest()
    return timedelta(seconds=plan.jitter * int.from_bytes(digest[:8], "big") / 2**64)


def pause_after(failures: int) -> timedelta:
    """How long after so many failures in a row nothing is tried."""
    if failures <= 0:
        return timedelta(0)
    return timedelta(seconds=min(FIRST_PAUSE * 2.0 ** min(failures - 1, _MANY), LONGEST_PAUSE))


def decide(
    plan: Plan,
    history: History,
    now: datetime,
    who: str,
    count_new: Callable[[], int],
    counters: Callable[[], tuple[float, float] | None],
) -> Decision:
    """Whether to run now.

    Args:
        who: the registry; decides the jitter.
        count_new: photos that came since the last run; asked only when it matters.
        counters: the server's (answers, novel) counters, None where it does not say.
    """
    if history.failures:
        again = (history.ended or now) + pause_after(history.failures)
        if now < again:
            return Decision(False, f"waiting after {history.failures} failures", again, history)
        return Decision(True, f"trying again after {history.failures} failures", now, history)
    due = newest_due(plan, now, history)
    if due is not None and now >= due + jitter_of(plan, due, who):
        history = replace(history, handled=due)
        count = count_new()
        if count >= plan.min_new:
            return Decision(True, f"due, {count} new photos", now, history)
        return Decision(
            False, f"due, {count} of {plan.min_new} new photos", _next(plan, history, now, who), history
        )
    if plan.drift is not None:
        found = _drifted(plan, history, now, counters)
        if found.run:
            return found
        history = found.history
    why = "waiting" if due is None else "put off a little"
    return Decision(False, why, _next(plan, history, now, who), history)


def ended(history: History, now: datetime, code: int) -> History:
    """The history after a run that ended with ``code``: kept candidates and busy locks are no failures."""
    failed = code not in (0, KEPT, BUSY)
    return replace(history, ended=now, code=code, runs=history.runs + 1,
                 failures=history.failures + 1 if failed else 0)  # fmt: skip


def _drifted(
    plan: Plan, history: History, now: datetime, counters: Callable[[], tuple[float, float] | None]
) -> Decision:
    look = timedelta(seconds=plan.look)
    if history.looked is not None and now < history.looked + look:
        return Decision(False, "", history.looked + look, history)
    found = counters()
    history = replace(history, looked=now)
    if found is None:
        return Decision(False, "", now + look, history)
    answers, novel = found
    if answers < history.answers or novel < history.novel:  # the server began anew
        history = replace(history, answers=0.0, novel=0.0)
    came = answers - history.answers
    if came < plan.drift_answers:
        return Decision(False, "", now + look, history)
    share = (novel - history.novel) / came
    history = replace(history, answers=answers, novel=novel)
    if plan.drift is not None and share > plan.drift:
        return Decision(True, f"{100 * share:.0f}% of {came:.0f} answers were novel", now, history)
    return Decision(False, "", now + look, history)


def _next(plan: Plan, history: History, now: datetime, who: str) -> datetime:
    times = []
    due = newest_due(plan, now, history)
    if due is None:
        due = next_due(plan, now, history.began)
    if due is not None:
        times.append(due + jitter_of(plan, due, who))
    if plan.drift is not None:
        times.append((history.looked or now) + timedelta(seconds=plan.look))
    return max(min(times), now + timedelta(seconds=0.5)) if times else now + timedelta(seconds=plan.look)
