"""A run that was broken off, whenever and however, ends as if nothing had happened."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import random
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from partgcd.config.tree import DataSettings
from partgcd.data.ingest import ingest
from partgcd.data.scan import scan
from partgcd.run.folder import RunFolder

KILLS = 20
_TIMES = {"seconds", "images_per_second", "peak_memory_mb", "created", "command"}


@dataclass(frozen=True)
class Case:
    """A training command and the run folder it leaves when nobody disturbs it."""

    argv: list[str]
    whole: Path
    seconds: float


@pytest.fixture(scope="module")
def cases(partgcd: Any, tiny: list[str], picture_folder: Callable[..., Path], tmp_path_factory: Any) -> Any:
    """Makes each case once: ``cases("pool")``."""
    base = tmp_path_factory.mktemp("resume")
    partial = picture_folder(base / "partial", 4, 9, (5, 5), "unlabelled")
    full = picture_folder(base / "full", 4, 9, (9, 9, 9, 9))
    flags = {
        # Every source of state there is: hidden truth, a pool that moves on, an estimate of classes and parts.
        "pool": ["--data", str(full), "--protocol", "gcd", "--classes", "4", "--view-pool", "2",
                 "--set", "train.pool_refresh=0.5"],
        "fresh": ["--data", str(partial), "--classes", "auto", "--view-pool", "0", "--set", "parts.count=auto",
                  "--set", "parts.count_max=4", "--set", "parts.silhouette_patches=50"],
    }  # fmt: skip
    made: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in made:
            whole = base / f"{name} whole"
            argv = [*tiny, *flags[name]]
            ended = partgcd("train", *argv, "--out", whole)
            assert ended.code == 0, ended.err
            made[name] = Case(argv, whole, ended.seconds)
        return made[name]

    return case


def results(run: Path) -> dict[str, Any]:
    """All that a run found, without its id and without what a clock or the machine's load decides."""
    classes = json.loads((run / "classes.json").read_text())
    index = {record["id"]: record["index"] for record in classes}
    found: dict[str, Any] = {}
    for record in classes:
        record["id"] = index[record["id"]]
        for near in record["nearest"]:
            near["id"] = index[near["id"]]
    found["classes.json"] = classes
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found["predictions.csv"] = [{**row, "class_id": index[row["class_id"]]} for row in rows]
    table = pq.read_table(run / "predictions.parquet").to_pylist()
    found["predictions.parquet"] = [{**row, "class_id": index[row["class_id"]]} for row in table]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = [_timeless(line) for line in lines]
    for name in ("run.json", "summary.json"):
        found[name] = _timeless(json.loads((run / name).read_text()))
        del found[name]["id"]
    for name in (
        "features.safetensors",
        "catalog.parquet",
        "truth.parquet",
        "evaluation.json",
        "config.yaml",
    ):
        if (run / name).exists():
            found[name] = (run / name).read_bytes()
    for path in sorted(run.glob("epochs/*")):
        with np.load(path) as arrays:
            found[path.name] = {name: (arrays[name].dtype, arrays[name].tobytes()) for name in arrays.files}
    last = sorted((run / "checkpoints").iterdir())[-1]
    found["last checkpoint"] = last.name
    found["last tensors"] = (last / "tensors.safetensors").read_bytes()
    found["last state"] = _timeless(json.loads((last / "state.json").read_text()))
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in _TIMES}
    return value


def assert_same(run: Path, whole: Path) -> None:
    """The two runs found the same, and left the same files: nothing of a kill is left over."""
    ours, theirs = results(run), results(whole)
    assert ours.keys() == theirs.keys()
    different = [name for name in theirs if ours[name] != theirs[name]]
    assert not different, f"{different}: {ours[different[0]]} != {theirs[different[0]]}"[:3000]
    assert _files(run) == _files(whole)


def _files(run: Path) -> set[str]:
    # An older checkpoint may be from the middle of an epoch: only the last one has to be the same.
    names = {path.relative_to(run).as_posix() for path in run.rglob("*")}
    return {name for name in names if not re.match(r"checkpoints/epoch-\d+-step-\d+", name)}


