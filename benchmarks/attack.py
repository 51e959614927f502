"""Eight hostile clients for a minute, with honest ones beside them: who is answered, how soon, and in what memory.

The hostile send images that are small and take long, or much memory, alone and as forms of 32, and two more send a
body a few bytes at a time. Everything comes from one address, the worst case; with --apart the hostile have another,
as they would on a network. Then SIGTERM, while the attack goes on.

    python benchmarks/attack.py PHOTOS BUNDLE [--seconds 60] [--apart] [--name after] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import struct
import sys
import time
import urllib.error
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from load import Outcome, Server, ask, drive, embedded, photos
from PIL import Image

Images = list[tuple[str, bytes]]

HOSTILE, HONEST, SLOW = 8, 4, 2
ANSWER_S, STOP_S = 5.0, 26.0
CHILD_MB = 200.0
"""Of a decoder beyond its image's bytes and what that was granted: 100 it may keep, 100 of slack."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=list(HOSTILE_IMAGES), choices=list(HOSTILE_IMAGES))
    parser.add_argument("--apart", action="store_true", help="hostile clients have an address of their own")
    parser.add_argument("--name", default="one address", help="entry of the result file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attack.json"))
    args = parser.parse_args()
    hostile = [HOSTILE_IMAGES[name]() for name in args.only]
    hostile += [form(hostile[place], 32) for place in range(len(hostile)) if len(hostile[place][1]) < 900_000]
    found = attack(args.bundle, photos(args.photos, 100), hostile, args.seconds, args.apart)
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    results[args.name] = found
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({args.name: found}, indent=1))
    sys.exit(0 if found["met"] else 1)


def attack(bundle: Path, honest: Images, hostile: Images, seconds: float, apart: bool) -> dict[str, Any]:
    """What came of it, and whether every aim was met."""
    server = embedded(bundle)
    try:
        asyncio.run(drive(server.port, honest, 4, requests=40))
        calm = asyncio.run(drive(server.port, honest, HONEST, seconds=min(4.0, seconds)))
        limits = json.loads(server.get("/v1/model"))["limits"]
        before = server.memory()
        seen = asyncio.run(_scene(server, honest, hostile, seconds, apart))
    finally:
        server.process.kill()
    workers = len(os.sched_getaffinity(0))
    body = limits["max_body_mb"]
    bound = before + 512 + body + limits.get("max_decode_mb", 0) + 2 * workers * (CHILD_MB + body)
    good, bad = seen["honest"], seen["hostile"]
    answered = good.seconds.get(200, [])
    refused = [
        each
        for status in (429, 503)
        for each in (*good.seconds.get(status, ()), *bad.seconds.get(status, ()))
    ]
    p99 = float(np.quantile(answered, 0.99)) if answered else float("inf")
    slowest = max(refused, default=0.0)
    statuses = {status: len(each) for status, each in sorted(good.seconds.items())}
    return {
        "seconds": seconds, "one_address": not apart, "hostile_images": len(hostile),
        "honest": {
            "statuses": statuses, "broken": good.broken, "answered_200_share": round(
                len(answered) / max(1, sum(statuses.values()) + good.broken), 4
            ),
            "p50_ms": round(1000 * float(np.quantile(answered, 0.5)), 1) if answered else None,
            "p99_ms": round(1000 * p99, 1) if answered else None,
            "calm_p50_ms": round(calm.quantile(0.5), 1), "calm_p99_ms": round(calm.quantile(0.99), 1),
        },
        "hostile": {
            "statuses": {status: len(each) for status, each in sorted(bad.seconds.items())}, "broken": bad.broken,
            "longest_s": round(max((max(each) for each in bad.seconds.values()), default=0.0), 2),
        },
        "slow_uploads": seen["slow"],
        "429_503_without_retry_after": good.without_retry + bad.without_retry,
        "429_503_slowest_s": round(slowest, 2),
        "memory_mb": {"calm": round(before, 1), "peak": round(seen["peak"], 1), "bound": round(bound, 1)},
        "readyz": seen["readyz"], "healthz": seen["healthz"], "silent_while_ready_s": round(seen["silent"], 1),
        "stopped_after_s": seen["stopped"], "exit_code": seen["code"],
        "met": set(statuses) <= {200, 429, 503} and good.broken == 0 and p99 < ANSWER_S and slowest < ANSWER_S
        and good.without_retry + bad.without_retry == 0 and seen["peak"] < bound and seen["silent"] < 20
        and seen["stopped"] is not None and seen["stopped"] < STOP_S and seen["code"] == 0,
    }  # fmt: skip


