"""What the drawn pictures of test_pictures.py do not hold: coarse YCbCr, JPEG and fax, damage, and what is refused."""

from __future__ import annotations

import importlib
import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from partgcd.data.decode import begin, decode
from partgcd.decoding.begun import BrokenImage

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
GREY = np.random.default_rng(0).integers(0, 256, (20, 24, 1), np.uint8)
RGB = np.random.default_rng(1).integers(0, 256, (20, 24, 3), np.uint8)


@pytest.fixture(scope="module")
def write() -> Any:
    """`write_tiff` of benchmarks/tiffs.py."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("tiffs").write_tiff
    finally:
        sys.path.remove(str(FOLDER))


def tag(number: int, kind: int, body: bytes) -> tuple[int, int, bytes]:
    return number, kind, body


DAMAGED = {
    "a million bytes of nothing": [tag(700, 1, b"\xff" * 1_000_000)],
    "rationals by zero": [tag(282, 5, bytes(8)), tag(283, 5, b"\1\0\0\0\0\0\0\0"), tag(296, 3, b"\xff\xff")],
    "text that is none": [tag(270, 2, b"\xff\xfe\0\xff" * 9), tag(305, 2, b""), tag(306, 2, b"x")],
    "directories that are none": [
        tag(34665, 4, b"\xff" * 4),
        tag(34853, 4, b"\xff" * 4),
        tag(330, 4, b"\1\0\0\0"),
    ],
    "a profile of nothing": [tag(34675, 7, b"nonsense"), tag(34377, 1, b"8BIM\xff\xff\xff\xff")],
    "a mark of no data that is none": [tag(42113, 2, b"none\0")],
    "tags of GeoTIFF": [tag(33550, 12, b"\xff" * 24), tag(34735, 3, b"\xff" * 8), tag(42112, 2, b"<GDAL")],
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("big", [False, True])
def test_metadata_never_spoils_a_picture(name: str, big: bool, write: Any) -> None:
    data = write(RGB, 8, 1, 2, big=big, more=tuple(DAMAGED[name]))
    assert (np.asarray(decode(data)) == RGB).all()


@pytest.mark.parametrize("sampling", [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (1, 2)])
@pytest.mark.parametrize("squeezed", ["none", "deflate"])
@pytest.mark.parametrize("size", [(20, 24), (21, 27)])
def test_coarse_ycbcr_is_laid_out_as_the_standard_says(
    sampling: tuple[int, int], squeezed: str, size: tuple[int, int], write: Any
) -> None:
    across, down = sampling
    height, width = size
    rng = np.random.default_rng(2)
    tall, wide = -(-height // down), -(-width // across)
    light = rng.integers(60, 200, (tall * down, wide * across))
    colour = rng.integers(118, 139, (tall, wide, 2))
    units = np.concatenate(
        [light.reshape(tall, down, wide, across).transpose(0, 2, 1, 3).reshape(tall, wide, -1), colour], -1
    )
    # As written this is a picture of units with many channels; the tags are put right after.
    sixteen = struct.pack("<HH", across, down)
    data = bytearray(
        write(units.astype(np.uint8), 8, 1, 6, squeezed=squeezed, rows=tall, more=(tag(530, 3, sixteen),))
    )
    put(data, {256: width, 257: height, 277: 3, 278: height})
    # Eight bits for each of three channels lie behind the directory, as for any number of them.
    cb, cr = (colour[..., c].repeat(down, 0).repeat(across, 1)[:height, :width] - 128.0 for c in (0, 1))
    y = light[:height, :width]
    wanted = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], -1)
    assert np.abs(np.asarray(decode(bytes(data))) - wanted).max() <= 2


def put(data: bytearray, values: dict[int, int]) -> None:
    """Change numbers in the directory of a little-endian file."""
    at = struct.unpack_from("<I", data, 4)[0]
    for entry in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", data, at)[0], 12):
        number, kind = struct.unpack_from("<HH", data, entry)
        if number in values:
            struct.pack_into("<H" if kind == 3 else "<I", data, entry + 8, values[number])


def saved(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF", **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "YCbCr"])
@pytest.mark.parametrize("height", [20, 300])
def test_jpeg_in_a_tiff_has_the_colours_that_the_tiff_names(mode: str, height: int) -> None:
    y, x = np.mgrid[0:height, 0:40]
    image = Image.fromarray(np.stack([3 * x + 50, y % 120 + 60, x + 90], -1).astype(np.uint8)).convert(mode)
    found = np.asarray(decode(saved(image, compression="jpeg", quality=95))).astype(int)
    assert np.abs(found - np.asarray(image.convert("RGB"))).mean() < 3


@pytest.mark.parametrize("compression", ["group3", "group4", "tiff_ccitt"])
@pytest.mark.parametrize("turn", [1, 6])
def test_fax_is_read(compression: str, turn: int) -> None:
    bits = RGB[..., 0] > 128
    data = saved(Image.fromarray(bits), compression=compression, tiffinfo={274: turn})
    wanted = bits if turn == 1 else bits[::-1].T
    assert (np.asarray(decode(data))[..., 0] == wanted * 255).all()


@pytest.mark.parametrize("squeezed", ["none", "deflate"])
def test_a_palette_of_bytes_is_read_as_its_writer_meant(squeezed: str, write: Any) -> None:
    palette = np.random.default_rng(3).integers(0, 256, (3, 256))
    palette[0, 0] = 255
    for colours in (palette, palette * 257):
        data = write(GREY, 8, 1, 3, palette=colours.astype(np.uint16), squeezed=squeezed)
        assert (np.asarray(decode(data)) == palette.T[GREY[..., 0]]).all()


def test_the_mark_of_no_data_that_gdal_writes_counts(write: Any) -> None:
    values = np.linspace(10, 20, 480, dtype=np.float32).reshape(20, 24, 1)
    values[3:9, 4:7] = 12.5
    found = np.asarray(decode(write(values, 32, 3, 1, more=(tag(42113, 2, b"12.5\0"),))))
    assert not found[3:9, 4:7].any() and found.max() == 255


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("bits", [32, 64])
def test_wide_integers_are_16_bits_where_they_fit_and_stretched_where_not(
    order: str, bits: int, write: Any
) -> None:
    small = np.arange(480, dtype=np.int64).reshape(20, 24, 1) * 136
    wanted = np.rint(small * 255 / 65535)
    for form, kind in ((1, "u"), (2, "i")):
        data = write(small.astype(f"{kind}{bits // 8}"), bits, form, 1, order=order)
        assert np.abs(np.asarray(decode(data)) - wanted).max() <= 1
    large = np.arange(480, dtype=np.uint64).reshape(20, 24, 1) * np.uint64(2 ** (bits - 9))
    found = np.asarray(decode(write(large.astype(f"u{bits // 8}"), bits, 1, 1, order=order)))
    assert np.abs(found - np.arange(480).reshape(20, 24, 1) * 255 / 479).max() <= 1


def refused(**changes: int) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({259: 34887}, "a TIFF compressed with LERC is not read: save it uncompressed or with LZW"),
        ({259: 33005}, "a TIFF compressed with JPEG 2000"),
        ({259: 4711}, "a TIFF compressed with number 4711"),
        ({262: 32803}, "a TIFF of a RAW sensor's pattern is not read"),
        ({262: 4}, "a TIFF of a mask is not read"),
        ({262: 7}, "a TIFF of interpretation 7"),
        ({277: 300}, "a TIFF of 300 channels"),
        ({278: 0}, "damaged: a TIFF without the size of its strips"),
        ({256: 0}, "too small: 0 x 20 px"),
        ({256: 60_000, 257: 60_000}, "too many pixels"),
        ({273: 10**8}, "truncated"),
        ({279: 5}, "truncated"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(changes: dict[int, int], reason: str, write: Any) -> None:
    data = bytearray(write(GREY, 8, 1, 1, rows=20))
    put(data, changes)
    with pytest.raises(BrokenImage, match=reason):
        decode(bytes(data))


def test_channels_of_different_kinds_are_refused(write: Any) -> None:
    for number, reason in ((258, "different depths"), (339, "numbers of different kinds")):
        data = write(RGB, 8, 1, 2)
        good = struct.pack("<HHH", *([8, 8, 8] if number == 258 else [1, 1, 1]))
        bad = struct.pack("<HHH", *([5, 6, 5] if number == 258 else [1, 3, 1]))
        with pytest.raises(BrokenImage, match=reason):
            decode(data.replace(good, bad))


def test_raw_photos_are_called_by_their_kind(write: Any) -> None:
    for more in ((tag(50706, 1, b"\1\4\0\0"),), (tag(254, 4, b"\1\0\0\0"), tag(330, 4, b"\1\0\0\0"))):
        with pytest.raises(BrokenImage, match="a RAW photo"):
            begin(write(RGB, 8, 1, 2, more=more))


def test_hostile_directories_end_at_once(write: Any) -> None:
    rows = 200_000
    many = write(np.zeros((8, 24, 1), np.uint8), 8, 1, 1, rows=1)
    tall = bytearray(many)
    put(tall, {257: rows})
    with pytest.raises(BrokenImage, match=f"a TIFF of {rows:,} strips or tiles"):
        begin(bytes(tall))
    entries = 65_535
    directory = struct.pack("<H", entries) + b"".join(
        struct.pack("<HHII", 700 + i % 99, 1, 4_000_000_000, 8) for i in range(entries)
    )
    with pytest.raises(BrokenImage):
        begin(b"II*\0\x08\0\0\0" + directory + bytes(1_000_000))
    for start in (4, 0, 2**32 - 1):
        with pytest.raises(BrokenImage):
            begin(b"II*\0" + struct.pack("<I", start) + bytes(20))


def test_a_float_picture_of_a_megabyte_takes_no_gigabytes(write: Any) -> None:
    packer = zlib.compressobj(9)
    side = 6310
    row = np.arange(side, dtype="<f4").tobytes()
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    data = bytearray(write(np.zeros((8, 8, 1), np.float32), 32, 3, 1, squeezed="deflate", rows=8))
    put(data, {256: side, 257: side, 278: side, 273: len(data), 279: len(packed)})
    assert begin(bytes(data) + packed).bytes_needed < 500_000_000
