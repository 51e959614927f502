"""Pictures of every format for benchmarks/decoding.py, each with its plain form: what a reader is to make of it.

PNG, BMP, GIF and the PNM family are written by hand, so that no reader is tested with its own writer.
"""

from __future__ import annotations

import io
import random
import struct

import numpy as np
from PIL import Image
from plain import Made, Pixels, bit_rows, exif_of, on_white, random_values, three, turned
from pngs import draw_png
from tiffs import draw_tiff


def draw_picture(seed: int) -> Made:
    """One picture of any format; the same for one seed."""
    draw = random.Random(seed)
    maker = draw.choices((_tiff, draw_png, _bmp, _pnm, _gif, _lossy), (8, 4, 3, 3, 2, 4))[0]
    return maker(draw)


def _tiff(draw: random.Random) -> Made:
    made = draw_tiff(draw, turned)
    return Made(f"TIFF {made.name}", made.data, made.plain, made.tolerance, made.tolerance)


def _bmp(draw: random.Random) -> Made:
    length = draw.choice((12, 40, 40, 52, 56, 64, 108, 124))
    bits = draw.choice((1, 4, 8, 24) if length == 12 else (1, 4, 8, 16, 24, 32, 32))
    down = length > 12 and draw.random() < 0.3
    compression, masks, alpha = 0, (0, 0, 0, 0), None
    if bits <= 8:
        values = random_values(draw, 1, (1 << bits) - 1)
        palette = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, (1 << bits, 3))
        plain = palette[values[..., 0]].astype(float)
        pad = 3 if length == 12 else 4
        table = np.pad(palette[:, ::-1], ((0, 0), (0, pad - 3))).astype(np.uint8).tobytes()
        rows = bit_rows(values[..., 0], bits, 4)
        runs = length > 12 and bits in (4, 8) and not down and draw.random() < 0.4
        compression = {4: 2, 8: 1}[bits] if runs else 0
        order = rows if down else rows[::-1]
        body = _runs(values[::-1, :, 0], bits) if runs else order.tobytes()
    else:
        table = b""
        if bits in (16, 32) and length not in (12, 64) and draw.random() < 0.6:
            compression = 3
            masks = draw.choice(
                [(0xF800, 0x7E0, 0x1F, 0), (0x7C00, 0x3E0, 0x1F, 0), (0xF00, 0xF0, 0xF, 0xF000)] if bits == 16 else
                [(0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF, 0xFF00, 0xFF0000, 0), (0x3FF00000, 0xFFC00, 0x3FF, 0),
                 (0xFF000000, 0xFF0000, 0xFF00, 0xFF)]
            )  # fmt: skip
            masks = masks if length >= 56 else (*masks[:3], 0)
        used = masks if compression else {16: (0x7C00, 0x3E0, 0x1F, 0)}.get(bits, (0xFF0000, 0xFF00, 0xFF, 0))
        sizes = [mask.bit_count() for mask in used]
        channels = np.stack(
            [
                random_values(random.Random(draw.random()), 1, (1 << size) - 1, 60)[..., 0][:20, :8]
                for size in sizes
            ],
            -1,
        )
        nothing = draw.random() < 0.4
        if sizes[3] and nothing:
            channels[..., 3] = 0  # as programs leave it that know no alpha: opaque
        shifts = [(mask & -mask).bit_length() - 1 if mask else 0 for mask in used]
        words = sum(channels[..., c].astype(np.uint64) << np.uint64(shifts[c]) for c in range(4))
        plain = channels[..., :3] * 255 / np.array([(1 << size) - 1 for size in sizes[:3]])
        if sizes[3] and channels[..., 3].any():
            alpha = channels[..., 3] / ((1 << sizes[3]) - 1)
        parts = np.asarray(words, "<u8").view(np.uint8).reshape(20, 8, 8)[..., : bits // 8].reshape(20, -1)
        parts = np.pad(parts, ((0, 0), (0, -parts.shape[1] % 4)))
        body = (parts if down else parts[::-1]).tobytes()
    height, width = plain.shape[:2]
    if length == 12:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        header = struct.pack(
            "<IiiHHIIiiII",
            length,
            width,
            -height if down else height,
            1,
            bits,
            compression,
            len(body),
            0,
            0,
            0,
            0,
        )
        extra = struct.pack("<IIII", *masks)
        header = header + (extra[:12] if length == 40 and compression == 3 else b"")
        header = (header + (extra if length > 40 else b""))[: length if length > 40 else None].ljust(
            length, b"\0"
        )
    start = 14 + len(header) + len(table)
    data = b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + table + body
    plain = plain if alpha is None else on_white(plain, alpha)
    return Made(
        f"BMP header {length} bits {bits} kind {compression} masks {masks} {'down' if down else ''}",
        data,
        plain,
        1.51,
        1.0,
    )


def _runs(rows: Pixels, bits: int) -> bytes:
    """Rows from below as runs and pieces of single pixels."""
    made = b""
    for row in rows.tolist():
        at = 0
        while at < len(row):
            count = min(len(row) - at, 5)
            if count >= 3 and at % 2:
                if bits == 8:
                    stored = bytes(row[at : at + count])
                else:
                    pairs = row[at : at + count] + [0] * (count % 2)
                    stored = bytes(high << 4 | low for high, low in zip(pairs[::2], pairs[1::2], strict=True))
                made += bytes((0, count)) + stored + bytes(len(stored) % 2)
                at += count
            else:
                made += bytes((1, row[at] << 4 if bits == 4 else row[at]))
                at += 1
        made += b"\0\0"
    return made + b"\0\1"


def _pnm(draw: random.Random) -> Made:
    kind = draw.choice((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"P7", b"Pf", b"PF"))
    if kind in (b"Pf", b"PF"):
        values = random_values(draw, 1 if kind == b"Pf" else 3, 10_000) / draw.uniform(1, 99) - 7
        order = draw.choice("<>")
        head = b"%s\n%d %d\n%s\n" % (kind, values.shape[1], len(values), b"-1.0" if order == "<" else b"2.5")
        plain = (values - values.min()) * 255 / np.ptp(values)
        return Made(
            f"PFM {kind.decode()} {order}",
            head + values[::-1].astype(order + "f4").tobytes(),
            three(plain),
            1.0,
            1.0,
        )
    most = (
        1
        if kind in (b"P1", b"P4")
        else draw.choice((1, 7, 100, 254, 255, 255, 256, 1000, 4095, 65534, 65535))
    )
    channels = 3 if kind in (b"P3", b"P6") else draw.randint(1, 4) if kind == b"P7" else 1
    values = random_values(draw, channels, most)
    comment = draw.choice((b"\n", b"\n# a comment 7 7\n", b" #\r\n", b"\t\n\n"))
    head = (
        kind
        + comment
        + b"%d %d" % (values.shape[1], len(values))
        + (b"" if kind in (b"P1", b"P4") else b"\n%d" % most)
    )
    if kind in (b"P1", b"P2", b"P3"):
        gap = draw.choice((b" ", b"\n", b"  \t", b" # c\n"))
        body = gap.join(b"%d" % value for value in values.ravel().tolist())
    elif kind == b"P4":
        body = bit_rows(values[..., 0], 1).tobytes()
    else:
        body = values.astype(">u2" if most > 255 else "u1").tobytes()
    if kind == b"P7":
        head = b"P7\nWIDTH %d\nHEIGHT %d\nDEPTH %d\nMAXVAL %d\nTUPLTYPE X\nENDHDR" % (
            *values.shape[1::-1],
            channels,
            most,
        )
    plain = values * 255 / most
    if kind in (b"P1", b"P4"):
        plain = 255 - plain
    if channels in (2, 4):
        plain = on_white(plain[..., :-1], values[..., -1] / most)
    return Made(
        f"PNM {kind.decode()} of {channels} up to {most}", head + b"\n" + body, three(plain), 1.51, 1.0
    )


def _gif(draw: random.Random) -> Made:
    bits = draw.randint(2, 8)
    values = random_values(draw, 1, (1 << bits) - 1)
    height, width, _ = values.shape
    table = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, (1 << bits, 3))
    local, interlaced = draw.random() < 0.3, draw.random() < 0.3
    clear = draw.randrange(1 << bits) if draw.random() < 0.4 else None
    colours = table.astype(np.uint8).tobytes()
    data = draw.choice((b"GIF87a", b"GIF89a")) + struct.pack(
        "<HHBBB", width, height, 0x70 | (0 if local else 128 | bits - 1), 0, 0
    )
    data += b"" if local else colours
    data += b"!\xfe" + b"\1a" * draw.randint(1, 999) + b"\0" + b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0"
    data += b"" if clear is None else b"!\xf9\4\1\0\0" + bytes((clear,)) + b"\0"
    data += b"," + struct.pack(
        "<HHHHB", 0, 0, width, height, 64 * interlaced | (128 | bits - 1 if local else 0)
    )
    data += colours if local else b""
    rows = values[..., 0]
    if interlaced:
        rows = np.concatenate([rows[0::8], rows[4::8], rows[2::4], rows[1::2]])
    stream = _lzw(rows.ravel().tolist(), bits)
    data += bytes((bits,)) + b"".join(
        bytes((len(stream[at : at + 200]),)) + stream[at : at + 200] for at in range(0, len(stream), 200)
    )
    data += b"\0" + draw.choice((b";", b"", b"," + bytes(9)))
    plain = table[values[..., 0]].astype(float)
    if clear is not None:
        plain[values[..., 0] == clear] = 255
    return Made(
        f"GIF {bits} bits {'local ' if local else ''}{'interlaced ' if interlaced else ''}clear {clear}",
        data,
        plain,
        0.5,
        0.5,
    )


