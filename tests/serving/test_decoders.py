"""Decoding in processes that may be killed."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.config.tree import DataSettings
from partgcd.data.decode import decode
from partgcd.data.pixels import evaluation_view
from partgcd.decoding.begun import BrokenImage
from partgcd.serving import decoders as module
from partgcd.serving.decode_budget import Large, NoMemory
from partgcd.serving.decoders import Decoders
from partgcd.serving.metrics import Metrics
from partgcd.serving.settings import Limits

SETTINGS = DataSettings(image_size=64)

# What a decoder runs in these tests: the real one, with a reader that does what hostile images make readers do.
ODD = """
import sys, time
from partgcd.data import decode_process
from partgcd.decoding.begun import Begun, BrokenImage
real = decode_process.begin

def begin(data, most):
    if data == b"slow header":
        time.sleep(60)
    if data == b"large":
        return Begun((9, 9), 10**12, lambda: None)
    if data == b"talks":
        print("PIL: a warning", file=sys.stderr)
        print("on stdout, too", flush=True)
    if data == b"many words":
        sys.stderr.write("word\\n" * 5000)
        raise BrokenImage("talkative")
    if data.startswith(b"odd"):
        return Begun((9, 9), int(data.split()[2]), lambda: odd(data.split()[1]))
    return real(data if data != b"talks" else b"x", most)

def odd(what):
    if what == b"slow":
        time.sleep(60)
    if what == b"native":  # holds the interpreter, as code in C may
        sum(range(10**12))
    if what == b"greedy":
        bytearray(2 * 10**9)
    if what == b"crash":
        import ctypes
        ctypes.string_at(0)
    if what == b"exits":
        sys.exit(3)

decode_process.begin = begin
decode_process.main()
"""


def png(side: int = 40) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(side).integers(0, 255, (side, side + 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def make() -> Iterator[Any]:
    """Decoders with limits."""
    made: list[Decoders] = []

    def build(**limits: float) -> Decoders:
        made.append(Decoders(Limits.model_validate(limits), Metrics()))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def odd(make: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same, with a reader that misbehaves as it is told."""
    start = module.subprocess.Popen

    def odd_one(words: list[str], **options: Any) -> Any:
        assert words[1:] == ["-P", "-m", "partgcd.data.decode_process"]
        return start([sys.executable, "-P", "-c", ODD], **options)

    monkeypatch.setattr(module.subprocess, "Popen", odd_one)
    return make


def test_the_view_is_the_one_made_here(make: Any) -> None:
    decoders = make()
    for side in (8, 40, 300):
        expected = evaluation_view(decode(png(side)), SETTINGS)
        assert np.array_equal(decoders.view(png(side), SETTINGS), expected)
    with pytest.raises(BrokenImage, match="not an image"):
        decoders.view(b"x", SETTINGS)
    with pytest.raises(BrokenImage, match="truncated"):
        decoders.view(png()[:-40], SETTINGS)
    assert len(decoders._idle) == 1 and decoders._idle[0].images == 5


def test_odd_and_malformed_images_end_as_they_do_elsewhere(
    make: Any, malformed_corpus: tuple[Path, dict[str, Any]]
) -> None:
    folder, _ = malformed_corpus
    decoders = make()
    for file in sorted(folder.iterdir()):
        if not file.is_file():
            continue
        data = file.read_bytes()
        try:
            expected = evaluation_view(decode(data, 50), SETTINGS)
        except BrokenImage as broken:
            with pytest.raises(BrokenImage) as caught:
                decoders.view(data, SETTINGS)
            assert caught.value.reason == broken.reason, file.name
        else:
            assert np.array_equal(decoders.view(data, SETTINGS), expected), file.name
    assert decoders._idle[0].images > 100


@pytest.mark.parametrize("what", [b"slow header", b"odd slow 1000", b"odd native 1000"])
def test_an_image_that_takes_too_long_is_ended_and_the_next_one_answered(odd: Any, what: bytes) -> None:
    decoders = odd(decode_timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(BrokenImage, match=r"took longer than 0\.3 s to decode"):
        decoders.view(what, SETTINGS)
    assert time.monotonic() - began < 30 and not decoders._idle
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)
    assert b'partgcd_decoders_ended_total{why="slow"} 1.0' in decoders._metrics.text()


