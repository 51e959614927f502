"""Fixtures for every room: odd and malformed images with what is to become of each, and worlds of many ranks."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

pytest_plugins = ["tiny"]

WIDTH, HEIGHT = 24, 20


@dataclass(frozen=True)
class Expected:
    """What becomes of a file: pixels [H,W,3] within ``tolerance`` on average, or a reason's beginning."""

    pixels: NDArray[np.uint8] | None = None
    tolerance: float = 0.0
    reason: str = ""


def picture(seed: int, channels: int = 3) -> NDArray[np.uint8]:
    """A smooth picture without symmetry, another one for every seed: [HEIGHT,WIDTH,channels]."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = [(x * (3 + c) + y * (7 - 2 * c) + 11 * seed + 60 * c) % 200 + 20 for c in range(channels)]
    return np.stack(planes, -1).astype(np.uint8)


def smooth(seed: int) -> NDArray[np.uint8]:
    """A picture that lossy formats keep nearly unchanged."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([5 * x + seed, 5 * y + seed, 3 * x + 2 * y + seed], -1).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(
    colour: int, depth: int, rows: list[bytes], width: int = WIDTH, *chunks: tuple[bytes, bytes]
) -> bytes:
    """A PNG written by hand, for what Pillow reads and does not write."""
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def on_white(colour: NDArray[np.uint8], alpha: NDArray[Any]) -> NDArray[np.uint8]:
    share = alpha[..., None].astype(float) / 255
    return np.rint(colour * share + 255 * (1 - share)).astype(np.uint8)


def grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.repeat(np.rint(values).astype(np.uint8)[..., None], 3, -1)


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """What EXIF says is upright, from the standard's words on where row 0 and column 0 lie."""
    return {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: pixels[::-1].transpose(1, 0, 2),
        7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: pixels[:, ::-1].transpose(1, 0, 2),
    }[orientation]


