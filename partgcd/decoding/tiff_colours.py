"""What the samples of a TIFF mean: from numbers to colours, for every photometric interpretation that is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.decoding import tiff_tags as tag
from partgcd.decoding.begun import BrokenImage
from partgcd.decoding.bits import as_bytes
from partgcd.decoding.tiff_chunks import JPEG, NONE, Layout
from partgcd.decoding.tiff_tags import Tags
from partgcd.decoding.upright import on_white

_WHITE, _BLACK, _RGB, _PALETTE, _CMYK, _YCC, _LAB, _ICC_LAB = 0, 1, 2, 3, 5, 6, 8, 9
_NEEDED = {_WHITE: 1, _BLACK: 1, _RGB: 3, _PALETTE: 1, _CMYK: 4, _YCC: 3, _LAB: 3, _ICC_LAB: 3}
_NAMES = {
    _WHITE: "grey", _BLACK: "grey", _RGB: "RGB", _PALETTE: "palette colours", _CMYK: "CMYK", _YCC: "YCbCr",
    _LAB: "Lab", _ICC_LAB: "Lab",
}  # fmt: skip
_OTHERS = {
    4: "a mask", 10: "ITU Lab", 32803: "a RAW sensor's pattern", 34892: "a RAW sensor's values", 32844: "LogL",
    32845: "LogLuv", 51177: "a depth map",
}  # fmt: skip
_JPEG_WEIGHTS, _JPEG_RANGE = (0.299, 0.587, 0.114), (0.0, 255.0, 128.0, 255.0, 128.0, 255.0)


@dataclass(frozen=True)
class Colours:
    """What is made of a pixel's samples.

    places: which of its samples count, colours first, then alpha. alpha: "", "straight" or "premultiplied". wide:
    values whose range is not known from their type.
    """

    photometric: int
    bits: int
    places: tuple[int, ...]
    alpha: str
    wide: bool
    palette: NDArray[np.uint8] | None = None
    sampling: tuple[int, int] = (1, 1)
    weights: tuple[float, ...] = ()
    limits: tuple[float, ...] = ()
    by_pillow: bool = False

    @property
    def wanted(self) -> int:
        """How many samples of a pixel count."""
        return len(self.places)

    @property
    def inverted(self) -> bool:
        """Whether 0 is white."""
        return self.photometric == _WHITE

    def unsampled(self, layout: Layout) -> Layout:
        """The layout of coarse YCbCr, whose units hold several pixels: a 'row' is a line of units."""
        across, down = self.sampling
        if layout.planes > 1 or layout.tiled:
            raise BrokenImage("a TIFF of coarse YCbCr in planes or tiles is not read: save it as RGB")
        if layout.rows % down and layout.down > 1:
            raise BrokenImage("damaged: a TIFF whose strips cut its YCbCr units")
        unit = across * down + 2
        columns = -(-layout.width // across)
        return replace(
            layout, columns=columns, width=columns, samples=unit, rows=-(-layout.rows // down),
            height=-(-layout.height // down),
        )  # fmt: skip

    def spread(self, rows: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
        """[R*v, W, 3] samples from lines of YCbCr units, colour repeated."""
        across, down = self.sampling
        units = rows.reshape(len(rows), layout.columns, layout.samples)
        lines = units[:, :, :-2].reshape(len(rows), layout.columns, down, across).transpose(0, 2, 1, 3)
        light = lines.reshape(len(rows) * down, layout.columns * across, 1)
        colour = units[:, :, -2:].repeat(down, 0).repeat(across, 1)
        return np.concatenate([light, colour], -1)


def colours_of(tags: Tags, samples: int, bits: int, form: int) -> Colours:
    """What the tags make of a pixel. Raises BrokenImage with what is not read, and what to do."""
    photometric = tags.one(tag.PHOTOMETRIC, 0)
    if photometric not in _NEEDED:
        name = _OTHERS.get(photometric, f"interpretation {photometric}")
        raise BrokenImage(f"a TIFF of {name} is not read: save it as RGB")
    if photometric == _YCC and samples == 1:
        photometric = _BLACK
    needed = _NEEDED[photometric]
    extra = tags.all(tag.EXTRA)[: max(0, samples - needed)]
    alpha, places = _alpha_of(photometric, needed, samples, extra, bits)
    made = Colours(
        photometric, bits, places, alpha, wide=form == 3 or bits in (32, 64) or (form == 2 and bits == 16)
    )
    kind = {2: "signed ", 3: "floating-point "}.get(form, "")
    name = f"{kind}{bits}-bit {_NAMES[photometric]}{' with transparency' if alpha else ''}"
    unclear = photometric == _WHITE and alpha == "premultiplied"  # by white or by black?
    if unclear or (form == 2 and bits == 8) or (made.wide and not _stretchable(made, form)):
        raise BrokenImage(f"a TIFF of {name} is not read: save it with 8 bits")
    if photometric == _PALETTE:
        if bits > 16 or alpha == "premultiplied":
            raise BrokenImage("a TIFF with such a palette is not read: save it as RGB")
        return replace(made, palette=_palette(tags, bits))
    if photometric in (_CMYK, _LAB, _ICC_LAB, _YCC):
        deep = bits != 8 and (bits != 16 or photometric == _YCC)
        if deep or alpha or (photometric == _CMYK and tags.one(tag.INKS, 1) != 1):
            inks = " of other inks" if tags.one(tag.INKS, 1) != 1 else ""
            raise BrokenImage(f"a TIFF of {name}{inks} is not read: save it as RGB")
    return _with_sampling(tags, made) if photometric == _YCC else made


def _stretchable(colours: Colours, form: int) -> bool:
    """Whether values without a range of their own can be made a picture."""
    return not colours.alpha and (
        colours.photometric in (_WHITE, _BLACK) or (form == 3 and colours.photometric == _RGB)
    )


def _with_sampling(tags: Tags, made: Colours) -> Colours:
    """How YCbCr is stored and converted."""
    planar, compression = tags.one(tag.PLANAR, 1) == 2, tags.one(tag.COMPRESSION, 1)
    if compression == JPEG and not planar:
        return replace(made, photometric=_RGB)  # the JPEG's decoder converts
    across, down = ((1, 1) if compression == JPEG else (*(tags.all(tag.YCC_SAMPLING) or (2, 2)), 1))[:2]
    weights = _numbers(tags, tag.YCC_WEIGHTS, _JPEG_WEIGHTS)
    if across not in (1, 2, 4) or down not in (1, 2, 4) or weights[1] == 0:
        raise BrokenImage("damaged: a TIFF whose YCbCr makes no sense")
    if (across, down) != (1, 1) and planar:
        raise BrokenImage("a TIFF of coarse YCbCr in planes is not read: save it as RGB")
    limits = _numbers(tags, tag.YCC_RANGE, _JPEG_RANGE)
    usual = np.allclose(weights, _JPEG_WEIGHTS) and limits == _JPEG_RANGE
    by_pillow = usual and compression == NONE and (across, down) == (1, 1)
    return replace(made, sampling=(across, down), weights=weights, limits=limits, by_pillow=by_pillow)


def _alpha_of(
    photometric: int, needed: int, samples: int, extra: tuple[int, ...], bits: int
) -> tuple[str, tuple[int, ...]]:
    """Which kind of alpha there is, and where the samples lie that count."""
    if samples < needed:
        raise BrokenImage(f"damaged: a TIFF of {samples} channels where {needed} are needed")
    colours = tuple(range(needed))
    if samples == needed:
        return "", colours
    if not extra and photometric == _RGB and samples == 4 and bits in (8, 16):
        extra = (2,)  # as most programs take it that forget to say
    for place, meaning in enumerate(extra, start=needed):
        if meaning in (1, 2, 999):  # 999: Corel
            return "premultiplied" if meaning == 1 else "straight", (*colours, place)
    if len(extra) < samples - needed or (needed == 1 and samples > 2):
        raise BrokenImage(f"a TIFF of {samples} channels is not read: save the three to be seen as RGB")
    return "", colours


def _numbers(tags: Tags, name: int, default: tuple[float, ...]) -> tuple[float, ...]:
    found = tags.values.get(name)
    usable = found is not None and len(found) >= len(default) and bool(np.isfinite(found.astype(float)).all())
    return tuple(float(each) for each in found[: len(default)]) if found is not None and usable else default


def _palette(tags: Tags, bits: int) -> NDArray[np.uint8]:
    """[2^bits,3] colours. Some writers store them as bytes where 16 bits are meant."""
    stored = np.array(tags.all(tag.COLOURS), np.uint32)
    count = 1 << bits
    if len(stored) < 3:
        raise BrokenImage("damaged: a TIFF without its palette")
    length = min(count, len(stored) // 3)
    planes = stored[: 3 * (len(stored) // 3)].reshape(3, -1)[:, :length]
    colours = np.zeros((count, 3), np.uint8)
    colours[:length] = (planes if planes.max() < 256 else planes >> 8).T
    return colours


def coloured(pixels: NDArray[Any], colours: Colours) -> Image.Image:
    """Samples [R,W,C], of which all count, as RGB."""
    if colours.palette is not None:
        shown = colours.palette[pixels[:, :, 0]]
        if not colours.alpha:
            return Image.fromarray(shown)
        return on_white(Image.fromarray(np.dstack([shown, as_bytes(pixels[:, :, 1], colours.bits)])))
    if colours.inverted:
        most = pixels.dtype.type((1 << colours.bits) - 1)
        pixels = np.concatenate([most - pixels[:, :, :1], pixels[:, :, 1:]], -1)
    # More than one channel of 16 bits loses its low bytes, as in Pillow; grey is rounded.
    cut = colours.bits == 16 and (pixels.shape[2] > 2 or colours.photometric == _CMYK)
    if colours.photometric in (_LAB, _ICC_LAB):
        small = _small_lab(pixels, colours)
    else:
        small = (pixels >> 8).astype(np.uint8) if cut else as_bytes(pixels, colours.bits)
    small = np.ascontiguousarray(small)
    size = (small.shape[1], small.shape[0])
    if colours.photometric in (_CMYK, _LAB, _ICC_LAB):
        mode = "CMYK" if colours.photometric == _CMYK else "LAB"
        return Image.frombytes(mode, size, small.tobytes()).convert("RGB")
    if colours.photometric == _YCC:
        return _from_ycc(small, colours)
    if not colours.alpha:
        return (
            Image.fromarray(small[:, :, 0]).convert("RGB") if small.shape[2] == 1 else Image.fromarray(small)
        )
    if small.shape[2] == 2:
        mode = "La" if colours.alpha == "premultiplied" else "LA"
        return on_white(Image.frombytes(mode, size, small.tobytes()))
    raw = "RGBa" if colours.alpha == "premultiplied" else "RGBA"
    return on_white(Image.frombytes("RGBA", size, small.tobytes(), "raw", raw))


def _small_lab(pixels: NDArray[Any], colours: Colours) -> NDArray[np.uint8]:
    """Lab of 8 bits, a and b signed, from 16 bits or from a and b with an offset (ICC)."""
    signed = pixels.astype(np.int32)
    step = 1 if colours.bits == 8 else 256
    if colours.photometric == _ICC_LAB:
        signed[:, :, 1:] -= 128 * step
    else:
        signed[:, :, 1:] = (signed[:, :, 1:] + 128 * step) % (256 * step) - 128 * step
    if step > 1:
        signed[:, :, 1:] = ((signed[:, :, 1:] + 128) >> 8).clip(-128, 127)
        signed[:, :, 0] = (signed[:, :, 0] + 128) // 257
    return (signed & 255).astype(np.uint8)


def _from_ycc(pixels: NDArray[np.uint8], colours: Colours) -> Image.Image:
    if colours.by_pillow:
        return Image.frombytes("YCbCr", (pixels.shape[1], pixels.shape[0]), pixels.tobytes()).convert("RGB")
    # In whole numbers as libtiff has it: weights in 1/65536, and each channel stretched from its black to its white.
    red, green, blue = colours.weights
    one, half = 1 << 16, 1 << 15
    to_red, to_blue = 2 - 2 * red, 2 - 2 * blue
    from_red, from_blue = red * to_red / green, blue * to_blue / green
    weights = [int(min(max(each, 0.0), 2.0) * one + 0.5) for each in (to_red, from_red, to_blue, from_blue)]
    codes = np.arange(256)
    tables = [
        np.trunc(
            ((codes - int(black)) * np.float32(most) / np.float32(white - black or 1)).clip(-4096, 4096)
        ).astype(int)
        for black, white, most in zip(colours.limits[::2], colours.limits[1::2], (255, 127, 127), strict=True)
    ]
    light, cb, cr = (table[pixels[:, :, place]] for place, table in enumerate(tables))
    r = light + ((weights[0] * cr + half) >> 16)
    g = light + ((-weights[3] * cb + half - weights[1] * cr) >> 16)
    b = light + ((weights[2] * cb + half) >> 16)
    return Image.fromarray(np.stack([r, g, b], -1).clip(0, 255).astype(np.uint8))
