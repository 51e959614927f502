"""Reads TIFF: what its tags say of samples is done with arrays or refused by name, never guessed.

Pillow's libtiff only undoes compressions; which bytes are which sample, and what a sample means, is settled here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.decoding import tiff_tags as tag
from partgcd.decoding.begun import Begun, BrokenImage, check_pixels, check_size
from partgcd.decoding.bits import as_bytes, unpacked
from partgcd.decoding.stretch import stretched
from partgcd.decoding.tiff_chunks import BY_LIBTIFF, DEFLATE, JPEG, NONE, Layout, layout_of, opened, rows_of
from partgcd.decoding.tiff_colours import Colours, coloured, colours_of
from partgcd.decoding.tiff_tags import Tags, read_tags, with_tags
from partgcd.decoding.upright import memory, orientation_of, rgb, turned

MAGIC = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0", b"MM\0+")

_FAX, _WEBP, _OLD_JPEG = (2, 3, 4), 50001, 6
"""Compressions of pictures rather than bytes, which libtiff undoes as pictures."""

_OTHERS = {
    32809: "ThunderScan", 32766: "NeXT", 34676: "SGI LogL", 34677: "SGI LogLuv", 33003: "JPEG 2000", 33005: "JPEG 2000",
    34712: "JPEG 2000", 34887: "LERC", 34892: "lossy DNG", 50002: "JPEG XL", 52546: "JPEG XL", 34933: "PNG",
    34934: "JPEG XR", 22610: "JPEG XR", 9: "JBIG", 10: "JBIG", 34661: "JBIG",
}  # fmt: skip

_BAND = 1 << 20
"""Samples that are converted at a time."""

_MOST_SAMPLES = 16


@dataclass(frozen=True)
class _Plan:
    size: tuple[int, int]
    layout: Layout
    colours: Colours
    predictor: int
    kind: np.dtype[Any] | None
    no_data: float | None


def begin_tiff(data: bytes, max_megapixels: float) -> Begun:
    """Begin a TIFF or BigTIFF; of several pages the first is read. Raises BrokenImage."""
    tags = read_tags(data)
    if tag.DNG in tags.values or data[8:10] == b"CR":
        raise BrokenImage("not an image that is read but a RAW photo: develop it to JPEG")
    if tags.one(tag.SUBFILE, 0) & 1 and tag.SUB_DIRECTORIES in tags.values:
        raise BrokenImage(
            "not an image that is read but a RAW photo, or a preview of one: develop it to JPEG"
        )
    size = (tags.one(tag.WIDTH, 0), tags.one(tag.HEIGHT, 0))
    check_size(size, max_megapixels)
    # A tile may be declared far larger than the image it is cut from, and is decoded whole.
    tile = (max(1, tags.one(tag.TILE_WIDTH, 1)), max(1, tags.one(tag.TILE_HEIGHT, 1)))
    check_pixels(tile, max_megapixels)
    across, down = -(-size[0] // tile[0]) * tile[0], -(-size[1] // tile[1]) * tile[1]
    check_pixels((across, down), max(4 * max_megapixels, 4.0))
    compression = tags.one(tag.COMPRESSION, 1)
    orientation = (
        orientation_of(None, tags.blob(tag.XMP)) if tag.ORIENTATION not in tags.values else _turn(tags)
    )
    if compression in (*_FAX, _WEBP, _OLD_JPEG):
        fax, pixels = compression in _FAX, size[0] * size[1]
        needed = (
            memory("1" if fax else "RGBA", size, orientation, not fax)
            + pixels // (8 if fax else 1)
            + 3 * len(data)
        )
        made = _whole_tags(tags)
        return Begun(size, needed, lambda: turned(rgb(opened(with_tags(data, made))), orientation))
    if compression not in (NONE, *DEFLATE, JPEG, *BY_LIBTIFF):
        name = _OTHERS.get(compression, f"number {compression}")
        raise BrokenImage(f"a TIFF compressed with {name} is not read: save it uncompressed or with LZW")
    plan = _planned(tags, data, size)
    return Begun(
        size, _needed(plan, len(data), orientation), lambda: turned(_decoded(data, tags, plan), orientation)
    )


def _turn(tags: Tags) -> int:
    found = tags.one(tag.ORIENTATION, 1)
    return found if 1 <= found <= 8 else 1


def _planned(tags: Tags, data: bytes, size: tuple[int, int]) -> _Plan:
    """What has to be done, or a BrokenImage that says what is not read."""
    photometric, compression = tags.one(tag.PHOTOMETRIC, 0), tags.one(tag.COMPRESSION, 1)
    bits_of = tags.all(tag.BITS) or (1,)
    samples = tags.one(tag.SAMPLES, 3 if compression == JPEG and photometric in (2, 6) else 1)
    if not 1 <= samples <= _MOST_SAMPLES:
        raise BrokenImage(f"a TIFF of {samples:,} channels is not read: save the three to be seen as RGB")
    if len(set(bits_of[:samples])) > 1:
        raise BrokenImage("a TIFF whose channels have different depths is not read: save it with 8 bits each")
    bits = bits_of[0]
    formats = set(tags.all(tag.FORMAT)[:samples]) or {1}
    if len(formats) > 1:
        raise BrokenImage(
            "a TIFF whose channels are numbers of different kinds is not read: save it with 8 bits"
        )
    form = {4: 1}.get(next(iter(formats)), next(iter(formats)))
    if form in (5, 6):
        raise BrokenImage("a TIFF of complex numbers is not read: save its magnitude")
    colours = colours_of(tags, samples, bits, form)
    kind = _kind_of(tags.order, bits, form)
    predictor = (
        tags.one(tag.PREDICTOR, 1) if compression in (*DEFLATE, *BY_LIBTIFF) and compression != 32773 else 1
    )
    if predictor not in (1, 2, 3) or (predictor == 2 and kind is None) or (predictor == 3 and form != 3):
        raise BrokenImage(f"a TIFF with predictor {predictor} at {bits} bits is not read: save it without")
    if colours.sampling != (1, 1) and predictor != 1:
        raise BrokenImage("a TIFF of coarse YCbCr with a predictor is not read: save it as RGB")
    layout = layout_of(tags, data, size, bits, samples)
    if colours.sampling != (1, 1):
        layout = colours.unsampled(layout)
    if layout.tiled and layout.columns * layout.samples * bits % 8:
        raise BrokenImage("damaged: a TIFF whose tiles end within a byte")
    return _Plan(size, layout, colours, predictor, kind, _no_data(tags))


def _kind_of(order: str, bits: int, form: int) -> np.dtype[Any] | None:
    """The samples' type, None for those of bits that make no whole type. Raises BrokenImage for no type at all."""
    if form == 3:
        if bits not in (16, 32, 64):
            raise BrokenImage(f"a TIFF of {bits}-bit floating point is not read: save it with 32 bits")
        return np.dtype(f"{order}f{bits // 8}")
    if bits in (8, 16, 32, 64):
        return np.dtype(f"{order}{'i' if form == 2 else 'u'}{bits // 8}")
    # Of 24 bits nobody agrees which byte comes first.
    if not 1 <= bits <= 31 or bits == 24 or form == 2:
        raise BrokenImage(
            f"a TIFF of {bits}-bit {'signed ' if form == 2 else ''}samples is not read: save it with 8 bits"
        )
    return None