@pytest.mark.parametrize("what", [b"odd crash 1000", b"odd exits 1000"])
def test_a_crash_takes_one_image_with_it(odd: Any, what: bytes, caplog: pytest.LogCaptureFixture) -> None:
    decoders = odd()
    with pytest.raises(BrokenImage, match="its decoder failed"):
        decoders.view(what, SETTINGS, "request-7")
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)
    ended = [each for each in caplog.records if each.getMessage() == "a decoder was ended"]
    assert ended[0].fields["request_id"] == "request-7"  # type: ignore[attr-defined]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell a process's size")
def test_memory_is_what_was_granted_and_no_more(odd: Any) -> None:
    with pytest.raises(BrokenImage, match="does not fit in memory"):
        odd().view(b"odd greedy 1000", SETTINGS)


def test_an_image_that_never_fits_is_told_the_limit(odd: Any) -> None:
    decoders = odd(max_decode_mb=100)
    with pytest.raises(BrokenImage, match=r"1,000,000 MB \(limit 100 MB, max_decode_mb\)"):
        decoders.view(b"large", SETTINGS)
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)
    assert len(decoders._idle) == 1  # the same one: it only took no for an answer


def test_what_is_large_is_told_before_it_begins(odd: Any) -> None:
    decoders = odd()
    with pytest.raises(Large):
        decoders.view(b"odd slow 90000000", SETTINGS, most=80e6)
    assert len(decoders._idle) == 1 and decoders._budget._held == 0


def test_one_budget_for_all(odd: Any) -> None:
    decoders = odd(max_decode_mb=100, decode_timeout_s=3)

    def hold() -> None:
        with pytest.raises(BrokenImage):
            decoders.view(b"odd slow 60000000", SETTINGS)

    holding = threading.Thread(target=hold)
    holding.start()
    until = time.monotonic() + 20
    while decoders._budget._held == 0 and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(NoMemory):
        decoders.view(b"odd slow 60000000", SETTINGS, wait=0.2)
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)  # there is room for a small one
    decoders.close()
    holding.join(20)
    assert not holding.is_alive() and decoders._budget._held == 0


def test_closing_ends_what_is_at_work(odd: Any) -> None:
    decoders = odd(decode_timeout_s=50)
    found: list[str] = []

    def work() -> None:
        with pytest.raises(BrokenImage) as caught:
            decoders.view(b"odd native 1000", SETTINGS)
        found.append(caught.value.reason)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 20
    while decoders._budget._held == 0 and time.monotonic() < until:
        time.sleep(0.01)
    decoders.close()
    thread.join(20)
    assert found == ["the server stopped"]


def test_what_a_decoder_prints_is_logged_and_bounded(odd: Any, caplog: pytest.LogCaptureFixture) -> None:
    decoders = odd()
    for data in (b"talks", b"many words"):
        with pytest.raises(BrokenImage):
            decoders.view(data, SETTINGS, data.decode())
    until = time.monotonic() + 20

    def lines(label: str) -> list[str]:
        told = [each.fields for each in caplog.records if hasattr(each, "fields")]
        return [each["line"] for each in told if each.get("request_id") == label and "line" in each]

    while len(lines("many words")) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    decoders.close()
    assert lines("talks") == ["PIL: a warning", "on stdout, too"]
    assert lines("many words") == ["word"] * 5
    assert logging.getLogger("partgcd.serving").name


def test_a_decoder_that_died_in_its_sleep_is_replaced(make: Any) -> None:
    decoders = make()
    decoders.start(1)
    decoders.wait_ready()
    os.kill(decoders._idle[0]._process.pid, signal.SIGKILL)
    decoders._idle[0]._process.wait(20)
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)


def test_decoders_end_with_their_server_and_know_no_secret(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTGCD_API_KEY", "correct horse")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    decoders = make()
    decoders.start(1)
    decoders.wait_ready()
    process = decoders._idle[0]._process
    if Path("/proc/self/environ").exists():
        told = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"correct horse" not in told and b"RAY_AUTH" not in told
    process.send_signal(signal.SIGTERM)  # of a whole group: the server still needs it
    process.send_signal(signal.SIGINT)
    assert decoders.view(png(), SETTINGS).shape == (3, 64, 64)
    process.stdin.close()
    assert process.wait(20) == 0


def test_a_decoder_is_replaced_after_a_while(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IMAGES", 2)
    decoders = make()
    seen = set()
    for _ in range(3):
        decoders.view(png(), SETTINGS)
        seen |= {each._process.pid for each in decoders._idle}
    assert len(seen) == 2 or len(decoders._idle) == 1
    monkeypatch.setattr(module, "MOST_RESIDENT", 1)
    decoders.view(png(), SETTINGS)
    assert decoders._idle == []
