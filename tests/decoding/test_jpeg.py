from __future__ import annotations

import io
import struct
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.data.decode import begin, decode
from partgcd.decoding.begun import BrokenImage


def photo(width: int = 96, height: int = 80) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)).resize(
        (width, height)
    )


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    (image or photo()).save(file, "JPEG", **options)
    return file.getvalue()


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "fine": {"subsampling": 0, "quality": 95},
    "restarts": {"restart_marker_blocks": 4},
    "progressive": {"progressive": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("ending", [b"", bytes(50), bytes(5000)])
def test_only_the_end_mark_may_be_missing(kind: str, mode: str, ending: bytes) -> None:
    whole = jpeg(photo().convert(mode), **KINDS[kind])
    assert whole.endswith(b"\xff\xd9")
    assert decode(whole[:-2] + ending).tobytes() == decode(whole).tobytes()
    for cut in (len(whole) // 2, len(whole) * 9 // 10):
        with pytest.raises(BrokenImage, match=r"^truncated$"):
            decode(whole[:cut] + ending)


@pytest.mark.parametrize("kind", ["baseline", "fine"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_half_the_pixels_before_an_end_mark_are_truncated_too(kind: str, mode: str) -> None:
    whole = jpeg(photo().convert(mode), **KINDS[kind])
    for share in (0.5, 0.7, 0.9):
        with pytest.raises(BrokenImage, match=r"^truncated$"):
            decode(whole[: int(len(whole) * share)] + b"\xff\xd9")


def test_a_grey_corner_alone_is_no_missing_pixel() -> None:
    pixels = np.array(photo())
    pixels[40:, 40:] = 128
    for image in (Image.fromarray(pixels), Image.new("L", (64, 64), 128)):
        whole = jpeg(image)
        assert decode(whole).size == image.size
        assert decode(whole[:-2]).tobytes() == decode(whole).tobytes()


def test_a_progressive_one_without_its_last_scans_is_truncated() -> None:
    whole = jpeg(progressive=True)
    last = whole.rindex(b"\xff\xda")
    with pytest.raises(BrokenImage, match=r"^truncated$"):
        decode(whole[:last])


@pytest.mark.parametrize("after", [b"\0" * 9, b"\xff\xd8\xff\xe0junk", b"PK\3\4 a zip", b"\xff\xd9"])
def test_what_follows_the_end_mark_does_not_matter(after: bytes) -> None:
    assert decode(jpeg() + after).tobytes() == decode(jpeg()).tobytes()


EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
METADATA = {
    "damaged exif": segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xee" * 22),
    "huge icc": b"".join(
        segment(0xE2, b"ICC_PROFILE\0" + bytes((i, 60)) + bytes(65_000)) for i in range(1, 61)
    ),
    "bad icc": segment(0xE2, b"ICC_PROFILE\0\1"),
    "bad mpf": segment(0xE2, b"MPF\0II*\0\xff\xff\xff\xff"),
    "bad photoshop": segment(0xED, b"Photoshop 3.0\x008BIM\4\4\0\0\xff\xff\xff\xff"),
    "bad jfif density": segment(0xE0, b"JFIF\0\1\1\0\0\0\0\0\0\0"),
    "comments": segment(0xFE, b"\xff" * 60_000) * 100,
    "exif that claims gigabytes": segment(
        0xE1,
        b"Exif\0\0MM\0*\0\0\0\x08\x13\x88"
        + b"".join(struct.pack(">HHII", 256 + i, 7, 60_000, 0) for i in range(5000)),
    ),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_never_spoils_a_picture(name: str) -> None:
    whole = jpeg()
    assert decode(whole[:2] + METADATA[name] + whole[2:]).tobytes() == decode(whole).tobytes()


@pytest.mark.parametrize("where", ["exif", "exif after another", "xmp"])
def test_the_orientation_is_found_among_the_rest(where: str) -> None:
    xmp = segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>')
    segments = {
        "exif": segment(0xE1, EXIF),
        "exif after another": METADATA["comments"] + segment(0xE1, EXIF),
        "xmp": xmp,
    }
    whole = jpeg()
    turned = decode(whole[:2] + segments[where] + whole[2:])
    assert turned.tobytes() == decode(whole).transpose(Image.Transpose.ROTATE_270).tobytes()


def many_scans(side: int, scans: int) -> bytes:
    """A progressive grey JPEG whose blocks are gone through again and again, for nothing."""
    data = jpeg(Image.new("L", (side, side), 128), progressive=True, quality=50)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff", start + 2 + struct.unpack_from(">H", data, start + 2)[0])
    table = segment(0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\xe0")
    bits, left = "", ((side + 7) // 8) ** 2
    while left > 0:
        extra = max(0, min(left - 16384, 16383))
        bits += "0" + format(extra, "014b")
        left -= 16384 + extra
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return data[:end] + table + (segment(0xDA, bytes((1, 1, 0, 1, 63, 0))) + body) * scans + b"\xff\xd9"


@pytest.mark.parametrize("side, scans", [(64, 16_000), (64, 300), (6300, 100)])
def test_too_many_scans_are_refused_before_anything_is_decoded(side: int, scans: int) -> None:
    data = many_scans(side, scans)
    start = time.monotonic()
    with pytest.raises(BrokenImage, match=f"a JPEG of {scans + 1:,} scans, too much work"):
        begin(data)
    assert time.monotonic() - start < 5  # the old program took minutes


def test_a_few_scans_more_are_read() -> None:
    assert decode(many_scans(64, 100)).size == (64, 64)


def with_frame(change: Any) -> bytes:
    data = bytearray(jpeg())
    change(data, data.index(b"\xff\xc0"))
    return bytes(data)


def put(offset: int, value: int) -> Any:
    def change(data: bytearray, at: int) -> None:
        data[at + offset] = value

    return change


@pytest.mark.parametrize(
    "change, reason",
    [
        (put(4, 12), "a JPEG of 12 bits is not read: save it with 8 bits"),
        (put(1, 0xC3), "a lossless JPEG is not read"),
        (put(1, 0xC7), "a hierarchical JPEG is not read"),
        (put(9, 2), "a JPEG of 2 channels is not read"),
        (
            lambda data, at: data.__setitem__(slice(at + 5, at + 7), b"\0\0"),
            "a JPEG that names its height only",
        ),
    ],
)
def test_what_is_not_read_is_named(change: Any, reason: str) -> None:
    with pytest.raises(BrokenImage, match=reason):
        begin(with_frame(change))


@pytest.mark.parametrize(
    "junk", [b"\xff\xe5\0\2" * 100_000, b"\xff\xfe\0\2" * 100_000, b"\xff\xdb\0\2" * 2_000]
)
def test_endless_segments_are_refused(junk: bytes) -> None:
    whole = jpeg()
    for data in (whole[:2] + junk + whole[2:], whole[:-2] + junk * 20 + whole[-2:]):
        if len(junk) > 50_000 or data.startswith(whole[:2] + junk):
            with pytest.raises(BrokenImage, match="save it anew"):
                begin(data)
