from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.config.tree import Settings
from partgcd.run.folder import RunFolder, claimed_run, find_run, new_run_id


def begin(path: Path, settings: Settings | None = None) -> RunFolder:
    return RunFolder.create(path, settings or Settings(), path.parent, {"protocol": None, "split": None})


def test_a_run_records_what_it_needs_to_be_understood_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(assignments=["seed=7", "train.lr=0.125"])
    run = RunFolder.create(Path("out/run"), settings, Path("sub/../images"), {"protocol": "gcd"})
    info = run.info()
    assert run.settings() == settings
    assert info["seed"] == 7 and info["status"] == "begun" and info["request"] == {"protocol": "gcd"}
    assert info["data"] == str(tmp_path / "images")
    assert info["versions"]["torch"] and info["python"].count(".") == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", info["created"])
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", info["id"])


def test_two_runs_never_share_an_id() -> None:
    assert len({new_run_id() for _ in range(50)}) == 50


def test_a_run_is_opened_again_and_updated_in_place(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    RunFolder.open(tmp_path / "run").update(status="running", device="cpu")
    info = RunFolder.open(tmp_path / "run").info()
    assert info["status"] == "running" and info["device"] == "cpu" and info["seed"] == 0


def test_a_folder_without_a_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run in .*run\.json"):
        RunFolder.open(tmp_path)


def test_a_second_run_in_a_folder_is_refused_and_says_what_continues_it(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run: --resume") as caught:
        begin(tmp_path / "run")
    assert caught.value.code == 2


def test_a_run_of_another_configuration_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    other = load_settings(assignments=["train.epochs=3", "parts.alpha=0.75"])
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"train\.epochs: \d+ != 3; parts\.alpha: \S+ != 0\.75"):
        begin(tmp_path / "run", other)
    assert (tmp_path / "run" / "config.yaml").read_text() == before


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(UserError, match="not empty"):
        begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300])
def test_a_path_that_cannot_be_a_folder_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        begin(tmp_path / name)
    assert caught.value.code == 2 and "\n" not in str(caught.value)


def test_a_start_that_was_killed_before_its_record_can_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    assert begin(tmp_path / "run").settings() == Settings()


def test_a_full_disk_at_the_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="disk is full") as caught:
        begin(tmp_path / "run")
    assert caught.value.code == 1


def test_runs_are_found_by_path_folder_name_and_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        begin(Path("runs") / name)
    elsewhere = begin(tmp_path / "elsewhere")
    identity = RunFolder(Path("runs/first")).info()["id"]
    assert find_run(str(elsewhere.path)) == elsewhere.path
    assert find_run("second") == Path("runs/second")
    assert find_run(identity) == Path("runs/first")


def test_an_unknown_run_lists_those_that_are_there(tmp_path: Path) -> None:
    identity = begin(tmp_path / "runs" / "a").info()["id"]
    with pytest.raises(UserError, match=f"no run 'nope'.*{identity}"):
        find_run("nope", tmp_path / "runs")
    with pytest.raises(UserError, match="holds no runs"):
        find_run("nope", tmp_path / "none")


@pytest.mark.parametrize("record", ["", "[]", "3", "{}", '{"id": 4'])
def test_a_damaged_neighbour_does_not_hide_a_run(tmp_path: Path, record: str) -> None:
    identity = begin(tmp_path / "runs" / "b").info()["id"]
    (tmp_path / "runs" / "a").mkdir()
    (tmp_path / "runs" / "a" / "run.json").write_text(record)
    assert find_run(identity, tmp_path / "runs") == tmp_path / "runs" / "b"


def test_a_name_no_file_can_have_is_an_unknown_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run"):
        find_run("x" * 300, tmp_path)


