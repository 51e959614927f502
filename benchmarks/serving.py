"""Latency, throughput and memory of an endpoint: a plain FastAPI + torch one, ours embedded, ours on Ray Serve.

All servers are up at once and are measured in turn, round after round, so that whatever else the machine does falls
on all of them alike; figures are medians over the rounds, ratios are medians of each round's ratio. The ceiling is
the predictor called without HTTP, decoding included, right before the server it is compared with: one image after
the other, each with all CPUs, for one client; one image a CPU for several. Processor time a request is what a busy
machine changes least.

    python benchmarks/serving.py PHOTOS RUN BUNDLE [--int8 BUNDLE] [--rounds 3] [--seconds 5] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from load import Outcome, Server, drive, embedded, on_ray, photos

from partgcd.disk.files import write_json
from partgcd.export.predictor import Predictor
from partgcd.export.session import usable_cpus

CLIENTS = (1, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--int8", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serving.json"))
    args = parser.parse_args()
    images = photos(args.photos, 200)
    bundles = {"fp32": args.bundle} | ({"int8": args.int8} if args.int8 else {})
    ceilings = {name: _Ceiling(path) for name, path in bundles.items()}
    servers = {"plain torch": Server(str(Path(__file__).with_name("plain_server.py")), str(args.run))}
    cells: dict[tuple[str, int], list[Outcome]] = {}
    try:
        for name, path in bundles.items():
            servers[f"embedded {name}"] = embedded(path)
        if not args.no_ray:
            servers["ray fp32"] = on_ray(args.bundle, "--replica-cpus", str(usable_cpus()))
        for server in servers.values():
            asyncio.run(drive(server.port, images, 2, requests=6))
        for _ in range(args.rounds):
            for clients in CLIENTS:
                for name, server in servers.items():
                    kind, _, precision = name.partition(" ")
                    if kind == "embedded":
                        found = ceilings[precision].measure(
                            [data for _, data in images], args.seconds, clients > 1
                        )
                        _note(cells, f"in-process {precision}", clients, found)
                    used = server.cpu_seconds()
                    found = asyncio.run(drive(server.port, images, clients, args.seconds))
                    found.cpu = server.cpu_seconds() - used
                    _note(cells, name, clients, found)
                    _write(args.out, args.seconds, servers, cells)
    finally:
        for server in servers.values():
            server.stop()
    print(json.dumps(json.loads(args.out.read_text())["ratios"], indent=1))


class _Ceiling:
    """The predictor without HTTP."""

    def __init__(self, bundle: Path) -> None:
        cpus = usable_cpus()
        self._pairs = [(Predictor.load(bundle, cpus), 1), (Predictor.load(bundle, 1), cpus)]

    def measure(self, images: list[bytes], seconds: float, many: bool) -> Outcome:
        """One image after the other, or ``many`` at once."""
        predictor, threads = self._pairs[many]
        outcome, began, used = Outcome(), time.perf_counter(), time.process_time()

        def work(first: int) -> list[float]:
            taken: list[float] = []
            while (started := time.perf_counter()) - began < seconds:
                predictor.classify([images[(first + len(taken)) % len(images)]])
                taken.append(time.perf_counter() - started)
            return taken

        with ThreadPoolExecutor(threads) as pool:
            outcome.seconds[200] = [each for found in pool.map(work, range(threads)) for each in found]
        outcome.took, outcome.cpu = time.perf_counter() - began, time.process_time() - used
        return outcome


def _note(cells: dict[tuple[str, int], list[Outcome]], name: str, clients: int, found: Outcome) -> None:
    cells.setdefault((name, clients), []).append(found)
    print(
        f"{name:15} {clients:2} clients {found.rate():6.1f}/s p50 {found.quantile(0.5):7.0f} ms "
        f"p99 {found.quantile(0.99):7.0f} ms cpu {1000 * found.cpu / max(found.count(200), 1):5.0f} ms", flush=True,
    )  # fmt: skip


def _write(
    out: Path, seconds: float, servers: dict[str, Server], cells: dict[tuple[str, int], list[Outcome]]
) -> None:
    def ratio(one: str, other: str, clients: int) -> dict[str, float] | None:
        pairs = list(zip(cells.get((one, clients), ()), cells.get((other, clients), ()), strict=False))
        if not pairs:
            return None
        return {
            "requests_per_second": round(statistics.median(a.rate() / b.rate() for a, b in pairs), 3),
            "cpu_per_request": round(
                statistics.median(a.cpu / a.count(200) / (b.cpu / b.count(200)) for a, b in pairs), 3
            ),
        }

    rows: list[dict[str, Any]] = [
        {
            "server": name, "clients": clients,
            "requests_per_second": round(statistics.median(each.rate() for each in found), 2),
            "p50_ms": round(statistics.median(each.quantile(0.5) for each in found), 1),
            "p99_ms": round(statistics.median(each.quantile(0.99) for each in found), 1),
            "cpu_ms_per_request": round(
                statistics.median(1000 * each.cpu / max(each.count(200), 1) for each in found), 1
            ),
            "not_200": sum(each.broken + sum(map(len, each.seconds.values())) - each.count(200) for each in found),
        }
        for (name, clients), found in sorted(cells.items())
    ]  # fmt: skip
    write_json(out, {
        "machine": {"cpus": usable_cpus(), "platform": platform.platform(), "python": platform.python_version()},
        "rounds": max(map(len, cells.values())), "seconds": seconds,
        "memory_mb": {name: round(server.memory(), 1) for name, server in servers.items()},
        "ready_seconds": {name: round(server.ready_seconds, 2) for name, server in servers.items()},
        "rows": rows,
        "ratios": {
            f"{clients} clients": {
                f"{one} / {other}": ratio(one, other, clients)
                for one, other in (
                    ("embedded fp32", "in-process fp32"), ("embedded int8", "in-process int8"),
                    ("embedded fp32", "plain torch"), ("embedded int8", "plain torch"), ("ray fp32", "embedded fp32"),
                )
            }
            for clients in CLIENTS
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