def _no_data(tags: Tags) -> float | None:
    """GDAL's mark of pixels without a value."""
    text = tags.blob(tag.NO_DATA)
    try:
        return None if text is None else float(text[:100].split(b"\0")[0])
    except ValueError:
        return None


def _needed(plan: _Plan, file_bytes: int, orientation: int) -> int:
    layout, pixels = plan.layout, plan.size[0] * plan.size[1]
    plane = layout.across * layout.row_bytes * layout.down * layout.rows
    work = 40 * _BAND
    if layout.compression in BY_LIBTIFF:
        work += 3 * plane * min(layout.planes, plan.colours.wanted) + 3 * file_bytes
    chunk = layout.row_bytes * layout.rows
    if layout.tiled or layout.compression == JPEG:
        work += 8 * chunk + 16 * layout.across * chunk
    if plan.colours.wide:
        work += pixels * plan.colours.wanted * (1 + (plan.kind.itemsize if plan.kind is not None else 4))
    return memory("RGB", plan.size, orientation) + work


def _decoded(data: bytes, tags: Tags, plan: _Plan) -> Image.Image:
    layout, colours = plan.layout, plan.colours
    planes = (
        [place for place in range(layout.planes) if place in colours.places] if layout.planes > 1 else [0]
    )
    at_once = max(1, _BAND // max(1, layout.width * (layout.samples if layout.planes == 1 else len(planes))))
    at_once = max(colours.sampling[1], at_once // colours.sampling[1] * colours.sampling[1])
    bands = zip(*(rows_of(data, tags, layout, plane, at_once) for plane in planes), strict=True)
    flat: Image.Image | None = None
    values: NDArray[Any] | None = None
    top = 0
    for band in bands:
        samples = [_samples(rows, plan) for rows in band]
        if layout.planes > 1:
            pixels = np.concatenate(samples, -1)
        else:
            pixels = samples[0]
            if colours.sampling == (1, 1) and colours.wanted < layout.samples:
                pixels = pixels[:, :, list(colours.places)]
        pixels = pixels[: plan.size[1] - top, : plan.size[0]]
        if colours.wide:
            # Its range is known only once all of it was seen.
            if values is None:
                values = np.empty((plan.size[1], plan.size[0], pixels.shape[2]), pixels.dtype)
            values[top : top + len(pixels)] = pixels
        else:
            flat = flat or Image.new("RGB", plan.size)
            flat.paste(coloured(pixels, colours), (0, top))
        top += len(pixels)
    if flat is not None:
        return flat
    assert values is not None
    made = _narrowed(values, plan.no_data)
    del values, pixels
    if colours.inverted:
        np.subtract(255, made, out=made)
    return Image.fromarray(made if made.shape[2] == 3 else made[..., 0]).convert("RGB")


def _samples(rows: NDArray[np.uint8], plan: _Plan) -> NDArray[Any]:
    """[R, across * columns, samples] numbers of a plane from its rows of bytes."""
    layout = plan.layout
    if plan.colours.sampling != (1, 1):
        return plan.colours.spread(rows, layout)
    if plan.kind is None:
        found = unpacked(rows, layout.bits, layout.across * layout.columns * layout.samples)
        return found.reshape(len(rows), -1, layout.samples)
    if plan.predictor == 3:
        return _float_predicted(rows.reshape(len(rows), layout.across, -1), plan)
    numbers = rows.view(plan.kind).reshape(len(rows), layout.across, layout.columns, layout.samples)
    numbers = numbers.astype(plan.kind.newbyteorder("="), copy=False)
    if plan.predictor == 2:
        whole = numbers.view(f"u{plan.kind.itemsize}")
        numbers = np.add.accumulate(whole, axis=2, dtype=whole.dtype).view(numbers.dtype)
    return numbers.reshape(len(rows), -1, layout.samples)


def _float_predicted(rows: NDArray[np.uint8], plan: _Plan) -> NDArray[Any]:
    """Undo predictor 3 (TIFF technical note 3): differences of bytes, the highest of each number in a row first."""
    assert plan.kind is not None
    layout, size = plan.layout, plan.kind.itemsize
    shape = rows.shape[:2]
    steps = rows.reshape(*shape, -1, layout.samples)
    summed = np.add.accumulate(steps, axis=2, dtype=np.uint8).reshape(*shape, size, -1)
    numbers = np.ascontiguousarray(summed.swapaxes(2, 3)).view(f">f{size}")
    return numbers.reshape(len(rows), -1, layout.samples).astype(f"=f{size}")


def _narrowed(values: NDArray[Any], no_data: float | None) -> NDArray[np.uint8]:
    """Floating point stretched; whole numbers of 32 and 64 bits, and signed 16, as 16 bits where most of them fit."""
    if values.dtype.kind in "iu" and (values.dtype.itemsize == 2 or _fits(values)):
        made: NDArray[np.uint8] = np.empty(values.shape, np.uint8)
        for top in range(0, len(values), 64):
            made[top : top + 64] = as_bytes(values[top : top + 64].clip(0, 65535), 16)
        return made
    return stretched(values, no_data)


def _fits(values: NDArray[Any]) -> bool:
    """Whether at least a quarter of all values lie within 16 bits: others were not meant to."""
    inside = sum(
        int(((values[top : top + 64] >= 0) & (values[top : top + 64] <= 65535)).sum())
        for top in range(0, len(values), 64)
    )
    return inside * 4 >= values.size


def _whole_tags(tags: Tags) -> dict[int, Any]:
    """The directory of a picture that libtiff decodes as one: fax, WebP and old JPEG are self-contained."""
    names = (
        tag.WIDTH, tag.HEIGHT, tag.BITS, tag.COMPRESSION, tag.PHOTOMETRIC, tag.FILL_ORDER, tag.STRIP_OFFSETS,
        tag.SAMPLES, tag.ROWS, tag.STRIP_BYTES, tag.PLANAR, tag.T4, tag.T6, tag.TILE_WIDTH, tag.TILE_HEIGHT,
        tag.TILE_OFFSETS, tag.TILE_BYTES, tag.EXTRA, tag.YCC_SAMPLING, *tag.OLD_JPEG,
    )  # fmt: skip
    bits = set(tags.all(tag.BITS) or (1,))
    fax = tags.one(tag.COMPRESSION, 1) in _FAX
    if bits != ({1} if fax else {8}) or (
        fax and (tags.one(tag.SAMPLES, 1), tags.one(tag.PHOTOMETRIC, 0) > 1) != (1, False)
    ):
        raise BrokenImage("damaged: a TIFF whose depth does not fit its compression")
    return {name: list(tags.all(name)) for name in names if tags.all(name)}