async def _scene(
    server: Server, honest: Images, hostile: Images, seconds: float, apart: bool
) -> dict[str, Any]:
    good, bad = Outcome(), Outcome()
    until = time.perf_counter() + seconds
    found: dict[str, Any] = {"honest": good, "hostile": bad, "peak": 0.0, "silent": 0.0, "slow": {}}
    codes: dict[str, dict[str, int]] = {"/readyz": {}, "/healthz": {}}
    over = asyncio.Event()
    here = None if not apart else ("127.0.0.2", 0)
    stopping: list[float] = []

    def served() -> bool:
        return not stopping

    async def watch() -> None:
        last, count = time.perf_counter(), 0
        while not stopping:
            found["peak"] = max(found["peak"], await asyncio.to_thread(server.memory))
            ready = "?"
            for path, seen in codes.items():
                told = await asyncio.to_thread(_status, server, path)
                seen[told] = seen.get(told, 0) + 1
                ready = told if path == "/readyz" else ready
            now = time.perf_counter()
            if good.count(200) > count or ready != "200":  # nobody was told that it is ready in vain
                last, count = now, good.count(200)
            found["silent"] = max(found["silent"], now - last)
            await asyncio.sleep(0.3)

    watching = asyncio.create_task(watch())
    clients = [
        *(
            _client(server.port, hostile, place, bad, lambda: not over.is_set(), here, served)
            for place in range(HOSTILE)
        ),
        *(_slow(server.port, found["slow"], lambda: not over.is_set(), here) for _ in range(SLOW)),
    ]
    attackers = [asyncio.create_task(each) for each in clients]
    friends = [
        _client(server.port, honest, place, good, lambda: time.perf_counter() < until, None, served)
        for place in range(HONEST)
    ]
    await asyncio.gather(*friends)
    began = time.perf_counter()
    stopping.append(began)
    server.process.terminate()
    found["stopped"] = found["code"] = None
    with contextlib.suppress(TimeoutError):
        found["code"] = await asyncio.wait_for(asyncio.to_thread(server.process.wait, 90), 91)
        found["stopped"] = round(time.perf_counter() - began, 1)
    over.set()
    for each in attackers:
        each.cancel()
    await asyncio.gather(*attackers, watching, return_exceptions=True)
    found["readyz"], found["healthz"] = codes["/readyz"], codes["/healthz"]
    return found


async def _client(
    port: int,
    images: Images,
    place: int,
    outcome: Outcome,
    more: Callable[[], bool],
    here: Any,
    counting: Callable[[], bool],
) -> None:
    """One connection that sends one image after the other."""
    writer = None
    while more():
        place += 1
        kind, data = images[place % len(images)]
        began = time.perf_counter()
        try:
            if writer is None or writer.is_closing():
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, limit=1 << 20, local_addr=here
                )
            status, headers = await asyncio.wait_for(ask(reader, writer, kind, data), 60)
        except (OSError, EOFError, TimeoutError):
            outcome.broken += counting()
            await asyncio.sleep(0.1)
            if writer is not None:
                writer.close()
            writer = None
            continue
        outcome.seconds.setdefault(status, []).append(time.perf_counter() - began)
        if status in (429, 503):
            outcome.without_retry += "retry-after" not in headers
            await asyncio.sleep(0.1)
        if headers.get("connection") == "close":
            writer.close()
    if writer is not None:
        writer.close()


async def _slow(port: int, seen: dict[str, int], more: Callable[[], bool], here: Any) -> None:
    """A body of 30 MB, of which most comes at once and the rest a byte at a time."""
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    head += b"Content-Length: 30000000\r\n\r\n"
    while more():
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=here)
            writer.write(head + bytes(28_000_000))
            answer = asyncio.create_task(reader.read(12))
            began = time.perf_counter()
            while not answer.done() and more():
                writer.write(b"x")
                await asyncio.wait([answer], timeout=0.5)
            told = answer.result().decode("latin-1")[9:12] if answer.done() else "open"
            seen[told or "cut"] = seen.get(told or "cut", 0) + 1
            seen["longest_s"] = max(seen.get("longest_s", 0), round(time.perf_counter() - began))
            writer.close()
        await asyncio.sleep(0.2)


