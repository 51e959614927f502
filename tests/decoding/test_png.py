from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from partgcd.data.decode import begin, decode
from partgcd.decoding.begun import BrokenImage

MAGIC = b"\x89PNG\r\n\x1a\n"
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
BIG = zlib.compress(bytes(1_500_000))


def chunk(kind: bytes, body: bytes, crc: int | None = None) -> bytes:
    sum_ = zlib.crc32(kind + body) if crc is None else crc
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", sum_)


def png(
    before: bytes = b"", after: bytes = b"", idat: bytes | None = None, header: bytes | None = None
) -> bytes:
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in PIXELS))
    size = struct.pack(">IIBBBBB", 24, 20, 8, 2, 0, 0, 0)
    ihdr, data = header or chunk(b"IHDR", size), chunk(b"IDAT", packed) if idat is None else idat
    return MAGIC + ihdr + before + data + after + chunk(b"IEND", b"")


PACKED = zlib.compress(b"".join(b"\0" + row.tobytes() for row in PIXELS))
SPOILED = {
    "text above Pillow's limit": chunk(b"zTXt", b"Comment\0\0" + BIG),
    "XMP above Pillow's limit": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + BIG),
    "profile above Pillow's limit": chunk(b"iCCP", b"icc\0\0" + BIG),
    "much text": chunk(b"tEXt", b"Comment\0" + b"x" * 2_000_000) * 40,
    "text that is not packed": chunk(b"zTXt", b"Comment\0\0nonsense"),
    "text without a keyword": chunk(b"tEXt", b"\xff" * 50),
    "profile of nothing": chunk(b"iCCP", b""),
    "exif of nonsense": chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff" + b"\xee" * 40),
    "raw profile of nonsense": chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\n\n\nzz")),
    "short chunks": chunk(b"pHYs", b"1") + chunk(b"gAMA", b"") + chunk(b"tIME", b"12") + chunk(b"cHRM", b"1"),
    "wrong checksums": chunk(b"tEXt", b"a\0b", crc=1)
    + chunk(b"iCCP", b"icc", crc=2)
    + chunk(b"tRNS", b"123456", crc=3),
    "short transparency": chunk(b"tRNS", b"\0"),
    "an animation without frames": chunk(b"acTL", struct.pack(">II", 9, 0)),
    "frames that lie": chunk(b"acTL", bytes(8)) + chunk(b"fcTL", b"\xff" * 26),
    "an unknown chunk": chunk(b"quUX", b"?" * 99),
}


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("where", ["before", "after"])
def test_metadata_never_spoils_a_picture(name: str, where: str) -> None:
    data = png(before=SPOILED[name]) if where == "before" else png(after=SPOILED[name])
    assert (np.asarray(decode(data)) == PIXELS).all()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_pixels_in_pieces_are_put_together(size: int) -> None:
    pieces = b"".join(chunk(b"IDAT", PACKED[at : at + size]) for at in range(0, len(PACKED), size))
    assert (np.asarray(decode(png(idat=pieces))) == PIXELS).all()


def test_too_many_pieces_are_refused() -> None:
    with pytest.raises(BrokenImage, match="more than 100,000 pieces"):
        begin(png(before=chunk(b"tEXt", b"a\0b") * 100_001))


def test_a_wrong_checksum_of_pixels_is_forgiven_where_the_pixels_are_whole() -> None:
    assert (np.asarray(decode(png(idat=chunk(b"IDAT", PACKED, crc=5)))) == PIXELS).all()
    raw = b"".join(b"\0" + row.tobytes() for row in PIXELS)
    stored = bytearray(zlib.compress(raw, 0))
    stored[100] ^= 1  # one pixel, in a stream that still unpacks
    with pytest.raises(BrokenImage, match="a wrong checksum in the PNG's pixels"):
        decode(png(idat=chunk(b"IDAT", bytes(stored), crc=zlib.crc32(b"IDAT" + zlib.compress(raw, 0)))))


@pytest.mark.parametrize(
    "chunks, turned",
    [
        (chunk(b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\3\0\0\0\0\0\0\0"), True),
        (chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="3"/>'), True),
        (chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"<tiff:Orientation>3<")), True),
        (
            chunk(
                b"zTXt",
                b"Raw profile type exif\0\0"
                + zlib.compress(
                    b"\nexif\n  26\n"
                    + b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\3\0\0\0\0\0\0\0".hex().encode()
                ),
            ),
            True,
        ),
        (chunk(b"tEXt", b"tiff:Orientation\0003"), False),
    ],
)
def test_the_orientation_is_found(chunks: bytes, turned: bool) -> None:
    assert (np.asarray(decode(png(before=chunks))) == (PIXELS[::-1, ::-1] if turned else PIXELS)).all()


@pytest.mark.parametrize(
    "data, reason",
    [
        (
            png(header=chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 20, 3, 2, 0, 0, 0))),
            "no colour type 2 of 3 bits",
        ),
        (png(header=chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 20, 8, 3, 0, 0, 0))), "without its palette"),
        (png(header=chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 20, 8, 2, 0, 0, 0), crc=1)), "wrong checksum"),
        (png(idat=b""), "truncated"),
        (png(idat=chunk(b"IDAT", PACKED[:500])), "truncated"),
        (MAGIC + chunk(b"sRGB", b"\0") + png()[8:], "no PNG header"),
    ],
)
def test_what_makes_pixels_must_be_right(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenImage, match=reason):
        decode(data)


def test_pixels_of_a_bomb_are_unpacked_no_further_than_the_picture() -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    assert decode(png(idat=chunk(b"IDAT", bomb))).size == (24, 20)
    with pytest.raises(BrokenImage, match="a wrong checksum"):
        decode(png(idat=chunk(b"IDAT", bomb, crc=1)))
