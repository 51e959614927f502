"""TIFFs of every kind for benchmarks/decoding.py, written by hand; what is in them is told by tifffile, which shares no
code with Pillow."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9, 10, 12, 14, 16, 16, 16, 24, 31, 32, 64)
COLOURS = {
    "min-is-white": 0,
    "grey": 1,
    "rgb": 2,
    "palette": 3,
    "cmyk": 5,
    "ycbcr": 6,
    "lab": 8,
    "icc-lab": 9,
}
CHANNELS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3, 9: 3}


class Tiff(NamedTuple):
    """A file, what it is in words, its pixels [H,W,3] as they are to be seen, and how far off they may be."""

    name: str
    data: bytes
    plain: NDArray[np.float64]
    tolerance: float


def draw_tiff(draw: random.Random, turned: Callable[[Samples, int], Samples]) -> Tiff:
    """A TIFF with a random combination of all that its tags can say; some make no sense and are to be refused."""
    colours = draw.choice(list(COLOURS))
    photometric = COLOURS[colours]
    form = draw.choices((1, 2, 3, 6), (12, 2, 3, 0.3))[0]
    bits = draw.choice(DEPTHS) if form == 1 else draw.choice((8, 16, 32, 64) if form == 2 else (16, 32, 64))
    bits = 64 if form == 6 else bits
    if photometric in (5, 6, 8, 9) and draw.random() < 0.9:
        form, bits = 1, draw.choice((8, 8, 16))
    if photometric == 3 and draw.random() < 0.9:
        form, bits = 1, draw.choice((1, 2, 4, 8, 8))
    extra = draw.choices(((), (0,), (1,), (2,), (0, 0), (2, 0)), (12, 1, 2, 3, 1, 1))[0]
    width, height = draw.randint(8, 70), draw.randint(8, 70)
    channels = CHANNELS[photometric] + len(extra)
    rng = np.random.default_rng(draw.getrandbits(32))
    values = _values(rng, (height, width, channels), bits, form, draw.random() < 0.5)
    if photometric in (8, 9) and bits in (8, 16) and form == 1:
        values[..., :3] = _mild_lab(values[..., :3], bits, photometric == 9)
    if 1 in extra:  # premultiplied: no colour is above its alpha
        place = CHANNELS[photometric] + extra.index(1)
        values[..., : CHANNELS[photometric]] = np.minimum(
            values[..., : CHANNELS[photometric]], values[..., place, None]
        )
    order = draw.choice("<>")
    planar = 2 if channels > 1 and draw.random() < 0.4 else 1
    tile = (16 * draw.randint(1, 3), 16 * draw.randint(1, 3)) if draw.random() < 0.35 else None
    whole = bits in (8, 16, 32, 64)
    squeezed = draw.choice(("none", "none", "deflate", "lzw", "packbits", "zstd"))
    predictor = 1
    if squeezed in ("deflate", "lzw", "zstd") and whole and form != 6 and draw.random() < 0.5:
        predictor = 3 if form == 3 else 2
    orientation = draw.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8))
    palette = rng.integers(0, 65536, (3, 1 << min(bits, 16))).astype(np.uint16)
    big, reversed_bits = draw.random() < 0.2, bits < 8 and squeezed == "none" and draw.random() < 0.2
    rows = draw.choice((1, 5, 16, height))
    data = write_tiff(
        values, bits, form, photometric, extra, order=order, planar=planar, tile=tile, rows=rows, big=big,
        squeezed=squeezed, predictor=predictor, palette=palette if photometric == 3 else None,
        orientation=orientation, reversed_bits=reversed_bits,
    )  # fmt: skip
    name = f"{bits} bits form {form} {colours} extra {extra} planar {planar} {tile or rows} "
    name += f"{squeezed} predictor {predictor} order {order} {'big ' if big else ''}turn {orientation}"
    name += " reversed" if reversed_bits else ""
    seen = _read_back(data, values)
    plain = plain_of(seen, bits, form, photometric, extra, palette)
    # Of 16 bits beside alpha or in four inks Pillow, and so this program, keeps the high byte: two of them add up.
    two = 2.2 if {1, 2} & set(extra) or photometric == 5 else 1.51
    tolerance = 3.0 if 1 in extra else 5.5 if photometric in (8, 9) else two
    return Tiff(name, data, turned(plain, orientation), tolerance)


def _values(
    rng: np.random.Generator, shape: tuple[int, int, int], bits: int, form: int, smooth: bool
) -> Samples:
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]]
    share = np.stack([(x * (3 + c) + y * (2 + c)) % 97 / 96 for c in range(shape[2])], -1)
    share = share if smooth else rng.random(shape)
    if form == 3:
        return (share * rng.uniform(1, 300) - rng.uniform(0, 100)).astype(f"f{bits // 8}")
    if form == 6:
        return share.astype(np.complex64)
    if form == 2:
        return np.rint((share * 2 - 1) * ((1 << min(bits, 18) - 1) - 1)).astype(f"i{bits // 8}")
    kind = "u1" if bits <= 8 else "u2" if bits <= 16 else "u4" if bits <= 32 else "u8"
    most = (1 << bits) - 1 if bits < 53 else (1 << 53) - 1
    return np.rint(share * most).astype(kind)


def plain_of(
    values: Samples, bits: int, form: int, photometric: int, extra: tuple[int, ...], palette: Samples
) -> NDArray[np.float64]:
    """[H,W,3] in 0..255: what the samples [H,W,C] mean, by the words of the standard and of docs/run-folder.md."""
    colours = CHANNELS[photometric]
    alpha = None
    for place, meaning in enumerate(extra):
        if meaning in (1, 2) and alpha is None:
            alpha = values[..., colours + place].real.astype(float) / ((1 << bits) - 1)
    inks = values[..., :colours]
    if photometric == 3:
        shown = palette.T[inks[..., 0].astype(int) % palette.shape[1]] / 65535 * 255
    else:
        shown = _scaled(inks, bits, form)
    if photometric == 0:
        shown = 255 - shown
    if photometric == 5:
        shown = (255 - shown[..., :3]) * (255 - shown[..., 3:]) / 255
    if photometric == 6:
        y, cb, cr = shown[..., 0], shown[..., 1] - 128, shown[..., 2] - 128
        shown = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], -1).clip(0, 255)
    if photometric in (8, 9):
        shown = _from_lab(inks, bits, photometric == 9)
    if shown.shape[-1] == 1:
        shown = shown.repeat(3, -1)
    if alpha is not None:
        over = shown if 1 in extra else shown * alpha[..., None]
        shown = over + 255 * (1 - alpha[..., None])
    return shown


def _scaled(values: Samples, bits: int, form: int) -> NDArray[np.float64]:
    wide = values.real.astype(np.float64)
    if form == 1 and bits not in (32, 64):
        return wide * 255 / ((1 << bits) - 1)
    if form in (1, 2) and (bits == 16 or ((wide >= 0) & (wide <= 65535)).mean() >= 0.25):
        return wide.clip(0, 65535) * 255 / 65535
    return (wide - wide.min()) * 255 / max(np.ptp(wide), 1e-300)


def _from_lab(values: Samples, bits: int, offset: bool) -> NDArray[np.float64]:
    """CIE Lab of D50 as sRGB, from the definition; the D50 matrix is ICC's."""
    wide = values.real.astype(np.float64) / (1 if bits == 8 else 256)
    light = wide[..., 0] / 255 * 100
    signed = wide[..., 1:] - 128 if offset else (wide[..., 1:] + 128) % 256 - 128
    fy = (light + 16) / 116
    f = np.stack([fy + signed[..., 0] / 500, fy, fy - signed[..., 1] / 200], -1)
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * [0.9642, 1.0, 0.8249]
    matrix = np.array(
        [
            [3.1338561, -1.6168667, -0.4906146],
            [-0.9787684, 1.9161415, 0.0334540],
            [0.0719453, -0.2289914, 1.4052427],
        ]
    )
    linear = (xyz @ matrix.T).clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055) * 255


