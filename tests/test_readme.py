"""What the README tells people to type exists, parses and works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from partgcd.cli.main import app, main

ROOT = Path(__file__).resolve().parents[1]
# Appended to a documented command so that it takes seconds; in click the last word counts.
QUICK = (
    "--backbone", "test_vit", "--random-weights", "--image-size", "160", "--epochs", "1", "--batch-size", "12",
    "--threads", "1", "--device", "cpu", "--precision", "fp32", "--set", "loss.projector_hidden=32",
    "--set", "loss.projector_out=16", "--set", "parts.count=3", "--set", "parts.min_patches=20",
)  # fmt: skip
SMALL_DEMO = ("--species", "4", "--per-species", "6", "--size", "64")
NEEDS_NETWORK = {"weights fetch"}
REDISCOVERED = {0, 3}  # on images this small the gate may keep the candidate from being promoted


class Line(NamedTuple):
    """A command of the README: ``words`` after the program's name."""

    program: str
    words: list[str]

    @property
    def text(self) -> str:
        return shlex.join([self.program, *self.words])


def commands(markdown: str) -> list[Line]:
    """Every line of a fenced bash block that calls this program or make."""
    found = []
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):  # VARIABLE=value before the program
                words.pop(0)
            if words and Path(words[0]).name in ("partgcd", "make"):
                found.append(Line(Path(words[0]).name, words[1:]))
    return found


README = commands((ROOT / "README.md").read_text(encoding="utf-8"))
PARTGCD = [line for line in README if line.program == "partgcd"]


def test_the_readme_names_commands() -> None:
    assert {line.program for line in README} == {"partgcd", "make"}


def test_commands_are_found_wherever_they_hide() -> None:
    markdown = "```bash\npartgcd a --b \\\n  c  # why\n$ X=1 .venv/bin/partgcd d\nls\nmake e\n```\n```\nmake f\n```\n"
    assert [line.text for line in commands(markdown)] == ["partgcd a --b c", "partgcd d", "make e"]


@pytest.mark.parametrize(
    "line", [line for line in README if line.program == "make"], ids=lambda line: line.text
)
def test_make_targets_exist(line: Line) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in line.words:
        name, is_variable, _ = word.partition("=")
        pattern = rf"^{name} *\?=" if is_variable else rf"^{name}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {name}"


def parse(words: list[str]) -> str:
    """The command that ``words`` call, parsed by the program's own parser, which raises what it finds wrong."""
    command: Any = typer.main.get_command(app)
    path, rest = ["partgcd"], list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        if path[-1] not in command.commands:
            raise LookupError(f"no such command: {' '.join(path)}")
        command = command.commands[path[-1]]
    command.make_context(path[-1], rest)
    return " ".join(path[1:])


@pytest.mark.parametrize("line", PARTGCD, ids=lambda line: line.text)
def test_every_documented_command_parses(line: Line) -> None:
    assert parse(line.words)


@pytest.mark.parametrize(
    "text",
    ["frobnicate", "train --frob 3", "train --epochs many", "evaluate", "weights frob", "demo --size 1"],
)
def test_a_command_that_is_wrong_does_not_parse(text: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|missing|valid|range|greater"):
        parse(shlex.split(text))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import torch

    before = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    torch.set_num_threads(before)


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["partgcd", *words])
    try:
        main()
    except SystemExit as end:
        assert isinstance(end.code, int | None)
        return end.code or 0
    return 0


def prepared(words: list[str], guide: Path) -> list[str]:
    """``words`` made quick, with the images and runs they name in place."""
    words = list(words)
    if words[0] == "demo":
        return [*words, *SMALL_DEMO]
    for flag in ("--data", "--truth", "--masks"):
        if flag in words and not Path(words[words.index(flag) + 1]).exists():
            target = Path(words[words.index(flag) + 1])
            labelled_only = flag == "--data" and "--protocol" in words
            source = {"--truth": guide / "truth.csv", "--masks": guide / "masks"}.get(
                flag, guide / ("holdout" if labelled_only else "images")
            )
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    if words[0] == "train" and "--resume" not in words:
        if "--weights" in words:
            del words[words.index("--weights") : words.index("--weights") + 2]
        words += QUICK
    named = (
        1 if words[0] in ("evaluate", "report") else words.index("--resume") + 1 if "--resume" in words else 0
    )
    if named and not Path(words[named]).exists():  # RUN or an id that stands for one
        begun = sorted(Path().rglob("run.json"), key=lambda path: path.stat().st_mtime_ns)
        assert begun, f"{words} comes before any training"
        words[named] = str(begun[-1].parent)
    if words[0] == "rediscover":
        words += ["--epochs", "1", "--threads", "1", "--device", "cpu"]
    return words


def serve_and_stop(words: list[str]) -> None:
    """Start a server on a free port, ask for its classes, and stop it as a service manager would."""
    command = [sys.executable, "-m", "partgcd", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            told = re.match(r"serving at (\S+)", server.stdout.readline())
            assert told is not None
            with urllib.request.urlopen(f"{told[1].rstrip('/')}/v1/classes", timeout=30) as answer:
                found = json.load(answer)["classes"]
            wanted = json.loads((Path(words[1]) / "manifest.json").read_text())["classes"]
            assert [each["id"] for each in found] == [each["id"] for each in wanted]
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0


def test_the_documented_commands_work_one_after_the_other(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = workplace / "some guide"
    assert run(["demo", "--out", str(guide), *SMALL_DEMO], monkeypatch) == 0
    for line in PARTGCD:
        name = parse(line.words)
        if name in NEEDS_NETWORK or "--split" in line.words or "--config" in line.words:
            continue
        if name == "serve":
            serve_and_stop(line.words)
            continue
        code = run(prepared(line.words, guide), monkeypatch)
        assert code in (REDISCOVERED if name == "rediscover" else {0}), line.text


def test_the_everyday_commands_work_on_tiny_images(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(text: str, *more: str) -> str:
        capsys.readouterr()
        assert run([*shlex.split(text), *more], monkeypatch) == 0, text
        return capsys.readouterr().out

    assert "next: partgcd train" in call("demo --out demo", *SMALL_DEMO)
    assert "usable" in call("inspect --data demo/images")
    assert "4 categories" in call("train --data demo/images --out demo/run --classes 4", *QUICK)
    assert "of old classes" in call("evaluate demo/run --truth demo/truth.csv")
    assert call("report demo/run").strip() == "demo/run/report.html"
    assert "offline/vit-small" in call("weights list")
    report = Path("demo/run/report.html").read_text(encoding="utf-8")
    assert json.loads(Path("demo/run/run.json").read_text())["id"] in report
