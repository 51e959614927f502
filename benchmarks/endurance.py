"""What a server has to live through: a long soak, ten times too much, model changes, a killed replica, bad requests.

Each part starts its own server, writes its entry of the result file when it ends (and a line a few seconds while it
runs), and says whether its aim was met. A part that is in the file is done again only with --again.

    python benchmarks/endurance.py PHOTOS BUNDLE [--parts soak overload swaps fuzz replica] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load import Outcome, drive, embedded, family, on_ray, photos

from partgcd.disk.files import write_json
from partgcd.export.bundle import open_bundle, write_manifest

Images = list[tuple[str, bytes]]
Part = Callable[[Path, Images, argparse.Namespace], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--requests", type=int, default=20_000, help="of the soak")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--bad", type=int, default=1000, help="bad requests")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/endurance.json"))
    args = parser.parse_args()
    images = photos(args.photos, 200)
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in args.parts:
        if name in results and not args.again:
            continue
        began = time.perf_counter()
        found = PARTS[name](args.bundle, images, args)
        results[name] = {
            **found,
            "bundle": _about(args.bundle),
            "minutes": round((time.perf_counter() - began) / 60, 1),
        }
        write_json(args.out, results)
        print(json.dumps({name: results[name]}), flush=True)
    sys.exit(0 if all(results[name]["met"] for name in args.parts) else 1)


def soak(bundle: Path, images: Images, args: argparse.Namespace) -> dict[str, Any]:
    """Memory of the last quarter within 5% of the second."""
    server = embedded(bundle)
    memory: list[float] = []
    outcomes: list[Outcome] = []
    slice_size = max(1, args.requests // 100)
    try:
        for _ in range(args.requests // slice_size):
            outcomes.append(asyncio.run(drive(server.port, images, 8, requests=slice_size)))
            memory.append(server.memory())
            if len(memory) % 5 == 0:
                print(f"soak {len(memory) * slice_size} requests, {memory[-1]:.1f} MB", flush=True)
    finally:
        code = server.stop()
    quarter = len(memory) // 4
    second, last = (statistics.mean(part) for part in (memory[quarter : 2 * quarter], memory[-quarter:]))
    answered = sum(each.count(200) for each in outcomes)
    return {
        "requests": args.requests, "answered_200": answered, "exit_code": code,
        "memory_mb": {"start": round(memory[0], 1), "second_quarter": round(second, 1), "last_quarter": round(last, 1)},
        "growth": round(last / second - 1, 4),
        "met": answered == args.requests and abs(last / second - 1) < 0.05 and code == 0,
    }  # fmt: skip


def overload(bundle: Path, images: Images, args: argparse.Namespace) -> dict[str, Any]:
    """Only 200, 429 and 503 with Retry-After; those accepted wait no longer than the queue; recovery within 5 s."""
    server = embedded(bundle)
    try:
        asyncio.run(drive(server.port, images, 2, requests=10))
        calm = asyncio.run(drive(server.port, images, 8, seconds=8))
        alone = asyncio.run(drive(server.port, images, 1, seconds=4))
        capacity = calm.rate()
        heavy = asyncio.run(_offer(server.port, images, 10 * capacity, args.seconds))
        recovered = None
        ended = time.perf_counter()
        while time.perf_counter() - ended < 30:
            after = asyncio.run(drive(server.port, images, 1, requests=5))
            if after.count(200) == 5 and after.quantile(0.5) < 1.5 * alone.quantile(0.5) + 10:
                recovered = time.perf_counter() - ended
                break
    finally:
        code = server.stop()
    statuses = {status: len(found) for status, found in sorted(heavy.seconds.items())}
    p99 = heavy.quantile(0.99) / 1000
    bound = 2 * 64 / capacity + 1  # twice the time that the full queue takes
    return {
        "capacity_per_second": round(capacity, 1),
        "offered_per_second": round(sum(statuses.values()) / heavy.took, 1),
        "statuses": statuses, "without_retry_after": heavy.without_retry, "broken_connections": heavy.broken,
        "p99_of_accepted_s": round(p99, 2), "bound_s": round(bound, 2),
        "answered_per_second_meanwhile": round(heavy.rate(), 1),
        "recovered_after_s": None if recovered is None else round(recovered, 2), "exit_code": code,
        "met": set(statuses) <= {200, 429, 503} and heavy.without_retry == heavy.broken == 0 and p99 < bound
        and recovered is not None and recovered <= 5,
    }  # fmt: skip


async def _offer(port: int, images: Images, rate: float, seconds: float) -> Outcome:
    """Requests at a steady rate, whatever becomes of them: a client that is late does not wait for the others."""
    total, began = Outcome(), time.perf_counter()
    clients = 300

    async def client(number: int) -> None:
        due = began + number / rate
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            one = await drive(port, images[number % len(images) :] + images[:1], 1, requests=1)
            for status, found in one.seconds.items():
                total.seconds.setdefault(status, []).extend(found)
            total.without_retry += one.without_retry
            total.broken += one.broken
            due += clients / rate

    await asyncio.gather(*(client(number) for number in range(clients)))
    total.took = time.perf_counter() - began
    return total


def swaps(bundle: Path, images: Images, args: argparse.Namespace) -> dict[str, Any]:
    """Every request is answered while the model changes again and again."""
    with tempfile.TemporaryDirectory() as scratch:
        targets = [bundle.resolve(), _twin(bundle, Path(scratch) / "twin")]
        link = Path(scratch) / "current"
        link.symlink_to(targets[0])
        server = embedded(link, "--poll", "0.2")
        done = [0]

        async def change() -> None:
            for number in range(args.swaps):
                target = targets[(number + 1) % 2]
                version = (target / "manifest.sha256").read_text()[:64]
                new = link.with_name("next")
                new.symlink_to(target)
                new.replace(link)
                while (await asyncio.to_thread(server.ready))["model_version"] != version:
                    await asyncio.sleep(0.1)
                done[0] += 1
                if done[0] % 20 == 0:
                    print(f"swaps {done[0]}, {server.memory():.1f} MB", flush=True)

        async def both() -> Outcome:
            changing = asyncio.create_task(change())
            total = Outcome()
            while not changing.done():
                part = await drive(server.port, images, 4, seconds=2)
                for status, found in part.seconds.items():
                    total.seconds.setdefault(status, []).extend(found)
                total.broken += part.broken
                total.versions |= part.versions
                total.took += part.took
            await changing
            return total

        try:
            found = asyncio.run(both())
            memory = server.memory()
        finally:
            code = server.stop()
    statuses = {status: len(each) for status, each in sorted(found.seconds.items())}
    return {
        "swaps": done[0], "statuses": statuses, "broken_connections": found.broken, "versions": len(found.versions),
        "p50_ms": round(found.quantile(0.5), 1), "p99_ms": round(found.quantile(0.99), 1),
        "memory_mb_at_end": round(memory, 1), "exit_code": code,
        "met": done[0] == args.swaps and set(statuses) == {200} and found.broken == 0 and len(found.versions) == 2,
    }  # fmt: skip


def fuzz(bundle: Path, images: Images, args: argparse.Namespace) -> dict[str, Any]:
    """No 500, no crash, no growth under generated bad requests."""
    from fuzzing import bad_requests, send

    server = embedded(bundle, "--limit", "max_body_mb=1", "--limit", "read_timeout_s=2")
    statuses: dict[str, int] = {}
    try:
        asyncio.run(drive(server.port, images, 4, requests=100))
        draw = random.Random(0)
        before, sent = 0.0, 0
        for number, request in enumerate(bad_requests(server, images, draw, args.bad)):
            status = send(server.port, request)
            statuses[status] = statuses.get(status, 0) + 1
            sent += 1
            if number == args.bad // 4:
                before = server.memory()
        after = server.memory()
        alive = asyncio.run(drive(server.port, images, 4, requests=40)).count(200) == 40
    finally:
        code = server.stop()
    return {
        "requests": sent, "statuses": dict(sorted(statuses.items())), "alive": alive, "exit_code": code,
        "memory_mb": {"after_a_quarter": round(before, 1), "end": round(after, 1)},
        "met": sent >= args.bad and alive and code == 0 and after < 1.05 * before
        and not any(status.startswith("5") for status in statuses),
    }  # fmt: skip


def replica(bundle: Path, images: Images, args: argparse.Namespace) -> dict[str, Any]:
    """One of two replicas on Ray is killed under load: it comes back, and every request is answered or told 5xx."""
    server = on_ray(bundle, "--replicas", "2")

    def replicas() -> list[int]:
        found = []
        for each in family(server.process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{each}/cmdline").read_bytes().startswith(b"ray::ServeReplica"):
                    found.append(each)
        return found

    async def scene() -> tuple[Outcome, float | None]:
        load = asyncio.create_task(drive(server.port, images, 8, seconds=40, patience=30))
        await asyncio.sleep(6)
        before = set(replicas())
        os.kill(min(before), signal.SIGKILL)
        killed, back = time.perf_counter(), None
        while not load.done():
            if back is None and len(set(replicas()) - {min(before)}) == 2:
                back = time.perf_counter() - killed
            await asyncio.sleep(0.2)
        return await load, back

    try:
        while len(replicas()) < 2:
            time.sleep(0.2)
        found, back = asyncio.run(scene())
    finally:
        code = server.stop()
    statuses = {status: len(each) for status, each in sorted(found.seconds.items())}
    failed = sum(count for status, count in statuses.items() if status != 200) + found.broken
    return {
        "statuses": statuses, "hung_or_broken": found.broken, "replica_back_after_s": back and round(back, 1),
        "longest_answer_s": round(max(max(each) for each in found.seconds.values()), 2), "exit_code": code,
        "met": back is not None and found.broken == 0 and failed <= 8
        and all(status == 200 or status >= 500 for status in statuses),
    }  # fmt: skip


PARTS: dict[str, Part] = {
    "soak": soak, "overload": overload, "swaps": swaps, "fuzz": fuzz, "replica": replica,
}  # fmt: skip


def _twin(bundle: Path, place: Path) -> Path:
    """The same bundle under another id."""
    shutil.copytree(bundle, place)
    manifest = open_bundle(place).manifest
    told = manifest.provenance.model_copy(update={"exported": manifest.provenance.exported + " (twin)"})
    write_manifest(place, manifest.model_copy(update={"provenance": told}))
    return place


def _about(bundle: Path) -> str:
    manifest = open_bundle(bundle).manifest
    return f"{manifest.backbone.name} {manifest.graph.precision} {manifest.preprocessing.image_size} px"


if __name__ == "__main__":
    main()