def _lzw(values: list[int], bits: int) -> bytes:
    """LZW that never learns: a clear before the codes would grow."""
    number = at = 0
    codes: list[int] = []
    for index, value in enumerate(values):
        codes += [1 << bits] if index % ((1 << bits) - 2) == 0 else []
        codes.append(value)
    for code in [*codes, (1 << bits) + 1]:
        number |= code << at
        at += bits + 1
    return number.to_bytes((at + 7) // 8, "little")


def _lossy(draw: random.Random) -> Made:
    """A smooth picture, which the formats that lose something keep nearly; only their containers are made by hand."""
    y, x = np.mgrid[0 : draw.randint(16, 60), 0 : draw.randint(16, 60)]
    pixels = np.stack([2 * x + 40, 2 * y + 60, x + y + 50], -1).astype(np.uint8)
    image, file = Image.fromarray(pixels), io.BytesIO()
    kind = draw.choice(("JPEG", "JPEG", "JPEG", "WEBP", "WEBP", "AVIF"))
    orientation = draw.choice((1, 1, 3, 6, 8)) if kind != "AVIF" else 1
    plain = pixels.astype(float)
    exif = exif_of(draw, orientation)
    if kind == "JPEG":
        mode = draw.choice(("RGB", "RGB", "L", "CMYK"))
        if mode == "L":
            plain = plain[..., :1].repeat(3, -1)
        stored = (
            image.convert(mode)
            if mode == "CMYK"
            else Image.fromarray(pixels[..., 0])
            if mode == "L"
            else image
        )
        progressive = draw.random() < 0.4
        stored.save(file, "JPEG", quality=95, progressive=progressive, subsampling=draw.choice((0, 1, 2)),
                    restart_marker_blocks=draw.choice((0, 0, 3)))  # fmt: skip
        data = file.getvalue()
        segments = (
            b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif if orientation > 1 else b""
        )
        segments += draw.choice(
            (b"", b"\xff\xe2\0\x12ICC_PROFILE\0\1\2ab", b"\xff\xed\xff\xff" + bytes(65533), b"\xff\xfe\0\3!")
        )
        data = data[:2] + segments + data[2:]
        ending = draw.choice(("whole", "whole", "no end mark", "zeros", "garbage"))
        data = {
            "whole": data,
            "no end mark": data[:-2],
            "zeros": data[:-2] + bytes(77),
            "garbage": data + b"\xff\xd8?" * 9,
        }[ending]
        name = f"JPEG {mode} {'progressive ' if progressive else ''}{ending}"
    elif kind == "WEBP":
        lossless = draw.random() < 0.5
        image.save(
            file, "WEBP", lossless=lossless, quality=95, exif=b"Exif\0\0" + exif if orientation > 1 else b""
        )
        data = file.getvalue() + draw.choice((b"", b"XMP \xff\xff\xff\x7fxx", b"junk"))
        name = f"WebP {'lossless' if lossless else 'lossy'}"
    else:
        image.save(file, "AVIF", quality=95, subsampling=draw.choice(("4:4:4", "4:2:0")))
        data, name = file.getvalue(), "AVIF"
    return Made(f"{name} turn {orientation}", data, turned(plain, orientation), 16.0, 3.0)
