from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from partgcd import __version__

Partgcd = Callable[..., Any]
COMMANDS = ("inspect", "train", "evaluate", "report", "demo", "doctor", "weights")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"], ["weights", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['partgcd', *{words!r}]\n"
        "from partgcd.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'PIL', 'sklearn', 'pyarrow', 'timm', 'yaml'} & set(sys.modules)\n"
        "heavy |= {name for name in sys.modules if name.startswith(('partgcd.data', 'partgcd.config.tree'))}\n"
        "print(heavy or '', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr


def test_help_names_every_command_and_where_to_start(partgcd: Partgcd) -> None:
    answer = partgcd("--help")
    assert answer.code == 0
    assert all(f"  {name} " in answer.out for name in COMMANDS)
    assert "Start with" in answer.out


@pytest.mark.parametrize("group", ["", "bundle", "runs", "registry", "classes", "weights", "benchmark"])
def test_every_command_says_in_one_whole_line_what_it_does(
    partgcd: Partgcd, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = partgcd(*group.split(), "--help").out.partition("Commands:\n")[2].splitlines()
    assert listed and not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("command", [*COMMANDS[:-1], "weights list", "weights fetch"])
def test_every_command_has_help_with_an_example(partgcd: Partgcd, command: str) -> None:
    answer = partgcd(*command.split(), "--help")
    assert answer.code == 0
    assert f"Example: partgcd {command}" in " ".join(answer.out.split())


def test_the_version_is_the_packages(partgcd: Partgcd) -> None:
    assert partgcd("--version").out.strip() == f"partgcd {__version__}"


@pytest.mark.parametrize(
    "words",
    [[], ["frobnicate"], ["--frob"], ["train", "--frob"], ["train", "--epochs", "many"], ["evaluate"],
     ["report"], ["demo", "--species", "99"], ["weights"]],
)  # fmt: skip
def test_words_that_are_no_command_are_wrong_usage(partgcd: Partgcd, words: list[str]) -> None:
    answer = partgcd(*words)
    assert answer.code == 2
    assert "Traceback" not in answer.out + answer.err
    assert answer.out + answer.err


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "partgcd", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"partgcd {__version__}")
    done = subprocess.run(
        [sys.executable, "-m", "partgcd", "train", "--data", "no/such/place"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "partgcd: no such folder or manifest: 'no/such/place'\n"


def test_ctrl_c_is_130(partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch) -> None:
    from partgcd.data import scan

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scan, "scan", interrupt)
    answer = partgcd("inspect", "--data", ".")
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_an_error_with_line_breaks_is_still_one_line(partgcd: Partgcd) -> None:
    answer = partgcd("train", "--data", "no\nsuch\nplace")
    assert answer.code == 2
    assert answer.error == "no such folder or manifest: 'no such place'"
