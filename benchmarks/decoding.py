"""Every kind of picture through the decoder: is it its plain form, how long does it take, how much memory?

    python benchmarks/decoding.py                       # 2,000 pictures: benchmarks/results/decoding.json
    python benchmarks/decoding.py --files FOLDER ...    # each file of some folders, in a process of its own

The pictures are drawn by pictures.py; TIFFs are compared with tifffile, the others with what was written. Seconds and
peak memory are of processes that decode and do nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import PIL

RESULT = Path(__file__).parent / "results" / "decoding.json"
SECONDS, MEGABYTES = 1.0, 600.0


def sweep(first: int, count: int, step: int) -> dict[str, Any]:
    """Decode every ``step``-th of ``count`` drawn pictures from ``first`` on, in this process."""
    from pictures import draw_picture

    from partgcd.data.decode import BrokenImage, decode

    equal: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for seed in range(first, count, step):
        made = draw_picture(seed)
        kind = made.name.split()[0]
        start = time.perf_counter()
        try:
            found = np.asarray(decode(made.data)).astype(float)
        except BrokenImage as broken:
            refused[broken.reason] += 1
            continue
        finally:
            slowest = max(slowest, time.perf_counter() - start)
        off = np.abs(found - made.plain) if found.shape == made.plain.shape else np.array([np.inf])
        if off.max() <= made.most and off.mean() <= made.mean:
            equal[kind] += 1
        else:
            wrong.append(f"{seed} {made.name}: {off.max():.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"equal": equal, "refused": refused, "wrong": wrong, "slowest_seconds": slowest, "peak_mb": peak}


def one(path: Path) -> dict[str, Any]:
    """Decode one file in this process."""
    from partgcd.data.decode import BrokenImage, decode

    start = time.perf_counter()
    try:
        answer = "{} x {}".format(*decode(path).size)
    except BrokenImage as broken:
        answer = f"refused: {broken.reason}"
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "answer": answer,
        "seconds": seconds,
        "peak_mb": peak,
    }


def in_child(*words: object) -> Any:
    """What this script prints in another process. By way of a shell, lest this process's peak be counted too."""
    found = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, __file__, *map(str, words)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--files", type=Path, nargs="+")
    parser.add_argument("--sweep", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.sweep:
        print(json.dumps(sweep(*words.sweep)))
        return
    if words.one:
        print(json.dumps(one(words.one)))
        return
    if words.files:
        for path in sorted(path for folder in words.files for path in folder.iterdir() if path.is_file()):
            found = in_child("--one", path)
            print("{file:28} {bytes:10,} bytes {seconds:7.2f} s {peak_mb:6.0f} MB  {answer}".format(**found))
        return
    parts = [in_child("--sweep", part, words.count, 4) for part in range(4)]
    equal, refused = (
        sum((Counter(part[key]) for part in parts), Counter[str]()) for key in ("equal", "refused")
    )
    result = {
        "machine": platform.platform(), "pillow": PIL.__version__, "numpy": np.__version__,
        "pictures": words.count, "equal": sum(equal.values()), "refused": sum(refused.values()),
        "wrong": [each for part in parts for each in part["wrong"]],
        "slowest_seconds": max(part["slowest_seconds"] for part in parts),
        "peak_mb": max(part["peak_mb"] for part in parts),
        "equal_by_format": dict(equal.most_common()), "refused_by_reason": dict(refused.most_common()),
    }  # fmt: skip
    words.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {key: value for key, value in result.items() if not key.startswith("refused_by")}, indent=1
        )
    )
    if result["wrong"] or result["slowest_seconds"] > SECONDS or result["peak_mb"] > MEGABYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