def test_metrics_come_back_line_by_line(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    assert run.read_metrics() == []
    lines = [{"epoch": number, "loss": {"total": number / 3}} for number in (1, 2, 3)]
    for line in lines:
        run.append_metrics(line)
    assert run.read_metrics() == lines
    run.keep_metrics(2)
    assert run.read_metrics() == lines[:2]


@given(cut=st.integers(1, 24))
def test_a_line_cut_by_a_kill_is_dropped(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    run = begin(tmp_path_factory.mktemp("cut") / "run")
    run.append_metrics({"epoch": 1})
    run.append_metrics({"epoch": 2, "loss": 0.125})
    text = run.metrics.read_text()
    run.metrics.write_text(text[:-cut])
    kept = run.read_metrics()
    assert kept == [{"epoch": 1}] or (cut == 1 and len(kept) == 2)
    run.keep_metrics(9)
    run.append_metrics({"epoch": 2})
    assert run.read_metrics()[-1] == {"epoch": 2}
    assert all(json.loads(line) for line in run.metrics.read_text().splitlines())


def test_a_number_that_json_does_not_have_is_refused_and_leaves_the_file(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    run.append_metrics({"epoch": 1})
    with pytest.raises(ValueError, match="JSON"):
        run.append_metrics({"epoch": 2, "loss": float("nan")})
    assert run.read_metrics() == [{"epoch": 1}]


def test_epoch_arrays_come_back_in_order_with_their_types(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    for epoch in (10, 0, 2):
        run.save_epoch(
            epoch, predicted=np.arange(3, dtype=np.int32) + epoch, none=np.zeros(0, np.int32), f=np.eye(2)
        )
    found = run.read_epochs()
    assert [epoch for epoch, _ in found] == [0, 2, 10]
    assert found[1][1]["predicted"].tolist() == [2, 3, 4]
    assert {name: value.dtype for name, value in found[1][1].items()} == {
        "predicted": np.int32, "none": np.int32, "f": np.float64,
    }  # fmt: skip


def test_equal_epochs_are_equal_files(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    for epoch in (1, 2):
        run.save_epoch(epoch, a=np.arange(5))
    first, second = sorted(run.epochs.iterdir())
    assert first.read_bytes() == second.read_bytes()


def test_objects_are_never_pickled_into_an_epoch(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    with pytest.raises(ValueError, match="pickle"):
        run.save_epoch(1, bad=np.array([{}], dtype=object))
    assert not list(run.epochs.glob("*"))


def test_a_damaged_configuration_is_one_line(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    run.config.write_text("seed: [1")
    with pytest.raises(UserError, match=r"config\.yaml") as caught:
        run.settings()
    assert "\n" not in str(caught.value)


RACE = """
import os, sys
from pathlib import Path
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.run.folder import RunFolder, claimed_run

found = []
for number in range(20):
    go, hold, codes = os.pipe(), os.pipe(), []
    kids = []
    for kid in (0, 1):
        pid = os.fork()
        if pid == 0:
            os.read(go[0], 1)
            code = 0
            try:
                with claimed_run(Path(f"run-{number}")):
                    RunFolder.create(Path(f"run-{number}"), Settings(seed=kid), Path(), {})
                    os.close(hold[1])
                    os.read(hold[0], 1)  # works until both have tried
            except UserError as error:
                code = error.code
            os._exit(code)
        kids.append(pid)
    os.write(go[1], b"12")
    first, status = os.wait()  # who lost ends at once
    os.close(hold[1])
    _, other = os.wait()
    found.append(sorted(map(os.waitstatus_to_exitcode, (status, other))))
    for each in (*go, hold[0]):
        os.close(each)
print(found == [[0, 75]] * 20, found)
"""


def test_of_two_that_begin_a_run_in_one_folder_one_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RACE], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr
    for number in range(20):
        run = RunFolder.open(tmp_path / f"run-{number}")
        assert run.settings().seed == run.info()["seed"], "the record and the settings are of one of them"


def test_files_of_a_folder_that_holds_no_run_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".mine.12.tmp").write_text("mine")
    with claimed_run(tmp_path):
        pass
    assert (tmp_path / ".mine.12.tmp").read_text() == "mine"
