"""BMP, the PNM family, GIF, WebP, AVIF, HEIC, and what is no image: the hostile, the odd and the refused of each."""

from __future__ import annotations

import importlib.util
import io
import struct
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from partgcd.data.decode import begin, decode
from partgcd.decoding.begun import BrokenImage

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(file, kind, **options)
    return file.getvalue()


def bmp(length: int, alpha: int, mask: int = 0xFF000000) -> bytes:
    """A BMP of 32 bits with masks for colour and alpha."""
    pixels = np.dstack([PIXELS[::-1, :, ::-1], np.full((20, 24), alpha, np.uint8)]).tobytes()
    header = struct.pack("<IiiHHIIiiII", length, 24, 20, 1, 32, 3, len(pixels), 0, 0, 0, 0)
    header = (header + struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, mask)).ljust(length, b"\0")
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(header)) + header + pixels


@pytest.mark.parametrize("length", [56, 108, 124])
def test_a_bmp_whose_alpha_is_nothing_is_opaque(length: int) -> None:
    assert (np.asarray(decode(bmp(length, 0))) == PIXELS).all()
    assert (np.asarray(decode(bmp(length, 255))) == PIXELS).all()
    half = np.asarray(decode(bmp(length, 128))).astype(int)
    assert np.abs(half - (PIXELS * (128 / 255) + 255 * (127 / 255))).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_elsewhere_an_alpha_of_nothing_is_meant(kind: str) -> None:
    image = Image.fromarray(np.dstack([PIXELS, np.zeros((20, 24), np.uint8)]))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert (np.asarray(decode(encoded(kind, image, **options))) == 255).all()


@pytest.mark.parametrize(
    "change, reason",
    [
        ({14: 99}, "a BMP with a header of 99 bytes is not read: save it as PNG"),
        ({28: 7}, "a BMP of 7 bits, kind 0, is not read"),
        ({30: 4}, "a BMP of 24 bits, kind 4, is not read"),
        ({18: 0}, "damaged: a BMP without a width"),
    ],
)
def test_what_a_bmp_may_not_be_is_named(change: dict[int, int], reason: str) -> None:
    data = bytearray(encoded("BMP"))
    for place, value in change.items():
        data[place] = value
    with pytest.raises(BrokenImage, match=reason):
        decode(bytes(data))


def test_endless_runs_are_refused() -> None:
    header = struct.pack("<IiiHHIIiiII", 40, 24, 30_000, 1, 8, 1, 0, 0, 0, 0, 0)
    data = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + header + bytes(1024) + b"\1\1" * 500_001
    with pytest.raises(BrokenImage, match="more than 500,000 runs"):
        decode(data)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"P3\n64 64\n255\n" + b"#\n" * 500_000, "more than 100,000 comments"),
        (b"P6\n" + b"#\n" * 1_500_000 + b"8 8 255\n" + bytes(192), "more than 100,000 comments"),
        (b"P3\n64 64\n255\n" + b"1 " * 9, "truncated"),
        (b"P2 8 8 255 " + b"256 " * 64, "a value above its largest"),
        (b"P2 8 8 255 " + b"-1 " * 64, "something else than numbers"),
        (b"P5 8 8 65536\n" + bytes(128), "a largest value of 65536"),
        (b"P5 8 8 0\n" + bytes(64), "a largest value of 0"),
        (b"P5 8 8 255\n" + bytes(63), "truncated"),
        (b"P5 8 x 255\n" + bytes(64), "no PNM header"),
        (b"Pf 8 8 0\n" + bytes(256), "a PFM without a scale"),
        (b"Pf 8 8 nan\n" + bytes(256), "a PFM without a scale"),
        (b"P7\nWIDTH 8\nHEIGHT 8\nDEPTH 7\nMAXVAL 255\nENDHDR\n" + bytes(448), "a PAM of 7 channels"),
        (b"P7\nWIDTH 8\n", "no PAM header"),
    ],
)
def test_a_pnm_that_is_not_right_is_refused_at_once(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenImage, match=reason):
        decode(data)


def test_an_odd_largest_value_takes_no_loop() -> None:
    data = b"P6\n1000 1000\n254\n" + b"\x7f" * 3_000_000
    assert decode(data).getextrema() == ((128, 128),) * 3


def test_long_gaps_are_read_and_endless_numbers_are_not() -> None:
    for start, gap in (
        (b"P2 8 8 255 ", b" " * 3_000_000),
        (b"P2 8 8 255 " + b"0" * 900_000, b"\n" * 3_000_000),
    ):
        assert decode(start + b"7" + gap + b" 7" * 63).getextrema() == ((7, 7),) * 3
    with pytest.raises(BrokenImage, match="a number without end"):
        decode(b"P2 8 8 255 " + b"0" * 3_000_000 + b" 7" * 64)
    assert decode(b"P1 2000 1500 " + b"01" * 1_500_000).getextrema() == ((0, 255),) * 3