def _status(server: Server, path: str) -> str:
    try:
        server.get(path)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "none"
    return "200"


def form(image: tuple[str, bytes], count: int) -> tuple[str, bytes]:
    """One image ``count`` times in a form."""
    head = b'--B\r\nContent-Disposition: form-data; name="image"; filename="a"\r\nContent-Type: image/png\r\n\r\n'
    return "multipart/form-data; boundary=B", (head + image[1] + b"\r\n") * count + b"--B--\r\n"


def many_scans(side: int = 6300, scans: int = 16_000) -> bytes:
    """A progressive JPEG of one scan, followed by ``scans`` that say nothing of all its blocks."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True, quality=50)
    data = file.getvalue()
    start = data.index(b"\xff\xda")
    end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    while data[end] != 0xFF or data[end + 1] == 0:
        end += 1
    # A Huffman table with one code, of one bit: EOB14, a run of 16384 and more blocks without a coefficient.
    table = b"\xff\xc4\x00\x14\x10\x01" + bytes(15) + b"\xe0"
    blocks, bits = ((side + 7) // 8) ** 2, ""
    while blocks > 0:
        more = min(max(blocks - 16384, 0), 16383)
        bits += f"0{more:014b}"
        blocks -= 16384 + more
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00" + body
    return data[:end] + table + scan * scans + b"\xff\xd9"


def tiff(width: int, height: int, rows: list[bytes], *tags: tuple[int, int, int]) -> bytes:
    """A TIFF of one deflated strip; ``rows`` repeat. Further tags as (tag, type, value)."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(rows[place % len(rows)]) for place in range(height)) + packer.flush()
    told = sorted([
        (256, 4, width), (257, 4, height), (259, 3, 8), (277, 3, 1), (278, 4, height), (279, 4, len(packed)), *tags,
    ])  # fmt: skip
    offset = 8 + 2 + 12 * (len(told) + 1) + 4
    entries = sorted([*told, (273, 4, offset)])
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return (
        head + b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
        + bytes(4) + packed
    )  # fmt: skip


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


HOSTILE_IMAGES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "many scans": lambda: ("image/jpeg", many_scans()),
    "some scans": lambda: ("image/jpeg", many_scans(7000, 90)),
    "comments": lambda: ("image/x-portable-pixmap", b"P3\n64 64\n255\n" + b"#\n" * 500_000),
    "plain text": lambda: ("image/x-portable-pixmap", b"P3\n2000 1000\n255\n" + b"1 " * 6_000_000),
    "odd maxval": lambda: ("image/x-portable-pixmap", b"P6\n3300 3200\n254\n" + b"\1" * (3 * 3300 * 3200)),
    "float": lambda: (
        "image/tiff",
        tiff(6310, 6310, [np.arange(6310, dtype="<f4").tobytes()], (258, 3, 32), (262, 3, 1), (339, 3, 3)),
    ),
    "wide float": lambda: (
        "image/tiff",
        tiff(5000, 5000, [bytes(40_000)], (258, 3, 64), (262, 3, 1), (339, 3, 3)),
    ),
    "flat png": lambda: ("image/png", _saved(Image.new("RGBA", (8600, 5800), (1, 2, 3, 4)), "PNG")),
    "progressive": lambda: (
        "image/jpeg",
        _saved(Image.new("RGB", (8600, 5800), "red"), "JPEG", progressive=True),
    ),
    "avif": lambda: ("image/avif", _saved(_noise(2400, 1600), "AVIF", quality=90, speed=10)),
    "webp": lambda: ("image/webp", _saved(_noise(6000, 4000), "WEBP", quality=10, method=0)),
    "gif": lambda: ("image/gif", _saved(Image.new("P", (8000, 6000)), "GIF")),
}


if __name__ == "__main__":
    main()
