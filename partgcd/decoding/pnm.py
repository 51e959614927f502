"""Reads PBM, PGM, PPM, PAM and PFM with arrays, in time that grows only with the file."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.decoding.begun import Begun, BrokenImage, check_size
from partgcd.decoding.bits import unpacked
from partgcd.decoding.stretch import stretched
from partgcd.decoding.upright import memory, on_white

_COMMENTS = 100_000
_TOKEN = re.compile(rb"[^\s#]{1,20}")
_LINE_END = re.compile(rb"[\r\n]")
_BLANK = re.compile(rb"\s*")
_TEXT = 1 << 20
"""Bytes of a plain file's numbers that are read at a time."""

_BAND = 1 << 20
"""Pixels that are converted at a time."""

_WHITE = b" \t\n\v\f\r"


def is_pnm(data: bytes) -> bool:
    """Whether a file says that it is one of the family."""
    return data[:1] == b"P" and data[1:2] in b"1234567fF" and len(data) > 2 and data[2:3] in _WHITE + b"#"


def begin_pnm(data: bytes, max_megapixels: float) -> Begun:
    """Begin a PBM, PGM, PPM (P1..P6), PAM (P7) or PFM. Raises BrokenImage."""
    kind = data[1:2]
    depth, mark = {b"1": 1, b"4": 1, b"2": 1, b"5": 1, b"f": 1}.get(kind, 3), "1"
    if kind == b"7":
        width, height, depth, most, at = _pam_header(data)
    else:
        tokens, at = _header(data, 2 if kind in b"14" else 3)
        width, height = _whole(tokens[0]), _whole(tokens[1])
        mark = tokens[2].decode("ascii", "replace") if len(tokens) > 2 else "1"
        most = 1 if kind in b"fF" else _whole(mark.encode())
    size = (width, height)
    check_size(size, max_megapixels)
    if not 0 < most < 65536:
        raise BrokenImage(f"damaged: a PNM with a largest value of {most}")
    pixels = width * height
    peak = memory("RGB", size) + 16 * depth * _BAND
    if kind in b"123":
        peak += pixels * depth * (2 if most > 255 else 1) + len(data) + 40 * _TEXT
    if kind in b"fF":
        peak += 2 * pixels * depth

    def finish() -> Image.Image:
        if kind in b"fF":
            return _floats(data, at, size, depth, mark)
        if kind in b"123":
            values = _plain(data, at, pixels * depth, most, kind == b"1").reshape(height, width * depth)
        elif kind == b"4":
            values = _stored(data, at, np.uint8, height, (width + 7) // 8)
        else:
            values = _stored(data, at, np.dtype(">u2" if most > 255 else "u1"), height, width * depth)
        return _picture(values, size, depth, most, kind)

    return Begun(size, peak, finish)


def _header(data: bytes, count: int) -> tuple[list[bytes], int]:
    """``count`` words after the magic number, and where the pixels begin: one white space after the last."""
    tokens: list[bytes] = []
    at = 2
    for _ in range(_COMMENTS):
        if len(tokens) == count:
            return tokens, at + 1
        blank = _BLANK.match(data, at)
        at = blank.end() if blank else at
        if data[at : at + 1] == b"#":
            end = _LINE_END.search(data, at)
            at = end.start() if end else len(data)
            continue
        token = _TOKEN.match(data, at)
        if token is None:
            raise BrokenImage("truncated" if at >= len(data) else "damaged: no PNM header")
        tokens.append(token[0])
        at = token.end()
    raise BrokenImage(f"a PNM of more than {_COMMENTS:,} comments: save it anew")


def _pam_header(data: bytes) -> tuple[int, int, int, int, int]:
    """(width, height, depth, largest value, where the pixels begin)."""
    end = data.find(b"ENDHDR\n", 0, 10_000)
    lines = data[2:end].decode("ascii", "replace").splitlines()
    words = dict(line.split(None, 1) for line in lines if len(line.split(None, 1)) == 2 and line[0] != "#")
    try:
        width, height, depth, most = (int(words[key]) for key in ("WIDTH", "HEIGHT", "DEPTH", "MAXVAL"))
    except (KeyError, ValueError):
        raise BrokenImage("damaged: no PAM header") from None
    if end < 0 or min(width, height) < 1 or not 1 <= depth <= 4:
        raise BrokenImage("damaged: no PAM header" if end < 0 else f"a PAM of {depth} channels is not read")
    return width, height, depth, most, end + 7


def _whole(token: bytes) -> int:
    if not token.isdigit() or len(token) > 10:
        raise BrokenImage("damaged: no PNM header")
    return int(token)


def _stored(data: bytes, at: int, kind: Any, rows: int, row: int) -> NDArray[Any]:
    if (len(data) - at) < rows * row * np.dtype(kind).itemsize:
        raise BrokenImage("truncated")
    return np.frombuffer(data, kind, rows * row, at).reshape(rows, row)


def _plain(data: bytes, at: int, count: int, most: int, bits: bool) -> NDArray[Any]:
    """``count`` numbers written as text; single digits of 0 and 1 need no space between."""
    if data.count(b"#", at) > _COMMENTS:
        raise BrokenImage(f"a PNM of more than {_COMMENTS:,} comments: save it anew")
    text = re.sub(rb"#[^\r\n]*", b" ", data[at:])
    values = np.empty(count, np.uint16 if most > 255 else np.uint8)
    done = start = 0
    while start < len(text) and done < count:
        stop = min(start + _TEXT, len(text))
        while stop < len(text) and stop - start < 2 * _TEXT and not text[stop - 1 : stop].isspace():
            stop += 1
        block = text[start:stop]
        if not bits and stop < len(text) and not text[stop - 1 : stop].isspace():
            raise BrokenImage("damaged: a PNM with a number without end")
        if block.translate(None, b"0123456789" + _WHITE):
            raise BrokenImage("damaged: a PNM with something else than numbers")
        if bits:
            found = np.frombuffer(block.translate(None, _WHITE), np.uint8).astype(np.int64) - 48
        else:
            found = np.fromstring(block, np.int64, sep=" ") if block.strip() else np.empty(0, np.int64)
        found = found[: count - done]
        if len(found) and int(found.max()) > most:
            raise BrokenImage("damaged: a PNM with a value above its largest")
        values[done : done + len(found)] = found
        done, start = done + len(found), stop
    if done < count:
        raise BrokenImage("truncated")
    return values


def _picture(values: NDArray[Any], size: tuple[int, int], depth: int, most: int, kind: bytes) -> Image.Image:
    """Rows of samples [H,W*depth] (of a P4: packed) as a picture, each as its share of the largest value."""
    width, height = size
    shares = np.arange(65536 if most > 255 else 256) / most
    # Grey of more than 8 bits goes by way of 16.
    fine = np.rint(shares * 65535).clip(0, 65535).astype(np.uint32)
    table = ((fine + 128) // 257 if depth < 3 and most > 255 else np.rint(shares * 255).clip(0, 255)).astype(
        np.uint8
    )
    if kind in b"14":
        table = np.array([255, 0], np.uint8)
    flat = Image.new("RGB", size)
    step = max(1, _BAND // width)
    for top in range(0, height, step):
        band = values[top : top + step]
        samples = table[unpacked(band, 1, width) if kind == b"4" else band]
        if depth == 1:
            image = Image.fromarray(samples).convert("RGB")
        elif depth == 3:
            image = Image.fromarray(samples.reshape(-1, width, 3))
        else:
            pixels = samples.reshape(-1, width, depth)
            colour = pixels[:, :, : depth - 1] if depth == 4 else np.repeat(pixels[:, :, :1], 3, -1)
            image = on_white(Image.fromarray(np.dstack([colour, pixels[:, :, -1:]])))
        flat.paste(image, (0, top))
    return flat


def _floats(data: bytes, at: int, size: tuple[int, int], depth: int, mark: str) -> Image.Image:
    """PFM: the sign of its scale tells the byte order, and its first row is the lowest."""
    try:
        scale = float(mark)
    except ValueError:
        scale = 0.0
    if scale == 0 or not np.isfinite(scale):
        raise BrokenImage("damaged: a PFM without a scale")
    kind = np.dtype("<f4" if scale < 0 else ">f4")
    values = stretched(_stored(data, at, kind, size[1], size[0] * depth))[::-1]
    pixels = values if depth == 1 else values.reshape(size[1], size[0], 3)
    return Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
