from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from partgcd.data import decode as decoder
from partgcd.data.decode import SUFFIXES, Begun, BrokenImage, begin, decode, decoded, read_image


def picture(width: int = 24, height: int = 20) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([9 * x, 11 * y, 5 * x + 4 * y], -1).astype(np.uint8))


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    (image or picture()).save(file, kind, **options)
    return file.getvalue()


def test_every_odd_image_is_decoded_right_or_broken_with_a_reason(malformed_corpus: tuple[Path, Any]) -> None:
    folder, expectations = malformed_corpus
    assert len(expectations) >= 100
    for name, expected in expectations.items():
        try:
            image = decode(folder / name)
        except BrokenImage as broken:
            assert expected.pixels is None, f"{name}: {broken.reason}"
            assert broken.reason.startswith(expected.reason), f"{name}: {broken.reason}"
            assert 0 < len(broken.reason) < 120 and broken.reason.isprintable(), name
            continue
        assert expected.pixels is not None, f"{name} was decoded"
        assert image.mode == "RGB"
        found = np.asarray(image).astype(int)
        assert found.shape == expected.pixels.shape, name
        wrong = np.abs(found - expected.pixels)
        assert wrong.mean() <= expected.tolerance, f"{name}: {wrong.mean()}"
        assert expected.tolerance > 1 or wrong.max() <= np.ceil(expected.tolerance), f"{name}: {wrong.max()}"


def test_bytes_and_path_decode_alike(tmp_path: Path) -> None:
    data = encoded("PNG")
    (tmp_path / "a.png").write_bytes(data)
    assert decode(data).tobytes() == decode(tmp_path / "a.png").tobytes() == picture().tobytes()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_the_pixel_limit_is_checked_without_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(kind, picture(40, 30))
    assert decode(data, max_megapixels=0.0012).size == (40, 30)
    monkeypatch.setattr(Begun, "finish", lambda self: pytest.fail("was decoded"))
    with pytest.raises(BrokenImage, match="too many pixels: 40 x 30"):
        decode(data, max_megapixels=0.0011)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "GIF"])
def test_pillows_own_limit_neither_warns_nor_raises(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(kind, picture(40, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(data).size == (40, 30)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_what_pillow_refuses_by_itself_is_broken_too() -> None:
    def refuse() -> Image.Image:
        raise Image.DecompressionBombError("Image size (9 pixels) exceeds limit")

    with pytest.raises(BrokenImage, match="Pillow's own limit"):
        Begun((3, 3), 1, refuse).finish()


@pytest.mark.parametrize("side, usable", [(7, False), (8, True)])
def test_the_smallest_side_is_eight_pixels(side: int, usable: bool) -> None:
    data = encoded("PNG", picture(30, side))
    if usable:
        assert decode(data).size == (30, 8)
    else:
        with pytest.raises(BrokenImage, match="too small: 30 x 7 px"):
            decode(data)


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), KeyError("x"), AssertionError(), ZeroDivisionError()]
)
def test_whatever_a_reader_raises_is_a_broken_image(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    with pytest.raises(BrokenImage) as caught:
        Begun((9, 9), 1, fail).finish()
    assert caught.value.reason
    monkeypatch.setattr(decoder, "_reader", lambda data: fail)
    with pytest.raises(BrokenImage) as caught:
        begin(encoded("PNG"))
    assert caught.value.reason


def test_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "link.png").symlink_to("real.png")
    (tmp_path / "real.png").write_bytes(encoded("PNG"))
    assert decode(tmp_path / "link.png").size == (24, 20)
    for name, reason in [
        ("pipe.jpg", "not a regular file"),
        (".", "not a regular file"),
        ("none.jpg", "file not found"),
        ("loop.jpg", "cannot be read"),
        ("real.png/x.jpg", "cannot be read"),
        ("nul\0.jpg", "cannot be read"),
    ]:
        with pytest.raises(BrokenImage, match=reason):
            decode(tmp_path / name)
    with pytest.raises(BrokenImage, match="file too large"):
        read_image(tmp_path / "real.png", max_bytes=20)

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BrokenImage, match="cannot be read: Permission denied"):
        decode(tmp_path / "real.png")