def _mild_lab(values: Samples, bits: int, offset: bool) -> Samples:
    """Lab of colours that sRGB has: what lies outside is cut differently by everybody."""
    share = values / ((1 << bits) - 1)
    light, signed = 40 + 20 * share[..., :1], 24 * share[..., 1:] - 12
    step = 1 if bits == 8 else 256
    signed = np.rint(signed * step) + (128 * step if offset else 0)
    return np.concatenate([np.rint(light * 2.55 * step), signed % (256 * step)], -1).astype(values.dtype)


def _read_back(data: bytes, values: Samples) -> Samples:
    """The samples [H,W,C] that tifffile finds."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages.first
        found = page.asarray(squeeze=False)
    # tifffile: [separate planes, depth, height, width, contiguous samples]
    found = found.reshape(found.shape[0], *found.shape[-3:])
    found = found[0] if found.shape[0] == 1 else found[..., 0].transpose(1, 2, 0)
    assert found.shape == values.shape, (found.shape, values.shape)
    return found


def write_tiff(
    values: Samples, bits: int, form: int, photometric: int, extra: tuple[int, ...] = (), *, order: str = "<",
    planar: int = 1, tile: tuple[int, int] | None = None, rows: int = 8, big: bool = False, squeezed: str = "none",
    predictor: int = 1, palette: Samples | None = None, orientation: int = 1, reversed_bits: bool = False,
    more: tuple[tuple[int, int, bytes], ...] = (),
) -> bytes:  # fmt: skip
    """Samples [H,W,C] as a file. ``more``: further tags (number, type, bytes)."""
    height, width, channels = values.shape
    planes = [values[..., c : c + 1] for c in range(channels)] if planar == 2 else [values]
    chunks: list[bytes] = []
    for plane in planes:
        for top, left, tall, wide in _places(height, width, tile, rows):
            part = plane[top : top + tall, left : left + wide]
            if tile:
                part = np.pad(part, ((0, tall - part.shape[0]), (0, wide - part.shape[1]), (0, 0)), "edge")
            chunks.append(_packed(_bytes(part, bits, order, predictor), squeezed, reversed_bits))
    number = {"none": 1, "deflate": 8, "lzw": 5, "packbits": 32773, "zstd": 50000}[squeezed]
    head = 16 if big else 8
    offsets = [head + sum(map(len, chunks[:index])) for index in range(len(chunks))]
    place = 16 if big else 4
    tags: list[tuple[int, int, bytes]] = [
        _tag(order, 256, 3, [width]), _tag(order, 257, 4, [height]), _tag(order, 258, 3, [bits] * channels),
        _tag(order, 259, 3, [number]), _tag(order, 262, 3, [photometric]), _tag(order, 274, 3, [orientation]),
        _tag(order, 277, 3, [channels]), _tag(order, 284, 3, [planar]), _tag(order, 339, 3, [form] * channels),
        _tag(order, 324 if tile else 273, place, offsets),
        _tag(order, 325 if tile else 279, place, list(map(len, chunks))),
    ]  # fmt: skip
    tags += (
        [_tag(order, 322, 3, [tile[0]]), _tag(order, 323, 3, [tile[1]])]
        if tile
        else [_tag(order, 278, 4, [rows])]
    )
    tags += [_tag(order, 338, 3, list(extra))] if extra else []
    tags += [_tag(order, 317, 3, [predictor])] if predictor > 1 else []
    tags += [_tag(order, 266, 3, [2])] if reversed_bits else []
    tags += [_tag(order, 320, 3, palette.ravel().tolist())] if palette is not None else []
    tags += (
        [_tag(order, 530, 3, [1, 1])] if photometric == 6 and not any(each[0] == 530 for each in more) else []
    )
    return _assembled(b"".join(chunks), sorted([*tags, *more]), order, big)


def _tag(order: str, number: int, kind: int, values: list[int]) -> tuple[int, int, bytes]:
    return number, kind, struct.pack(order + str(len(values)) + {3: "H", 4: "I", 16: "Q"}[kind], *values)


def _assembled(pixels: bytes, tags: list[tuple[int, int, bytes]], order: str, big: bool) -> bytes:
    word, inline, entry = ("Q", 8, 20) if big else ("I", 4, 12)
    sizes = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1, 11: 4, 12: 8, 16: 8}
    start = (16 if big else 8) + len(pixels) + len(pixels) % 2
    room = start + (8 if big else 2) + entry * len(tags) + inline
    directory, behind = b"", b""
    for number, kind, body in tags:
        directory += struct.pack(order + "HH" + word, number, kind, len(body) // sizes[kind])
        if len(body) > inline:
            directory += struct.pack(order + word, room + len(behind))
            behind += body + bytes(len(body) % 2)
        else:
            directory += body.ljust(inline, b"\0")
    mark = b"II" if order == "<" else b"MM"
    head = mark + (
        struct.pack(order + "HHHQ", 43, 8, 0, start) if big else struct.pack(order + "HI", 42, start)
    )
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return head + pixels + bytes(len(pixels) % 2) + count + directory + bytes(inline) + behind


def _places(
    height: int, width: int, tile: tuple[int, int] | None, rows: int
) -> list[tuple[int, int, int, int]]:
    if tile is None:
        return [(top, 0, min(rows, height - top), width) for top in range(0, height, rows)]
    return [
        (top, left, tile[1], tile[0])
        for top in range(0, height, tile[1])
        for left in range(0, width, tile[0])
    ]


def _bytes(part: Samples, bits: int, order: str, predictor: int) -> bytes:
    """[h,w,c] samples as the bytes of a chunk."""
    if bits in (8, 16, 32, 64):
        if predictor == 2:
            whole = part.view(f"u{bits // 8}")
            steps = np.diff(whole, axis=1, prepend=np.zeros_like(whole[:, :1]))
            return steps.astype(whole.dtype.newbyteorder(order)).tobytes()
        if predictor == 3:
            size = bits // 8
            planes = (
                np.ascontiguousarray(part.astype(f">f{size}")).view(np.uint8).reshape(len(part), -1, size)
            )
            mixed = planes.transpose(0, 2, 1).reshape(len(part), -1, part.shape[2])
            return np.diff(mixed, axis=1, prepend=np.zeros_like(mixed[:, :1])).astype(np.uint8).tobytes()
        return part.astype(part.dtype.newbyteorder(order)).tobytes()
    made = b""
    for row in part.reshape(len(part), -1).tolist():
        text = "".join(format(value, f"0{bits}b") for value in row)
        text += "0" * (-len(text) % 8)
        made += int(text, 2).to_bytes(len(text) // 8, "big")
    return made


def _packed(data: bytes, squeezed: str, reversed_bits: bool) -> bytes:
    if reversed_bits:
        return bytes(int(format(byte, "08b")[::-1], 2) for byte in data)
    if squeezed == "deflate":
        return zlib.compress(data)
    if squeezed == "packbits":
        return b"".join(
            bytes((len(data[at : at + 128]) - 1,)) + data[at : at + 128] for at in range(0, len(data), 128)
        )
    if squeezed == "none":
        return data
    import imagecodecs

    return bytes(imagecodecs.lzw_encode(data) if squeezed == "lzw" else imagecodecs.zstd_encode(data))
