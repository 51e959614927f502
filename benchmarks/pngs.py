"""PNGs of every kind for pictures.py, written by hand: all colours, depths, filters, passes, and spoiled metadata."""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
from plain import Made, Pixels, bit_rows, exif_of, on_white, random_values, three, turned


def draw_png(draw: random.Random) -> Made:
    colour, depth = draw.choice(
        [(0, d) for d in (1, 2, 4, 8, 16)]
        + [(3, d) for d in (1, 2, 4, 8)]
        + [(c, d) for c in (2, 4, 6) for d in (8, 16)]
    )
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    most = (1 << depth) - 1
    values = random_values(draw, channels, most)
    chunks: list[tuple[bytes, bytes]] = []
    alpha = None
    palette = np.random.default_rng(draw.getrandbits(32)).integers(
        0, 256, (most + 1 if colour == 3 else 1, 3)
    )
    if colour == 3:
        chunks.append((b"PLTE", palette.astype(np.uint8).tobytes()))
        plain = palette[values[..., 0]].astype(float)
    else:
        plain = three(values[..., : channels - (colour >= 4)]) * 255 / most
    if colour >= 4:
        alpha = values[..., -1] / most
    elif draw.random() < 0.4:
        if colour == 3:
            clear = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, draw.randint(1, most + 1))
            chunks.append((b"tRNS", clear.astype(np.uint8).tobytes()))
            alpha = np.concatenate([clear, np.full(most + 1 - len(clear), 255)])[values[..., 0]] / 255
        else:
            key = values[draw.randrange(len(values)), draw.randrange(values.shape[1])]
            chunks.append((b"tRNS", key.astype(">u2").tobytes()))
            alpha = 1.0 - (values == key).all(-1)
    orientation = draw.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8))
    if orientation > 1:
        chunks.append((b"eXIf", exif_of(draw, orientation)))
    spoiled = draw.choice(("", "", "zTXt", "iCCP", "iTXt", "crc", "tEXt"))
    junk = zlib.compress(bytes(1_100_000))
    chunks += {
        "": [], "zTXt": [(b"zTXt", b"Comment\0\0" + junk)], "iCCP": [(b"iCCP", b"icc\0\0" + junk)],
        "iTXt": [(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + junk)], "crc": [(b"iCCP", b"crc")],
        "tEXt": [(b"tEXt", b"\xff" * 99), (b"gAMA", b""), (b"pHYs", b"x"), (b"sRGB", b""), (b"tIME", b"\xff" * 7)],
    }[spoiled]  # fmt: skip
    interlaced = draw.random() < 0.3
    body = b"".join(_png_rows(draw, part, depth) for part in _passes(values, interlaced))
    header = struct.pack(">IIBBBBB", values.shape[1], len(values), depth, colour, 0, 0, int(interlaced))
    packed = zlib.compress(body)
    cut = draw.randint(0, len(packed))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", packed[:cut]), (b"IDAT", packed[cut:]), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body))
        + kind
        + body
        + (b"crc!" if body == b"crc" else struct.pack(">I", zlib.crc32(kind + body)))
        for kind, body in parts
    )
    plain = plain if alpha is None else on_white(plain, alpha)
    name = (
        f"PNG colour {colour} depth {depth} {'interlaced ' if interlaced else ''}turn {orientation} {spoiled}"
    )
    name += "" if alpha is None else " with alpha"
    return Made(
        name, data, turned(plain, orientation), 2.2 if depth == 16 and alpha is not None else 1.51, 1.0
    )


def _passes(values: Pixels, interlaced: bool) -> list[Pixels]:
    if not interlaced:
        return [values]
    steps = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    parts = [values[top::down, left::across] for top, left, down, across in steps]
    return [part for part in parts if part.size]


def _png_rows(draw: random.Random, values: Pixels, depth: int) -> bytes:
    rows = bit_rows(values.reshape(len(values), -1), depth)
    behind = max(1, values.shape[2] * depth // 8)
    made, above = b"", np.zeros_like(rows[0])
    for row in rows:
        kind = draw.randrange(5)
        left, corner = (
            np.concatenate([np.zeros(behind, np.uint8), each[:-behind]])[: len(row)] for each in (row, above)
        )
        guess = left.astype(int) + above - corner
        far = np.abs(np.stack([guess - left, guess - above, guess - corner]))
        paeth = np.where(
            (far[0] <= far[1]) & (far[0] <= far[2]), left, np.where(far[1] <= far[2], above, corner)
        )
        base = (np.zeros_like(row), left, above, ((left.astype(int) + above) // 2).astype(np.uint8), paeth)[
            kind
        ]
        made += bytes((kind,)) + (row - base.astype(np.uint8)).astype(np.uint8).tobytes()
        above = row
    return made