def go_on(partgcd: Any, case: Case, out: Path, **how: Any) -> Any:
    """What a person does after a crash: resume, or begin again where nothing had begun."""
    if (out / "run.json").exists():
        return partgcd("train", "--resume", out, **how)
    return partgcd("train", *case.argv, "--out", out, **how)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool", "fresh"])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    name: str, cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case, rng = cases(name), random.Random(name)
    chains = KILLS // 4
    kills, before, after = 0, 0, 0
    for chain in count():
        if chain >= chains and kills >= KILLS // 2:
            break
        out = tmp_path / f"killed {chain}"
        # First kills are spread evenly over a run's life, the kills of its resumptions fall anywhere.
        moment = (chain % chains + rng.random()) / chains * case.seconds
        while True:
            ended = go_on(partgcd, case, out, send=signal.SIGKILL, after=moment)
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.err
            kills += 1
            if (out / "checkpoints").exists():
                after += 1
            else:
                before += 1
            # At least one more kill for each run; then until it is through.
            moment = rng.random() * case.seconds * (0.3 if kills < 2 * (chain + 1) else 1.0)
        assert_same(out, case.whole)
        shutil.rmtree(out)
    assert before and after, (before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fatal",
    [
        ("config.yaml", 1),  # right before it gets its name
        ("run.json", 1),
        ("store-.*part/pixels", 1),
        ("store-.*part/store.json", 2),  # right before the store gets its name
        ("^/duplicates.csv", 0),
        ("^/duplicates.csv", 1),
        ("parts.json", 0),
        ("parts.json", 3),  # before run.json learns of them
        ("pool/done", 0),
        ("epoch-0001.npz", 1),
        ("checkpoints/.*state.json", 1),
        ("checkpoints/.*epoch-00003.*tmp$", 10),
        ("classes.json", 0),
        ("summary.json", 3),  # before run.json says finished
        ("report.html", 0),
    ],
)
def test_a_run_killed_right_before_a_file_changes_ends_as_if_it_had_not_been(
    fatal: tuple[str, int], cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case, out = cases("pool"), tmp_path / "killed"
    ended = go_on(partgcd, case, out, watched=out, fatal=fatal)
    assert ended.code == -signal.SIGKILL, ended.err
    ended = go_on(partgcd, case, out)
    assert ended.code == 0, ended.err
    assert_same(out, case.whole)


@pytest.mark.parametrize(
    ("ask", "until"),
    [
        (signal.SIGINT, "images 1/"),
        (signal.SIGTERM, "trunk"),
        (signal.SIGINT, "training 1/"),
        (signal.SIGTERM, "epoch 1 loss"),
        (signal.SIGTERM, "training 1/"),
    ],
)
def test_asked_to_stop_a_run_says_how_to_go_on(
    ask: signal.Signals, until: str, cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case, out = cases("pool"), tmp_path / "it's interrupted"
    ended = partgcd("train", *case.argv, "--out", out, send=ask, until=until)
    assert ended.code == 130, ended.err
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    if until == "training 1/":
        assert [path.name[:-1] for path in (out / "checkpoints").iterdir()] == ["epoch-00001-step-00000"]
    said = ended.err.splitlines()[-1]
    assert said.startswith("interrupted; go on with: partgcd train --resume ")
    ended = partgcd(*shlex.split(said.partition("partgcd ")[2]))
    assert ended.code == 0, ended.err
    assert_same(out, case.whole)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_resuming_a_finished_run_tells_its_summary_and_changes_nothing(cases: Any, partgcd: Any) -> None:
    case = cases("pool")
    before = snapshot(case.whole)
    ended = partgcd("train", "--resume", case.whole)
    assert ended.code == 0, ended.err
    assert "4 categories (given): 2 labelled, 2 discovered; 36 images" in ended.out
    assert "v2" in ended.out and str(case.whole / "report.html") in ended.out
    assert snapshot(case.whole) == before


@pytest.mark.parametrize(
    ("flags", "differing"),
    [
        (["--epochs", "5"], ["train.epochs: 3 != 5"]),
        (["--set", "parts.count=4", "--seed", "7"], ["parts.count: 3 != 4", "seed: 0 != 7"]),
        (["--view-pool", "0"], ["train.view_pool: 2 != 0"]),
        (["--data", "elsewhere"], ["--data"]),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(
    flags: list[str], differing: list[str], cases: Any, partgcd: Any
) -> None:
    case = cases("pool")
    before = snapshot(case.whole)
    ended = partgcd("train", "--resume", case.whole, *flags)
    assert ended.code == 2, ended.err
    assert len(ended.err.splitlines()) == 1
    assert all(each in ended.err for each in differing), ended.err
    assert snapshot(case.whole) == before


def test_resuming_with_the_same_settings_given_again_is_allowed(
    cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case = cases("pool")
    given = [flag for flag in case.argv if flag not in ("--protocol", "gcd")]
    relative = Path("..") / Path(given[given.index("--data") + 1]).name
    given[given.index("--data") + 1] = str(relative)
    here = Path(case.argv[case.argv.index("--data") + 1]).parent / "somewhere"
    here.mkdir(exist_ok=True)
    ended = partgcd("train", "--resume", case.whole, *given, cwd=here)
    assert ended.code == 0, ended.err


_OUTPUTS = ["summary.json", "report.html", "features.safetensors", "classes.json", "predictions.csv",
            "predictions.parquet", "evaluation.json"]  # fmt: skip


def damage(checkpoint: Path, how: str) -> None:
    tensors, state = checkpoint / "tensors.safetensors", checkpoint / "state.json"
    if how == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif how == "empty":
        tensors.write_bytes(b"")
    elif how == "no state":
        state.unlink()
    else:
        state.write_bytes(state.read_bytes()[:50])


@pytest.mark.parametrize(
    ("hows", "repeated"),
    [(["truncated"], 3), (["no state"], 3), (["half a state"], 3), (["truncated", "empty"], 1)],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    hows: list[str], repeated: int, cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case, out = cases("pool"), tmp_path / "damaged"
    shutil.copytree(case.whole, out)
    for name in _OUTPUTS:
        (out / name).unlink()
    checkpoints = sorted((out / "checkpoints").iterdir(), reverse=True)
    assert len(checkpoints) == 2
    for checkpoint, how in zip(checkpoints, hows, strict=False):
        damage(checkpoint, how)
    ended = partgcd("train", "--resume", out)
    assert ended.code == 0, ended.err
    assert f"epoch {repeated} loss" in ended.err and f"epoch {repeated - 1} loss" not in ended.err
    assert_same(out, case.whole)


def test_a_half_written_stamp_of_a_token_store_only_costs_its_tokens(
    cases: Any, partgcd: Any, tmp_path: Path
) -> None:
    case, out = cases("pool"), tmp_path / "damaged"
    shutil.copytree(case.whole, out)
    for name in _OUTPUTS:
        (out / name).unlink()
    for name, text in (("evaluation", ""), ("pool", '{"stamp": "')):
        (out / "cache" / name / "stamp.json").write_text(text)
    ended = partgcd("train", "--resume", out)
    assert ended.code == 0, ended.err
    assert_same(out, case.whole)


@pytest.fixture(scope="module")
def repeated(cases: Any, partgcd: Any, tmp_path_factory: Any) -> tuple[list[str], Path]:
    """A command with --repeats 2, and what it leaves."""
    argv = [*cases("pool").argv, "--epochs", "1", "--repeats", "2"]
    whole = tmp_path_factory.mktemp("repeats") / "whole"
    ended = partgcd("train", *argv, "--out", whole)
    assert ended.code == 0, ended.err
    assert "mean over seeds [0, 1]" in ended.out
    return argv, whole


@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGINT])
def test_repeats_stopped_in_the_second_seed_go_on(
    send: signal.Signals, repeated: tuple[list[str], Path], partgcd: Any, tmp_path: Path
) -> None:
    (argv, whole), out = repeated, tmp_path / "repeats"
    ended = partgcd("train", *argv, "--out", out, send=send, until="seed-1.*training 1/")
    assert ended.code == (130 if send == signal.SIGINT else -signal.SIGKILL)
    first = snapshot(out / "seed-0")
    if send == signal.SIGINT:
        assert ended.err.splitlines()[-1].endswith(f"--resume {out}")
    ended = partgcd("train", "--resume", out)
    assert ended.code == 0, ended.err
    assert "mean over seeds [0, 1]" in ended.out
    assert snapshot(out / "seed-0") == first
    for seed in ("seed-0", "seed-1"):
        assert_same(out / seed, whole / seed)
    ours, theirs = (_timeless(json.loads((run / "summary.json").read_text())) for run in (out, whole))
    assert _without_ids(ours) == _without_ids(theirs)


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(each) for key, each in value.items() if key not in ("id", "runs", "ids")}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("change", range(1, 6))
def test_repeats_killed_before_they_began_can_be_begun_again(
    change: int, repeated: tuple[list[str], Path], partgcd: Any, tmp_path: Path
) -> None:
    argv, out = repeated[0], tmp_path / "repeats"
    assert partgcd("train", *argv, "--out", out, watched=out, fatal=("", change)).code == -signal.SIGKILL
    assert not (out / "repeats.json").exists()
    # Only that it begins: stopped at its first image.
    ended = partgcd("train", *argv, "--out", out, send=signal.SIGINT, until="images 1/")
    assert ended.code == 130, ended.err
    assert not list(out.glob(".*"))


def test_two_processes_do_not_work_on_one_run(cases: Any, partgcd: Any) -> None:
    case = cases("pool")
    with RunFolder.open(case.whole).claimed():
        ended = partgcd("train", "--resume", case.whole)
        assert ended.code == 75
        assert "another process" in ended.err
    assert partgcd("train", "--resume", case.whole).code == 0


def test_what_a_killed_ingest_left_is_removed_and_what_a_living_one_builds_is_not(
    picture_folder: Callable[..., Path], tmp_path: Path
) -> None:
    listing = scan(picture_folder(tmp_path / "pictures", 2, 3))
    run = tmp_path / "run"
    for name in (".store-abc.part", ".store-abc.old", ".store-living.part", ".store2-abc.part"):
        (run / name).mkdir(parents=True)
        (run / name / "pixels.u8").write_bytes(b"half")
    handle = os.open(run / ".store-living.part", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    settings = DataSettings(image_size=32)
    ingest(listing, run / "store", settings)
    assert {path.name for path in run.glob(".*")} == {".store-living.part", ".store2-abc.part"}
    os.close(handle)
    ingest(listing, run / "store", settings)  # finds the store finished, and tidies up all the same
    assert {path.name for path in run.glob(".*")} == {".store2-abc.part"}