def test_only_the_first_frame_of_a_gif_is_looked_at() -> None:
    frames = [Image.new("P", (24, 20), number) for number in range(40)]
    whole = encoded("GIF", frames[0], save_all=True, append_images=frames[1:])
    first = whole.index(b",") + 200
    assert decode(whole).tobytes() == decode(whole[: max(first, len(whole) // 2)]).tobytes()
    comments = whole[:13] + b"" if not whole[10] & 128 else whole[: 13 + (3 << (whole[10] & 7) + 1)]
    with pytest.raises(BrokenImage, match="more than 500,000 blocks"):
        begin(comments + b"!\xfe" + b"\1a" * 500_001 + b"\0" + whole[len(comments) :])


@pytest.mark.parametrize("lossless", [False, True])
def test_what_follows_the_first_picture_of_a_webp_does_not_matter(lossless: bool) -> None:
    whole = encoded(
        "WEBP", lossless=lossless, exif=b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\3\0\0\0\0\0\0\0"
    )
    upside_down = decode(encoded("WEBP", lossless=lossless)).transpose(Image.Transpose.ROTATE_180)
    for data in (
        whole,
        whole + b"junk",
        whole + b"XMP \xff\xff\xff\x7f",
        whole[:4] + b"\0\0\0\0" + whole[8:],
    ):
        assert decode(data).tobytes() == upside_down.tobytes()


def test_a_small_file_may_not_take_much_memory() -> None:
    flat = encoded("WEBP", Image.new("RGB", (8000, 8000)), lossless=True, method=0)
    with pytest.raises(BrokenImage, match="a decompression bomb"):
        begin(flat)


FOREIGN = {
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL: save it as JPEG",
    b"\xff\x0a\xfa\x1f": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"8BPS\0\1": "a Photoshop document: export it",
    b"%PDF-1.7": "a PDF: save its pages",
    b"\xef\xbb\xbf  <?xml version='1.0'?>\n<svg xmlns=''/>": "SVG",
    b"<!DOCTYPE html><title>404</title>": "a web page .the download failed",
    b'{"error": "not found"}': "JSON",
    b"PK\3\4\x14\0": "a ZIP archive: unpack it",
    b"\0\0\0\x18ftypqt  \0\0\0\0": "a video",
    b"\0\0\0\x18ftypisom\0\0\2\0isomiso2": "a video",
    b"\0\0\0\x18ftypcrx \0\0\0\1crx isom": "a RAW photo .Canon",
    b"II*\0\x10\0\0\0CR\2\0" + bytes(4) + b"\1\0\0\1\3\0\1\0\0\0\x40\0\0\0" + bytes(4): "a RAW photo",
    b"FUJIFILMCCD-RAW 0201": "a RAW photo .Fujifilm",
    b"RIFF\0\0\0\0AVI LIST": "a video .AVI",
    b"\x1a\x45\xdf\xa3": "a video .Matroska",
    b"\0\0\1\0\1\0": "an icon",
    bytes(500): "zeros",
    b"version https://git-lfs.github.com/spec/v1\n": "a pointer of Git LFS: git lfs pull",
    b"\0\5\x16\7\0\2\0\0": "notes that macOS keeps",
}


@pytest.mark.parametrize("data", FOREIGN)
def test_other_files_are_called_by_their_name(data: bytes) -> None:
    with pytest.raises(BrokenImage, match=f"^not an image that is read but {FOREIGN[data]}") as caught:
        decode(data)
    assert len(caught.value.reason) < 120


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99)


def test_heic_is_called_heic_and_told_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(
        BrokenImage, match=r"^HEIC is not read here: pip install 'partgcd\[heif\]', or convert"
    ):
        decode(HEIC)


@pytest.fixture
def heif() -> Any:
    """pillow-heif, or a skip."""
    if importlib.util.find_spec("pillow_heif") is None:
        pytest.skip("pillow-heif is not installed: pip install 'partgcd[heif]'")
    return importlib.import_module("pillow_heif")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_heic_is_read_where_pillow_heif_is(mode: str, heif: Any) -> None:
    y, x = np.mgrid[0:60, 0:80]
    pixels = np.stack([2 * x + 40, 2 * y + 60, x + y + 50], -1).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    file = io.BytesIO()
    heif.from_pillow(image).save(file, quality=95)
    found = decode(file.getvalue())
    assert found.size == (80, 60)
    assert np.abs(np.asarray(found).astype(int) - np.asarray(image.convert("RGB"))).mean() < 4
    with pytest.raises(BrokenImage, match="too many pixels: 80 x 60"):
        begin(file.getvalue(), max_megapixels=0.001)
    with pytest.raises(BrokenImage):
        decode(file.getvalue()[:400])
    # Damaged EXIF is no reason to lose a picture; the container's own rotation is the one that counts.
    file = io.BytesIO()
    heif.from_pillow(image).save(file, quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xee" * 30)
    assert decode(file.getvalue()).size == (80, 60)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_damaged_exif_does_not_spoil_an_avif() -> None:
    good, bad = (
        encoded("AVIF", quality=100, subsampling="4:4:4", exif=exif)
        for exif in (b"", b"II*\0\x08\0\0\0\1\0\x31\1\3\0\1\0\0\0\1\0\0\0\0\0\0\0")
    )
    spoiled = bad.replace(b"II*\0\x08\0\0\0", b"II*\0\xff\xff\xff\x7f")
    assert spoiled != bad and decode(spoiled).tobytes() == decode(good).tobytes()
