"""Does a run on many workers survive? Workers are killed at random moments, the controller once, SIGTERM is
sent once to a worker and once to the command; every run has to end with the figures of an unbroken one.

python benchmarks/kills.py --data FOLDER [--workers 2] [--kills 5] [--runs 2] -- TRAIN OPTIONS...
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_TIMES = {"seconds", "images_per_second", "peak_memory_mb", "worker_memory_mb"}


def descendants(root: int) -> dict[int, str]:
    """Command line of every process below ``root``."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            names[int(entry.name)] = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    below = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            return {pid: names[pid] for pid in below - {root}}
        below |= more


def named(root: int, name: str) -> list[int]:
    """Ray's processes of that title below ``root``."""
    return sorted(pid for pid, command in descendants(root).items() if command.startswith(f"ray::{name}"))


def figures(run: Path) -> dict[str, Any]:
    """What a run found, without what a clock decides and without its id."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in _TIMES} for line in lines]
    rows = [line.split(",") for line in (run / "predictions.csv").read_text().splitlines()]
    place = rows[0].index("class_id")
    evaluation = run / "evaluation.json"
    return {
        "metrics": kept,
        "predictions": [row[:place] + row[place + 1 :] for row in rows],
        "evaluation": json.loads(evaluation.read_text()) if evaluation.exists() else None,
    }


class Training:
    """One command and the processes below it."""

    def __init__(self, words: list[str]) -> None:
        run = words[words.index("--out") + 1] if "--out" in words else words[1]
        with Path(f"{run}.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "partgcd", "train", *words], stdout=log, stderr=log
            )

    def wait_for(self, name: str, count: int = 1, limit: float = 400.0) -> list[int]:
        """Ids of Ray's processes of that title, once there are so many; [] when the command has ended."""
        until = time.monotonic() + limit
        while time.monotonic() < until and self.process.poll() is None:
            found = named(self.process.pid, name)
            if len(found) >= count:
                return found
            time.sleep(0.1)
        return []

    def wait_for_epoch(self, run: Path, limit: float = 400.0) -> int:
        """Finished epochs, as soon as there are any."""
        until = time.monotonic() + limit
        while not _epochs(run) and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.05)
        return _epochs(run)

    def end(self, limit: float = 600.0) -> tuple[int, list[str]]:
        """Exit code, and the command lines of processes that outlive the command by 15 seconds."""
        below = {}
        until = time.monotonic() + limit
        while self.process.poll() is None and time.monotonic() < until:
            below |= descendants(self.process.pid)
            time.sleep(0.2)
        if self.process.poll() is None:
            self.process.kill()
        time.sleep(15)
        left = [command for pid, command in below.items() if _same(pid, command)]
        return self.process.wait(), left


def _same(pid: int, command: str) -> bool:
    try:
        now = (
            (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return False
    return bool(now) and now[:12] == command[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5, help="of workers, in each run")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--span", type=float, default=6.0, help="seconds that kills are spread over")
    parser.add_argument(
        "--anywhere",
        action="store_true",
        help="from a worker's start on, not from the first epoch it finishes",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default="workers,controller,sigterm-worker,sigterm-command")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("rest", nargs="*", help="options of partgcd train, after --")
    args = parser.parse_args()
    draw, chosen = random.Random(args.seed), args.cases.split(",")
    common = ["--data", args.data, "--workers", str(args.workers), *args.rest]
    result: dict[str, Any] = {"workers": args.workers, "cases": []}
    with TemporaryDirectory(prefix="partgcd-kills-") as scratch:
        whole = Path(scratch) / "whole"
        code, left = Training([*common, "--out", str(whole)]).end()
        assert code == 0, Path(f"{whole}.log").read_text()[-3000:]
        wanted = figures(whole)

        def conclude(case: str, out: Path, code: int, left: list[str], **more: Any) -> None:
            same = code == 0 and figures(out) == wanted
            line = {
                "case": case,
                "exit": code,
                "same figures": same,
                "orphans": [command[:80] for command in left],
                **more,
            }
            result["cases"].append(line)
            print(json.dumps(line), flush=True)
            if not same:
                print(Path(f"{out}.log").read_text()[-2000:], file=sys.stderr)
            if args.json is not None:
                args.json.write_text(json.dumps(result, indent=1) + "\n")

        conclude("unbroken", whole, code, left)
        for number in range(args.runs if "workers" in chosen else 0):
            out = Path(scratch) / f"killed {number}"
            training = Training([*common, "--max-failures", str(args.kills + 2), "--out", str(out)])
            moments, before, at = [], set[int](), 0
            for _ in range(args.kills):
                while (found := training.wait_for("RayTrainWorker", args.workers)) and before & set(found):
                    time.sleep(0.1)
                while not args.anywhere and _epochs(out) <= at and training.process.poll() is None:
                    time.sleep(0.05)
                moment = draw.uniform(0.0, args.span)
                time.sleep(moment)
                before = set(named(training.process.pid, "RayTrainWorker"))
                if not found or not before:
                    break
                os.kill(draw.choice(sorted(before)), signal.SIGKILL)
                at = _epochs(out)
                moments.append([round(moment, 1), at])
            code, left = training.end()
            conclude("kill -9 of workers", out, code, left, kills=len(moments), moments=moments)
        for case, title, number in (
            ("controller", "TrainController", signal.SIGKILL),
            ("sigterm-worker", "RayTrainWorker", signal.SIGTERM),
        ):
            if case not in chosen:
                continue
            out = Path(scratch) / case
            training = Training([*common, "--out", str(out)])
            at = training.wait_for_epoch(out)
            os.kill(named(training.process.pid, title)[0], number)
            code, left = training.end()
            name = "kill -9 of the controller" if case == "controller" else "SIGTERM to a worker"
            conclude(name, out, code, left, epochs_done=at)
        if "sigterm-command" in chosen:
            out = Path(scratch) / "sigterm-command"
            training = Training([*common, "--out", str(out)])
            training.wait_for_epoch(out)
            training.process.send_signal(signal.SIGTERM)
            first, left = training.end()
            at = _epochs(out)
            code, more = Training(["--resume", str(out)]).end()
            conclude("SIGTERM to the command", out, code, [*left, *more], first_exit=first, epochs_done=at)


def _epochs(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


if __name__ == "__main__":
    main()
