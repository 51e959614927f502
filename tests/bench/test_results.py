"""Lines of results and numbered defaults: what comes back, what a changed default does, what a kill leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.bench import results
from partgcd.bench.results import (
    LIFE,
    QUALITY,
    Values,
    add_defaults,
    add_result,
    changed_defaults,
    measured_settings,
    read_results,
    same_settings,
)
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"


def result(settings: Values, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"set": "birds", "backbone": "b", "method": "gcd", "seed": seed, "settings": settings, **more}


def defaults(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """From now on the program's defaults."""
    monkeypatch.setattr(results, "_leaves", lambda settings: dict(values))


@given(
    st.dictionaries(st.sampled_from(["train.lr", "train.epochs", "gone.since"]), st.floats(0, 9)),
    st.text(),
    st.integers(0, 3),
)
def test_a_result_comes_back_as_it_was_added(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, object], note: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("results")
    settings = measured_settings(Settings()) | change
    add_result(folder, QUALITY, result(settings, seed, note=note))
    (line,) = (folder / QUALITY.file).read_text(encoding="utf-8").split("\n")[:-1]
    assert set(json.loads(line)["differs"]) <= set(change), (
        "a line holds what is not the default, and no more"
    )
    found = read_results(folder, QUALITY)
    assert found == {("birds", "b", "gcd", seed): result(settings, seed, note=note)}


def test_the_later_line_of_a_run_counts(tmp_path: Path) -> None:
    settings = measured_settings(Settings())
    for seed, accuracy in ((0, 0.5), (1, 0.75), (0, 0.25)):
        add_result(tmp_path, QUALITY, result(settings, seed, accuracy=accuracy))
    assert [each["accuracy"] for each in read_results(tmp_path, QUALITY).values()] == [0.25, 0.75]
    assert not read_results(tmp_path, LIFE)


def test_a_changed_default_adds_a_set_and_leaves_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults(monkeypatch, a=1, b=1)
    add_result(tmp_path, QUALITY, result({"a": 1, "b": 5}, 0))
    lines = (tmp_path / QUALITY.file).read_bytes()
    defaults(monkeypatch, a=2, b=1, came=7)
    assert list(changed_defaults(tmp_path)) == [("a", 1, 2), ("came", None, 7)]
    assert add_defaults(tmp_path) == 2 and not list(changed_defaults(tmp_path))
    defaults(monkeypatch, a=2, b=1, came=8)
    add_result(tmp_path, QUALITY, result({"a": 2, "b": 1, "came": 8}, 1))
    assert (tmp_path / QUALITY.file).read_bytes().startswith(lines)
    first, second = read_results(tmp_path, QUALITY).values()
    assert first["settings"] == {"a": 1, "b": 5, "came": 7}, "what came later was the default it came with"
    assert second["settings"] == {"a": 2, "b": 1, "came": 8}
    assert same_settings(first["settings"], {"a": 1}) and not same_settings(first["settings"], {"a": 2})
    assert len(json.loads((tmp_path / "defaults.json").read_text())) == 3


def test_a_line_that_a_kill_cut_off_is_none_and_goes_with_the_next(tmp_path: Path) -> None:
    settings = measured_settings(Settings())
    add_result(tmp_path, QUALITY, result(settings, 0))
    with (tmp_path / QUALITY.file).open("ab") as file:
        file.write(b'{"set": "bir')
    assert len(read_results(tmp_path, QUALITY)) == 1
    add_result(tmp_path, QUALITY, result(settings, 1))
    assert len(read_results(tmp_path, QUALITY)) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"x",
        b'{"set": "s", "backbone": "b", "method": "m", "seed": 0, "defaults": 9, "differs": {}}',
    ],
)
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    add_result(tmp_path, QUALITY, result(measured_settings(Settings())))
    with (tmp_path / QUALITY.file).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(UserError, match=r"quality\.jsonl' is damaged in line 2"):
        read_results(tmp_path, QUALITY)


def test_the_defaults_of_today_are_kept_beside_the_results() -> None:
    changed = list(changed_defaults(KEPT))
    assert not changed, (
        'add them: python -c "from pathlib import Path; from partgcd.bench.results import add_defaults; '
        "add_defaults(Path('benchmarks/results'))\""
    )


@pytest.mark.parametrize("bench", [QUALITY, LIFE])
def test_every_kept_result_can_be_read(bench: results.Bench) -> None:
    assert len(read_results(KEPT, bench)) > 100
