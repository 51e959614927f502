"""Files that may not be used, disks that are full, streams that are closed: one line and the right exit code."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.tree import Settings
from partgcd.disk.files import describe_os_error
from partgcd.registry.log import append
from partgcd.registry.versions import Registry
from partgcd.run.folder import RunFolder

Partgcd = Callable[..., Any]

COMMANDS: dict[str, list[tuple[str, int]]] = {
    # what is asked for: what may not be used, and its mode
    "inspect --data images": [("images", 0)],
    "inspect --data m.csv": [("m.csv", 0)],
    "train --data images --out ro/o": [("images", 0), ("ro", 0o555), ("ro", 0)],
    "train --data images --out ro": [("ro", 0o555), ("ro", 0)],
    "train --data images": [("runs", 0o555)],
    "train --data images --out o --config c.yaml": [("c.yaml", 0)],
    "train --data images --out o --backbone test_vit --weights w.pth --device cpu": [("w.pth", 0)],
    "train --resume run": [("run", 0), ("run/run.json", 0), ("run/config.yaml", 0), ("run", 0o444)],
    "evaluate run --truth t.csv": [("run", 0), ("t.csv", 0), ("run/catalog.parquet", 0)],
    "report run": [("run", 0), ("run", 0o444)],
    "export run --out ro/b": [("run", 0), ("ro", 0o555), ("ro", 0), ("run/run.json", 0)],
    "bundle check one": [("one", 0), ("one", 0o444), ("one/manifest.json", 0), ("one/model.onnx", 0)],
    "classify one images": [("one", 0), ("one/manifest.json", 0)],
    "classify r images": [("r", 0), ("r/aliases.json", 0), ("r/versions", 0)],
    "registry init ro/new": [("ro", 0o555), ("ro", 0)],
    "registry add r one": [("r", 0), ("r", 0o444), ("r/.lock", 0), ("one", 0), ("one/model.onnx", 0)],
    "registry add r two": [("r/versions", 0o555)],
    "registry list r": [("r", 0), ("r/versions", 0), ("r/versions/000001/version.json", 0), ("r/registry.json", 0)],
    "registry show r": [("r", 0), ("r/aliases.json", 0), ("r/versions/000001", 0)],
    "registry promote r 2": [("r", 0o444), ("r/.lock", 0), ("r/versions/000002/bundle/model.onnx", 0)],
    "registry rollback r": [("r", 0o555), ("r/aliases.json", 0)],
    "classes list r": [("r", 0), ("r/classes.jsonl", 0), ("r/versions/000001/bundle/manifest.json", 0)],
    "classes show r c-1": [("r", 0), ("r/classes.jsonl", 0)],
    "classes rename r c-1 Wren": [("r", 0), ("r/classes.jsonl", 0), ("r/classes.jsonl", 0o444), ("r/.lock", 0)],
    "classes note r c-1 words": [("r/classes.jsonl", 0o444)],
    "classes merge r c-1 c-2": [("r/classes.jsonl", 0), ("r/versions/000001/bundle", 0)],
    "classes undo r": [("r/classes.jsonl", 0)],
    "classes history r": [("r/classes.jsonl", 0)],
    "rediscover --registry r --new new": [("r", 0), ("r", 0o555), ("r/.rediscover", 0), ("new", 0)],
    "rediscover --registry r --new new --labelled images": [("images", 0)],
    "rediscover --registry r --new new --every 1h --min-new 99": [("r", 0o555)],
    "runs show a": [("runs/a", 0), ("runs/a/run.json", 0)],
    "demo --out ro/d": [("ro", 0o555), ("ro", 0)],
    "benchmark table --plan c.yaml": [("c.yaml", 0)],
}  # fmt: skip
CASES = [(words, path, mode) for words, cases in COMMANDS.items() for path, mode in cases]


@pytest.fixture
def place(tmp_path: Path, images: Path, light_bundle: Callable[..., Path]) -> Iterator[Path]:
    """Something of everything, in the working directory."""
    registry = Registry.init(tmp_path / "r")
    for name in ("one", "two"):
        registry.add(light_bundle(name, ["c-1", "c-2", f"c-{name}"]))
    registry.promote("2")
    registry.promote("1")
    append(registry.log, "note", id="c-1", text="a note")
    with registry.training():
        (tmp_path / "new").mkdir()
    shutil.copy(images / "unlabelled" / "0.png", tmp_path / "new")
    shutil.rmtree(tmp_path / "two")
    light_bundle("two", ["c-1", "c-9"])
    for path in ("run", "runs/a"):
        run = RunFolder.create(tmp_path / path, Settings(), images, {"protocol": None, "split": None})
        (run.path / "catalog.parquet").write_bytes(b"")
        run.update(status="finished")
    (tmp_path / "ro").mkdir()
    (tmp_path / "m.csv").write_text("path,label\nimages/ash/0.png,ash\n")
    (tmp_path / "t.csv").write_text("path,truth\nunlabelled/0.png,ash\n")
    (tmp_path / "c.yaml").write_text("seed: 1\n")
    (tmp_path / "s.json").write_text('{"old_classes": ["ash"], "labelled": []}')
    (tmp_path / "w.pth").write_bytes(b"")
    yield tmp_path
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o700)


@pytest.mark.parametrize(("words", "path", "mode"), CASES)
def test_what_may_not_be_used_is_one_line(
    place: Path, partgcd: Partgcd, bound: None, words: str, path: str, mode: int
) -> None:
    before = _content(place / "r")
    (place / path).chmod(mode)
    answer = partgcd(*words.split())
    (place / path).chmod(0o700)
    assert answer.code == 1, (answer.out, answer.err)
    assert answer.error
    assert _content(place / "r") == before, "nothing changed, nothing half left"


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".rediscover")
    }


@pytest.mark.parametrize(
    ("path", "mode"),
    [("versions", 0), ("versions/000002", 0), ("versions/000002/version.json", 0), ("versions/000002/bundle", 0),
     ("versions/000002/bundle/model.onnx", 0), ("aliases.json", 0), ("classes.jsonl", 0), ("versions", 0o444)],
)  # fmt: skip
def test_verify_tells_what_it_may_not_read(
    place: Path, partgcd: Partgcd, bound: None, path: str, mode: int
) -> None:
    (place / "r" / path).chmod(mode)
    answer = partgcd("registry", "verify", "r")
    assert answer.code == 1 and "Traceback" not in answer.err
    assert answer.err.strip() and "versions are whole" not in answer.out


@pytest.mark.parametrize("record", ['{"version": 2}', "[]", "7", "{", '{"bundle": 3, "classes": 4}'])
def test_verify_tells_damaged_records(place: Path, partgcd: Partgcd, record: str) -> None:
    (place / "r/versions/000002/version.json").write_text(record)
    answer = partgcd("registry", "verify", "r")
    assert answer.code == 1 and "Traceback" not in answer.err and "2" in answer.err


def test_a_run_that_may_not_be_read_does_not_hide_the_others(
    place: Path, partgcd: Partgcd, bound: None
) -> None:
    shutil.copytree(place / "runs/a", place / "runs/b")
    (place / "runs/a/run.json").chmod(0)
    answer = partgcd("runs", "list")
    assert answer.code == 1 and len(answer.out.splitlines()) == 1 and "runs/a" in answer.err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_full_disk_leaves_the_registry_as_it_was(
    place: Path, partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = _content(place / "r")
    real, left = shutil.copyfile, [4]

    def fail(source: Path, target: Path, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            Path(target).write_bytes(b"half")
            raise OSError(number, os.strerror(number), str(source), None, str(target))
        return real(source, target, **more)

    monkeypatch.setattr(shutil, "copyfile", fail)
    answer = partgcd("registry", "add", "r", "two")
    assert answer.code == 1 and ("full" in answer.error or "does not answer" in answer.error)
    assert _content(place / "r") == before and not list((place / "r/versions").glob(".*"))
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert partgcd("registry", "add", "r", "two").code == 0


LARGE = """
from pathlib import Path
from partgcd.cli import main
from partgcd.disk.files import write_bytes
main._run = lambda: write_bytes(Path("x"), bytes(200_000))
main.main()
"""


def test_a_file_that_would_be_too_large_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE], cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("partgcd: the disk is full"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE,
    errno.EMFILE, errno.ENFILE, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT,
    errno.EBUSY, errno.ETXTBSY, errno.ENXIO, errno.EINVAL, errno.ENOTEMPTY, errno.EXDEV, errno.ENODEV,
])  # fmt: skip
def test_every_error_of_a_file_is_a_line_that_names_it(number: int) -> None:
    told = describe_os_error(OSError(number, os.strerror(number), "/some/file"))
    assert told is not None and told.code == 1 and "\n" not in str(told)
    assert "/some/file" in str(told) or number in (errno.EMFILE, errno.ENFILE)


def test_errors_of_connections_are_none_of_files() -> None:
    assert describe_os_error(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None
    assert describe_os_error(TimeoutError(errno.ETIMEDOUT, "timed out")) is None


STREAMS = """
import os, sys
import partgcd.backbone.weights, partgcd.registry.edits, partgcd.run.folder  # once for all
from partgcd.cli import main
words, closed, full = sys.argv[1].split("|"), sys.argv[2], sys.argv[3]
found = []
for words in map(str.split, words):
    pid = os.fork()
    if pid == 0:
        for number in map(int, filter(None, closed.split(","))):
            os.close(number)
        if full:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        sys.argv = ["partgcd", *words]
        try:
            main.main()
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(99)
    found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
