"""Results of a bench: one line a run in one file, with what differs from a numbered set of default settings.

A default that changes adds a set and rewrites no line: ``defaults.json`` holds every set that results were measured
under, and a line says which. A setting that a set does not know came later; its results were measured with the
default that it came with, which the first later set knows. So a set has to be added with every change of a default
(`add_defaults`; a test sees to it), before anything is measured under it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from partgcd.config.errors import UserError
from partgcd.config.load import flatten
from partgcd.config.tree import Settings
from partgcd.disk.files import append_line, read_json, whole_lines, write_json
from partgcd.disk.lock import locked
from partgcd.methods.known import method_of

Values = dict[str, object]
"""Dotted key to value of settings, as JSON keeps them."""

_MACHINE = ("train.device", "train.threads")
"""Settings that decide how fast a result comes, not what it is measured on."""
_TRAINING = ("loss.", "discovery.prototype_", "discovery.cluster_", "discovery.sinkhorn_", "discovery.marginal_",
             "discovery.fusion_")  # fmt: skip
"""Settings that decide nothing about which images a clustering of frozen features puts together."""
_DEFAULTS, _LOCK = "defaults.json", ".results.lock"
_WAIT_S = 30.0


class Bench(NamedTuple):
    """The file of a bench and what tells one run from another; of two lines of one run the later one counts."""

    file: str
    key: tuple[str, ...]


QUALITY = Bench("quality.jsonl", ("set", "backbone", "method", "seed"))
LIFE = Bench("continual.jsonl", ("set", "seed", "method", "stage"))


def measured_settings(settings: Settings) -> Values:
    """Every setting that a result depends on."""
    method = method_of(settings)
    unused = () if method.parts else ("parts.",) if method.begin is not None else ("parts.", *_TRAINING)
    return {key: value for key, value in _leaves(settings).items() if not key.startswith(unused)}


def same_settings(kept: Values, wanted: Values) -> bool:
    """Whether a result of the settings ``kept``, as `read_results` gives them, is one of those ``wanted``.

    What the result alone knows is gone, or is nothing that the method depends on.
    """
    return all(kept.get(key) == value for key, value in wanted.items())


def read_results(folder: Path, bench: Bench) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Results by key, each with all its ``settings``. A line that was cut off by a kill is none.

    Raises:
        UserError: code 1 for a damaged file.
    """
    file = folder / bench.file
    if not file.exists():
        return {}
    sets = _sets(folder)
    found = {}
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            result = json.loads(line)
            key = tuple(result[name] for name in bench.key)
            settings = _resolved(sets, int(result.pop("defaults")), result.pop("differs"))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"'{file}' is damaged in line {number}: {error}", 1) from error
        found[key] = {**result, "settings": settings}
    return found


def add_result(folder: Path, bench: Bench, result: dict[str, Any]) -> None:
    """Append one result, its ``settings`` as what differs from today's defaults; several processes may at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, "writing results", wait=_WAIT_S):
        number = add_defaults(folder)
        today = _sets(folder)[number - 1]
        kept = {key: value for key, value in result.items() if key != "settings"}
        differs = {key: value for key, value in result["settings"].items() if today.get(key, ...) != value}
        line = {
            **{name: kept.pop(name) for name in bench.key},
            "defaults": number,
            "differs": differs,
            **kept,
        }
        append_line(folder / bench.file, json.dumps(line, ensure_ascii=False, allow_nan=False).encode())


def add_defaults(folder: Path) -> int:
    """The number, from 1, of today's default settings, as which they are added if the newest set is another one."""
    sets, today = _sets(folder), _leaves(Settings())
    if not sets or sets[-1] != today:
        sets.append(today)
        write_json(folder / _DEFAULTS, {str(number): each for number, each in enumerate(sets, start=1)})
    return len(sets)


def _sets(folder: Path) -> list[Values]:
    """Sets of defaults, the oldest first."""
    file = folder / _DEFAULTS
    return list(read_json(file).values()) if file.exists() else []


def _resolved(sets: list[Values], number: int, differs: Values) -> Values:
    later = [sets[number - 1], *sets[number:], _leaves(Settings())]
    settings: Values = {}
    for each in reversed(later):
        settings |= each
    return settings | differs


def _leaves(settings: Settings) -> Values:
    leaves = {key: value for key, value in flatten(settings).items() if key not in _MACHINE}
    kept: Values = json.loads(json.dumps(leaves))
    return kept


def changed_defaults(folder: Path) -> Iterator[tuple[str, object, object]]:
    """(key, value of the newest set, today's) where the two differ: empty where `add_defaults` has nothing to add."""
    newest, today = (_sets(folder) or [{}])[-1], _leaves(Settings())
    for key in sorted(newest.keys() | today.keys()):
        if newest.get(key, ...) != today.get(key, ...):
            yield key, newest.get(key), today.get(key)