KINDS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
VALID = [encoded(kind) for kind in KINDS] + [
    encoded("TIFF", compression="tiff_lzw"),
    encoded("PNG", picture().convert("P")),
    encoded("PNG", picture().convert("RGBA")),
    encoded("GIF", save_all=True, append_images=[picture().rotate(9)]),
    encoded("MPO"),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    which=st.integers(0, len(VALID) - 1),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), max_size=6),
    cut=st.none() | st.integers(0, 10**6),
)
def test_random_damage_raises_nothing_but_broken_image(
    which: int, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(VALID[which])
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    if cut is not None:
        del data[cut % len(data) :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = decode(bytes(data), max_megapixels=1.0)
        except BrokenImage as broken:
            assert broken.reason
        else:
            assert image.mode == "RGB" and min(image.size) >= 8


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_broken_image(data: bytes) -> None:
    with pytest.raises(BrokenImage):
        decode(data)


def test_begin_reads_the_header_and_finish_the_pixels() -> None:
    for kind in KINDS:
        data = encoded(kind)
        begun = begin(data)
        assert begun.size == (24, 20) and begun.bytes_needed >= 24 * 20 * 4, kind
        assert begun.finish().tobytes() == decode(data).tobytes(), kind
        with decoded(data) as image:
            assert image.mode == "RGB" and image.size == (24, 20)


# Each fills the memory in another way; megapixels keep what Python itself takes out of the figure.
LARGE = {
    "jpeg": ("JPEG", "RGB", {}),
    "jpeg-progressive": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "jpeg-ink": ("JPEG", "CMYK", {}),
    "jpeg-turned": (
        "JPEG",
        "RGB",
        {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"},
    ),
    "png": ("PNG", "RGB", {}),
    "png-alpha": ("PNG", "RGBA", {}),
    "png-grey16": ("PNG", "I;16", {}),
    "gif": ("GIF", "P", {}),
    "webp": ("WEBP", "RGB", {"lossless": True, "method": 0}),
    "webp-alpha": ("WEBP", "RGBA", {"method": 0}),
    "tiff": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "tiff-deflate": ("TIFF", "RGBA", {"compression": "tiff_deflate"}),
    "tiff-float": ("TIFF", "F", {"compression": "tiff_deflate"}),
    "tiff-fax": ("TIFF", "1", {"compression": "group4"}),
    "bmp": ("BMP", "RGBA", {}),
    "ppm": ("PPM", "RGB", {}),
}

_PEAK = """
import resource, sys
from pathlib import Path
from partgcd.data.decode import begin
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begun = begin(data)
image = begun.finish()
print(begun.bytes_needed, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.parametrize("name", LARGE)
def test_bytes_needed_is_above_what_is_taken(name: str, tmp_path: Path) -> None:
    kind, mode, options = LARGE[name]
    (tmp_path / "image").write_bytes(encoded(kind, Image.new(mode, (4000, 3000)), **options))
    # By way of a shell: a child of this process would count this process's peak as its own.
    found = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", _PEAK, str(tmp_path / "image")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    needed, taken = map(int, found.stdout.split())
    assert taken <= needed <= 2.5 * taken + 60_000_000


def test_a_folder_scan_knows_what_may_not_be_readable_here() -> None:
    assert {".heic", ".heif", ".hif", ".avif"} <= SUFFIXES


def test_warnings_of_pillow_reach_nobody_in_any_thread(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8))
    lzw = encoded("TIFF", noise, compression="tiff_lzw")
    (tmp_path / "lzw.tif").write_bytes(lzw)
    (tmp_path / "spoiled.tif").write_bytes(lzw[:300] + b"\xff" * 30 + lzw[330:])
    exif = b"\xff\xe1" + struct.pack(">H", 38) + b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xee" * 22
    jpeg = encoded("JPEG")
    (tmp_path / "exif.jpg").write_bytes(jpeg[:2] + exif + jpeg[2:])
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from PIL import Image
from partgcd.data.decode import BrokenImage, decode
Image.MAX_IMAGE_PIXELS = 300
def look(path):
    try:
        decode(path)
    except BrokenImage as broken:
        print(broken.reason)
with ThreadPoolExecutor(3) as pool:
    list(pool.map(look, 5 * sorted(Path(sys.argv[1]).iterdir())))
"""
    found = subprocess.run(
        [sys.executable, "-W", "always", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr == ""
    assert found.stdout.count("damaged") == 5


@pytest.mark.parametrize(
    ("start", "suffix"),
    [
        (b"\xff\xd8\xff\xe0", ".jpg"), (b"\x89PNG\r\n\x1a\n", ".png"), (b"BM123456", ".bmp"), (b"GIF89a", ".gif"),
        (b"II*\0", ".tif"), (b"MM\0*", ".tif"), (b"P6 9 9 255 ", ".pnm"), (b"Pf\n9 9\n1\n", ".pnm"),
        (b"RIFF0000WEBPVP8 ", ".webp"), (b"\0\0\0\x18ftypavif\0\0\0\0mif1", ".avif"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1", ".heic"), (b"what?", ".jpg"), (b"", ".jpg"),
    ],
)  # fmt: skip
def test_a_suffix_is_that_of_the_content(start: bytes, suffix: str) -> None:
    assert decoder.suffix_of(start) == suffix and suffix in decoder.SUFFIXES