def well_formed() -> dict[str, tuple[bytes, Expected]]:
    """Odd images that are to be read, by file name."""
    files: dict[str, tuple[bytes, Expected]] = {}

    def add(name: str, data: bytes, pixels: NDArray[np.uint8], tolerance: float = 0.0) -> None:
        files[name] = (data, Expected(pixels, tolerance))

    for seed, kind in enumerate(("png", "bmp", "tiff", "ppm")):
        add(f"plain.{kind}", encoded(Image.fromarray(picture(seed)), kind), picture(seed))
    for seed, (kind, options) in enumerate(
        {"jpeg": {"quality": 95}, "webp": {"quality": 95}, "avif": {"quality": 95}, "mpo": {}}.items()
    ):
        if kind.upper() in Image.SAVE or (Image.init() and kind.upper() in Image.SAVE):
            add(f"lossy.{kind}", encoded(Image.fromarray(smooth(seed)), kind, **options), smooth(seed), 4)
    add(
        "progressive.jpg",
        encoded(Image.fromarray(smooth(8)), "jpeg", quality=95, progressive=True),
        smooth(8),
        4,
    )
    add("UPPER.JPG", encoded(Image.fromarray(smooth(9)), "jpeg", quality=95), smooth(9), 4)
    add("vögel im märz ☀.png", encoded(Image.fromarray(picture(10)), "png"), picture(10))
    add('new\nline, "quoted".png', encoded(Image.fromarray(picture(11)), "png"), picture(11))
    add("png-inside.jpg", encoded(Image.fromarray(picture(12)), "png"), picture(12))
    add("lossless.webp", encoded(Image.fromarray(picture(13)), "webp", lossless=True), picture(13))

    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        upright = turned(picture(20 + orientation), orientation)
        image = Image.fromarray(picture(20 + orientation))
        add(f"orientation-{orientation}.png", encoded(image, "png", exif=exif), upright)
        flat = Image.fromarray(smooth(20 + orientation))
        upright = turned(smooth(20 + orientation), orientation)
        add(f"orientation-{orientation}.jpg", encoded(flat, "jpeg", exif=exif, quality=95), upright, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    for seed, compression in ((30, None), (31, "tiff_lzw")):
        data = encoded(Image.fromarray(picture(seed)), "tiff", exif=exif, compression=compression)
        add(f"orientation-{compression}.tif", data, turned(picture(seed), 6))
    data = encoded(Image.fromarray(picture(32)), "webp", lossless=True, exif=exif)
    add("orientation.webp", data, turned(picture(32), 6))
    exif[0x0112] = 77
    add("orientation-77.png", encoded(Image.fromarray(picture(33)), "png", exif=exif), picture(33))
    data = encoded(
        Image.fromarray(smooth(34)), "jpeg", quality=95, exif=b"Exif\0\0MM\0*garbage garbage garbage"
    )
    add("damaged-exif.jpg", data, smooth(34), 4)

    wide = np.linspace(0, 65535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)
    full = grey((wide.astype(np.int64) + 128) // 257)
    add("grey16.png", encoded(Image.fromarray(wide), "png"), full)
    add("grey16.tif", encoded(Image.fromarray(wide[::-1].copy()), "tiff"), full[::-1])
    dark = wide // 4
    add("grey16-dark.png", encoded(Image.fromarray(dark), "png"), grey((dark.astype(np.int64) + 128) // 257))
    big_endian = b"P5 %d %d 65535\n" % (WIDTH, HEIGHT) + wide[:, ::-1].astype(">u2").tobytes()
    add("grey16.pgm", big_endian, full[:, ::-1])
    clear = [row.astype(">u2").tobytes() for row in wide.T.reshape(HEIGHT, WIDTH)]
    expected = full[..., 0].T.reshape(HEIGHT, WIDTH).copy()
    expected[0, 0] = 255  # the one pixel of value 0
    add("grey16-clear.png", png(0, 16, clear, WIDTH, (b"tRNS", b"\0\0")), grey(expected))
    signed = (wide.astype(np.int32) - 20000) * 2
    add("int32.tif", encoded(Image.fromarray(signed), "tiff"), grey((signed.clip(0, 65535) + 128) // 257))
    real = np.linspace(-3, 5, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.float32)
    add("float.tif", encoded(Image.fromarray(real), "tiff"), grey((real + 3) / 8 * 255), 0.01)
    holes = real[::-1].copy()
    holes[0, 0], holes[1, 1] = np.nan, np.inf
    stretched = (real[::-1] + 3) / 8 * 255
    stretched[0, 0] = stretched[1, 1] = 0
    add("float-holes.tif", encoded(Image.fromarray(holes), "tiff"), grey(stretched), 1)
    add(
        "flat-float.tif",
        encoded(Image.fromarray(np.full((9, 9), 7, np.float32)), "tiff"),
        grey(np.zeros((9, 9))),
    )

    high = [(np.stack([picture(40)] * 2, -1).reshape(HEIGHT, -1)[row]).tobytes() for row in range(HEIGHT)]
    add("rgb16.png", png(2, 16, high), picture(40))
    light = picture(41, 1)[..., 0]
    alpha = (np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 256).astype(np.uint8)
    la16 = np.stack([light, light, alpha, alpha], -1).reshape(HEIGHT, -1)
    add("la16.png", png(4, 16, [row.tobytes() for row in la16]), on_white(grey(light), alpha), 1)
    rgba16 = np.repeat(np.dstack([picture(42), alpha]), 2, -1).reshape(HEIGHT, -1)
    add("rgba16.png", png(6, 16, [row.tobytes() for row in rgba16]), on_white(picture(42), alpha), 1)
    rgba = Image.fromarray(np.dstack([picture(43), alpha]))
    for kind, options in (("png", {}), ("tiff", {}), ("webp", {"lossless": True, "exact": True})):
        add(f"alpha.{kind}", encoded(rgba, kind, **options), on_white(picture(43), alpha), 1)
    la = Image.merge("LA", (Image.fromarray(picture(44, 1)[..., 0]), Image.fromarray(alpha)))
    add("grey-alpha.png", encoded(la, "png"), on_white(grey(picture(44, 1)[..., 0]), alpha), 1)
    add("grey.png", encoded(Image.fromarray(picture(45, 1)[..., 0]), "png"), grey(picture(45, 1)[..., 0]))
    key = picture(46)
    one = np.full((HEIGHT, WIDTH), 255)
    one[(key == key[3, 5]).all(-1)] = 0
    data = encoded(Image.fromarray(key), "png", transparency=tuple(key[3, 5].tolist()))
    add("colour-key.png", data, on_white(key, one))

    # Stored as numbers 0..9 of ten colours: built by hand so that the expectation is not Pillow's own.
    numbers = (np.add.outer(3 * np.arange(HEIGHT), np.arange(WIDTH)) % 10).astype(np.uint8)
    colours = np.stack([25 * np.arange(10), 250 - 20 * np.arange(10), 7 * np.arange(10)], -1).astype(np.uint8)
    rows = [row.tobytes() for row in numbers]
    add("palette.png", png(3, 8, rows, WIDTH, (b"PLTE", colours.tobytes())), colours[numbers])
    opacity = np.linspace(0, 255, 10).astype(np.uint8)
    chunks = ((b"PLTE", colours[::-1].tobytes()), (b"tRNS", opacity.tobytes()))
    add(
        "palette-alpha.png",
        png(3, 8, rows, WIDTH, *chunks),
        on_white(colours[::-1][numbers], opacity[numbers]),
        1,
    )
    indexed = Image.fromarray(numbers).convert("P")
    indexed.putpalette(np.roll(colours, 1, 0).tobytes())
    add("palette.gif", encoded(indexed, "gif"), np.roll(colours, 1, 0)[numbers])
    see_through = np.where(numbers == 4, 0, 255)
    data = encoded(indexed, "gif", transparency=4)
    add("palette-clear.gif", data, on_white(np.roll(colours, 1, 0)[numbers], see_through))
    bits = numbers % 2 == 0
    add("bits.png", encoded(Image.fromarray(bits), "png"), grey(bits * 255))
    add("bits.tif", encoded(Image.fromarray(~bits), "tiff", compression="group4"), grey(~bits * 255))
    add("bits.pbm", encoded(Image.fromarray(bits[::-1].copy()), "ppm"), grey(bits[::-1] * 255))
    add(
        "plain.pgm",
        b"P2\n# text\n9 8 9\n" + b"0 1 2 3 4 5 6 7 8\n" * 8,
        grey(np.tile(np.arange(9) * 255 / 9, (8, 1))),
        1,
    )

    ink = Image.fromarray(np.dstack([picture(50), np.zeros((HEIGHT, WIDTH), np.uint8)]), "CMYK")
    add("cmyk.tif", encoded(ink, "tiff"), 255 - picture(50))
    flat = Image.fromarray(np.dstack([smooth(51), np.zeros((HEIGHT, WIDTH), np.uint8)]), "CMYK")
    add("cmyk.jpg", encoded(flat, "jpeg", quality=95), 255 - smooth(51), 5)
    frames = [Image.fromarray(picture(52 + number)) for number in range(3)]
    add("animated.png", encoded(frames[0], "png", save_all=True, append_images=frames[1:]), picture(52))
    frames = [Image.fromarray(picture(55 + number)) for number in range(3)]
    data = encoded(frames[0], "webp", save_all=True, append_images=frames[1:], lossless=True)
    add("animated.webp", data, picture(55))
    indexed.putpalette(np.roll(colours, 2, 0).tobytes())
    data = encoded(indexed, "gif", save_all=True, append_images=[Image.new("L", indexed.size, 9)])
    add("animated.gif", data, np.roll(colours, 2, 0)[numbers])
    frames = [Image.fromarray(picture(60 + number)) for number in range(2)]
    add("pages.tif", encoded(frames[0], "tiff", save_all=True, append_images=frames[1:]), picture(60))
    long = np.tile(picture(61)[:8], (1, 40, 1))
    add("banner.png", encoded(Image.fromarray(long), "png"), long)
    add("trailing.png", encoded(Image.fromarray(picture(62)), "png") + b"\0" * 99, picture(62))
    return files


def malformed() -> dict[str, tuple[bytes, Expected]]:
    """Files that are to be quarantined, each with the beginning of its reason."""
    files: dict[str, tuple[bytes, Expected]] = {}

    def add(name: str, data: bytes, reason: str) -> None:
        files[name] = (data, Expected(reason=reason))

    noisy = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for kind in ("jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm", "avif"):
        if kind.upper() in Image.SAVE:
            data = encoded(noisy, kind)
            reason = "" if kind in ("webp", "avif", "tiff") else "truncated"
            add(f"half.{kind}", data[: len(data) // 2], reason or "")
            add(f"head.{kind}", data[:12], "")
    lzw = encoded(noisy, "tiff", compression="tiff_lzw")
    add("half-lzw.tif", lzw[:8] + bytes(len(lzw) // 3) + lzw[8 + len(lzw) // 3 :], "")
    whole = encoded(noisy, "png")
    add("last-byte.jpg", encoded(noisy, "jpeg")[:-600], "truncated")
    add("flipped.png", whole[:400] + bytes(200) + whole[600:], "")
    add("header-crc.png", whole[:29] + b"\0\0\0\0" + whole[33:], "")
    few = png_chunk(b"IDAT", zlib.compress(b"\0" * 99))
    size = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    add("few-rows.png", whole[:8] + png_chunk(b"IHDR", size) + few + png_chunk(b"IEND", b""), "")
    add("no-data.png", whole[:8] + png_chunk(b"IHDR", size) + png_chunk(b"IEND", b""), "")

    add("empty.jpg", b"", "empty file")
    elsewhere = "not an image"
    add("text.jpg", b"This is no photo.\n" * 9, elsewhere)
    add("page.png", b"<!doctype html><title>404</title>", elsewhere)
    add("drawing.png", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', elsewhere)
    add("pointer.jpg", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", elsewhere)
    add("noise.webp", np.random.default_rng(1).bytes(500), elsewhere)
    add("zeros.tif", bytes(500), elsewhere)
    for kind in ("eps", "pdf", "ico", "tga", "pcx", "jpeg2000", "dds", "sgi"):
        if kind.upper() in Image.SAVE:
            add(f"really-{kind}.jpg", encoded(noisy, kind), elsewhere)
    add(
        "photoshop.jpg",
        b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 64, 64, 8, 3) + bytes(99),
        elsewhere,
    )

    huge = "too many pixels"
    size = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    add("bomb.png", whole[:8] + png_chunk(b"IHDR", size) + whole[33:], huge)
    jpeg = bytearray(encoded(noisy, "jpeg"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    add("bomb.jpg", bytes(jpeg), huge)
    add(
        "bomb.gif",
        b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + encoded(noisy, "gif")[13:],
        huge,
    )
    add(
        "bomb.bmp",
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 99, 0, 54, 40, 60_000, 60_000, 1, 24, *[0] * 6),
        huge,
    )
    add("bomb.ppm", b"P6 99999 99999 255\n", huge)
    chunk = b"VP8X" + struct.pack("<II", 10, 0) + (16_382).to_bytes(3, "little") * 2 + bytes(64)
    add("bomb.webp", b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk, huge)
    tags = [
        (256, 4, 99_999),
        (257, 4, 99_999),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (279, 4, 9),
    ]
    directory = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHII", tag, kind, 1, v) for tag, kind, v in tags
    )
    add("bomb.tif", b"II*\0" + struct.pack("<I", 8) + directory + bytes(4), huge)
    tags = [
        (256, 4, 64),
        (257, 4, 64),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (322, 4, 99_984),
        (323, 4, 99_984),
    ]
    tags += [(324, 4, 8), (325, 4, 9)]
    directory = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHII", tag, kind, 1, v) for tag, kind, v in tags
    )
    add("bomb-tile.tif", b"II*\0" + struct.pack("<I", 8) + directory + bytes(4), huge)

    add("dot.png", encoded(noisy.crop((0, 0, 1, 1)), "png"), "too small")
    add("line.jpg", encoded(noisy.crop((0, 0, 64, 7)), "jpeg"), "too small")
    add("absurd.png", encoded(Image.new("1", (60_000, 1)), "png"), "too small")
    size = struct.pack(">IIBBBBB", 0, 64, 8, 2, 0, 0, 0)
    add("no-width.png", whole[:8] + png_chunk(b"IHDR", size) + whole[33:], "")
    add("nothing.tif", encoded(Image.fromarray(np.full((9, 9), np.nan, np.float32)), "tiff"), "no finite")
    add("loop.tif", b"II*\0" + struct.pack("<IHI", 8, 0, 8), "")
    return files


@pytest.fixture
def malformed_corpus(tmp_path: Path) -> tuple[Path, dict[str, Expected]]:
    """A flat folder of over a hundred odd images, and by file name what the decoder is to make of each.

    ``Expected.pixels`` is None for a file that belongs in the quarantine. No two files have equal content.
    """
    Image.init()
    files = well_formed() | malformed()
    folder = tmp_path / "odd images"
    folder.mkdir()
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    return folder, {name: expected for name, (_, expected) in files.items()}


Ranks = Callable[..., list[dict[str, str]]]

_RANK = '''
import json, os, sys, traceback
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
from partgcd.run.folder import RunFolder
from partgcd.run.torch_world import TorchWorld

world = TorchWorld(RunFolder.open(folder / "run"), torch.device("cpu"))
found = {}


def check(function):
    """Runs at once; what it raises is what the test says. All ranks run all checks, in one order."""
    try:
        function()
        found[function.__name__] = ""
    except Exception:
        found[function.__name__] = traceback.format_exc()
    dist.barrier()


%s
(folder / f"found-{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
'''


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Runs ``code`` in ``size`` processes that are a `TorchWorld` named ``world`` over gloo, without Ray.

    ``folder`` (in the code: a Path) holds a run in ``run``. The answer is what each rank's checks raised, by
    their names: see `check`.
    """

    def run(code: str, size: int, folder: Path, limit: float = 240.0) -> list[dict[str, str]]:
        script = folder / "rank.py"
        script.write_text(_RANK % code)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(size), str(folder)],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(size)
        ]  # fmt: skip
        try:
            errors = [process.communicate(timeout=limit)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert all(process.returncode == 0 for process in processes), "\n".join(errors)[-3000:]
        return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]

    return run
