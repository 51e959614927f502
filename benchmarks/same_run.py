"""Is a run of many workers the run of one? The same training by one process and by 1, 2 and 4 gloo workers.

Prints, against the one process: the largest relative difference of a step's loss over the first 20 steps, whether
candidates are the same at every refresh, the largest difference of the banks of the first refreshes, and how many
images are assigned otherwise at the end. With ``--threads-too`` the one process also runs with two threads instead
of one: how far rounding alone carries a run, with no other worker in it.

    python benchmarks/same_run.py --data FOLDER [--protocol gcd] [--workers 1,2,4] [--out FILE] -- a.b=value ...
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file

from partgcd.config.load import load_settings
from partgcd.discovery import fit as fitting
from partgcd.discovery.discover import discover
from partgcd.discovery.outputs import predicted_classes
from partgcd.discovery.task import Task
from partgcd.run.checkpoint import list_checkpoints
from partgcd.run.folder import RunFolder
from partgcd.run.torch_world import TorchWorld
from partgcd.run.world import SoloWorld, World

STEPS, REFRESHES = 20, 2
CPU = torch.device("cpu")


def train(rank: int, size: int, path: Path, meeting: Path) -> None:
    """The run in ``path``, as rank ``rank`` of ``size``; 0 is this process alone."""
    torch.set_num_threads(1)
    run = RunFolder.open(path)
    losses, real = [], fitting.step_loss

    def watched(*what: Any) -> Any:
        loss = real(*what)
        losses.append(loss.terms["total"])
        return loss

    fitting.step_loss = watched
    if size:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    world: World = TorchWorld(run, CPU) if size else SoloWorld(run, CPU)
    try:
        discover(run, run.settings(), world)
    finally:
        fitting.step_loss = real
    if rank == 0:
        (path / "losses.json").write_text(json.dumps(losses))
    if size:
        dist.destroy_process_group()


def differences(one: RunFolder, other: RunFolder) -> dict[str, Any]:
    """How far ``other`` is from ``one``."""
    losses = [json.loads((run.path / "losses.json").read_text()) for run in (one, other)]
    pairs = list(zip(*losses, strict=True))[:STEPS]
    refreshes = zip(one.read_epochs(), other.read_epochs(), strict=True)
    same = [
        all(np.array_equal(a[name], b[name]) for name in ("candidate_rows", "candidate_classes"))
        for (_, a), (_, b) in refreshes
    ]
    banks = []
    checkpoints = zip(list_checkpoints(one.checkpoints), list_checkpoints(other.checkpoints), strict=True)
    for paths in list(checkpoints)[:REFRESHES]:
        a, b = (load_file(path / "tensors.safetensors") for path in paths)
        names = [name for name in a if name.startswith("bank.") and a[name].is_floating_point()]
        banks.append(max((float((a[name] - b[name]).abs().max()) for name in names), default=0.0))
    images = len(one.read_epochs()[0][1]["predicted"])
    found = [predicted_classes(run, images) for run in (one, other)]
    return {
        "steps": len(pairs),
        "loss_relative": max(abs(a - b) / abs(a) for a, b in pairs),
        "same_candidates": same,
        "bank_absolute": banks,
        "images": images,
        "assigned_otherwise": int((found[0] != found[1]).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--protocol", default=None)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--threads-too", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*", help="settings, after --")
    args = parser.parse_args()
    common = ["train.threads=1", "train.precision=fp32", "train.device=cpu", "train.keep_checkpoints=1000"]
    sizes = [0, *(int(size) for size in args.workers.split(","))]
    result: dict[str, Any] = {"settings": args.settings, "against_one_process": {}}
    with TemporaryDirectory(prefix="partgcd-same-") as scratch:
        runs: dict[str, RunFolder] = {}
        for size in [*sizes, *([-1] if args.threads_too else [])]:
            name = {0: "one process", -1: "two threads"}.get(size, f"{size} workers")
            changed = ["train.threads=2"] if size < 0 else []
            settings = load_settings(assignments=[*common, *args.settings, *changed])
            task = Task(args.data, args.protocol)
            runs[name] = RunFolder.create(Path(scratch) / name, settings, args.data, task.request())
            meeting = Path(scratch) / f"meeting-{size}"
            began = time.perf_counter()
            if size > 0:
                mp.spawn(train, (size, runs[name].path, meeting), nprocs=size)  # type: ignore[no-untyped-call]
            else:
                train(0, 0, runs[name].path, meeting)
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
            if size:
                found = differences(runs["one process"], runs[name])
                result["against_one_process"][name] = found
                print(json.dumps(found), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