sys.stderr.write(repr(found))
"""
PRINTING = [
    "classes list r", "classes list r --format csv", "classes list r --format jsonl", "classes show r c-1",
    "classes history r", "registry list r", "registry show r", "registry verify r", "runs list", "runs show a",
    "--help", "classes --help", "--version", "weights list",
]  # fmt: skip


def _printing(
    place: Path, closed: str = "", full: str = "", words: list[str] = PRINTING, **environment: str
) -> tuple[list[int], str, str]:
    done = subprocess.run(
        [sys.executable, "-c", STREAMS, "|".join(words), closed, full], cwd=place, capture_output=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    told = done.stderr.decode("utf-8", "replace")
    assert "Traceback" not in told and "Exception ignored" not in told, told
    lines, _, codes = told.rpartition("[")
    return [int(code) for code in codes.rstrip("]").split(",")], done.stdout.decode("latin-1"), lines


@pytest.mark.parametrize(("closed", "full"), [("0,1", ""), ("", "full")])
def test_an_answer_that_can_not_be_printed_is_one_line(place: Path, closed: str, full: str) -> None:
    codes, _, lines = _printing(place, closed, full)
    assert codes == [1] * len(PRINTING)
    assert [line.partition(" (")[0] for line in lines.splitlines()] == [
        "partgcd: can't print the answer"
    ] * len(PRINTING)


@pytest.mark.parametrize("closed", ["0,2"])
def test_other_streams_that_are_closed_are_not_missed(place: Path, closed: str) -> None:
    codes, out, _ = _printing(place, closed)
    assert codes == [0] * len(PRINTING) and "c-1" in out


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}]
)
def test_letters_that_the_output_lacks_are_spelled_out(place: Path, environment: dict[str, str]) -> None:
    append(Registry(place / "r").log, "rename", id="c-1", name="K\u00e4fer \u4f60", before="")
    codes, out, _ = _printing(place, **environment)
    assert codes == [0] * len(PRINTING)
    assert "\\u4f60" in out or "\u4f60".encode().decode("latin-1") in out


def test_a_stream_that_was_closed_from_the_start(place: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m partgcd classes list r >&- <&-"], cwd=place, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (
        done.returncode == 1
        and done.stderr.startswith("partgcd: can't print")
        and done.stderr.count("\n") == 1
    )


def test_orders_to_a_terminal_and_formulas_stay_words(place: Path, partgcd: Partgcd) -> None:
    log = Registry(place / "r").log
    append(log, "rename", id="c-1", name="=1+1\x1b[31mred\u202egnp", before="\x1b]0;x\x07")
    append(log, "note", id="c-2", text="\x9b31m @SUM(A1)")
    words = ["classes list r", "classes list r --format csv", "classes list r --format jsonl", "classes show r c-1",
             "classes history r", "classes history r --format jsonl", "classes history r --format csv",
             "classes rename r c-2 name_1", "evaluate \x1b[2Jnowhere", "train --data \u202e\x9bnowhere"]  # fmt: skip
    for each in words:
        answer = partgcd(*each.split(" "))
        assert not set("\x1b\x9b\x07\u202e") & set(answer.out + answer.err), each
    listed = partgcd("classes", "list", "r", "--format", "csv").out
    assert "'=1+1\\x1b[31mred" in listed


@pytest.mark.parametrize("format", ["csv", "jsonl", "table"])
def test_answers_hold_no_orders_and_csv_no_formulas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, format: str
) -> None:
    import json

    from partgcd.cli.answers import write_answers
    from partgcd.export.predictor import Answer, Choice, Failure

    hostile = ("=cmd", "\x1b[31mx", "\u202egnp", "\x9b0m")
    answers: list[tuple[Path, Any]] = [
        (Path(name + ".png"), Answer((Choice(name, name, "old", 0.5),), False, -0.25, "v"))
        for name in hostile
    ]
    answers.append((Path("=x"), Failure("@SUM(1)\x1b", "v")))
    assert write_answers(answers, format, 1, None, lambda done: None) == 1
    out = capsys.readouterr().out
    assert not set("\x1b\x9b\u202e") & set(out)
    if format == "csv":
        assert "./=cmd.png,'=cmd,'=cmd,old," in out and "'@SUM" in out and ",-0.2500," in out
    if format == "jsonl":
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["path"] for line in lines[:-1]] == [f"{name}.png" for name in hostile]
