"""The pixel store: every image resized once, kept as raw bytes, cropped without decoding.

A store is a folder: pixels.u8 (planes [3,h,w] of uint8, one image after another), index.npy (int64 [N,3]:
offset in bytes, height, width of row r) and store.json (size in bytes, and a digest of settings and inputs).
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings

PIXELS, INDEX, ABOUT = "pixels.u8", "index.npy", "store.json"


def short_side(settings: DataSettings) -> int:
    """Pixels of a stored image's short side: image_size / crop_ratio, rounded."""
    return round(settings.image_size / settings.crop_ratio)


def resize(image: Image.Image, settings: DataSettings) -> Image.Image:
    """An RGB image with its short side at ``short_side`` pixels (bicubic, antialiased), the long side in
    proportion.

    An image longer than max_aspect times its short side first loses both ends.
    """
    short = min(image.size)
    longest = max(short, int(settings.max_aspect * short))
    if max(image.size) > longest:
        width, height = min(image.width, longest), min(image.height, longest)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    side = short_side(settings)
    width, height = (max(side, side * length // short) for length in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def planes(image: Image.Image) -> NDArray[np.uint8]:
    """An RGB image as contiguous planes [3,h,w] of uint8."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def evaluation_view(image: Image.Image, settings: DataSettings) -> NDArray[np.uint8]:
    """What the model sees of an image at test time: resize, then the centre crop, [3,S,S] uint8.

    The same pixels as ``PixelStore.centre`` gives for an image in a store.
    """
    pixels = planes(resize(image, settings))
    size = settings.image_size
    top, left = (pixels.shape[1] - size) // 2, (pixels.shape[2] - size) // 2
    return np.ascontiguousarray(pixels[:, top : top + size, left : left + size])


class PixelStore:
    """Read access to a finished store of N images; the pixels stay on disk until they are touched."""

    def __init__(self, pixels: NDArray[np.uint8], index: NDArray[np.int64]) -> None:
        self._pixels = pixels
        self._index = index

    @classmethod
    def open(cls, folder: Path) -> PixelStore:
        """Map the store in ``folder``. Raises UserError (code 1) where it is absent or damaged."""
        try:
            about = read_about(folder)
            index: NDArray[np.int64] = np.load(folder / INDEX, allow_pickle=False)
            with (folder / PIXELS).open("rb") as file:
                # A plain array over the map: memmap's own slicing costs more than a crop.
                pixels = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            ends = index[:, 0] + 3 * index[:, 1] * index[:, 2]
            if (
                len(pixels) != about["bytes"]
                or index.shape != (about["images"], 3)
                or (ends > len(pixels)).any()
            ):
                raise ValueError("its files do not fit together")
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"the pixel store {folder} is unusable ({error}): delete that folder and run again", 1
            ) from error
        return cls(pixels, index)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def flat(self) -> NDArray[np.uint8]:
        """All pixels as they lie on the disk, one image's planes after another's."""
        return self._pixels

    @property
    def index(self) -> NDArray[np.int64]:
        """[N,3] offset in ``flat``, height and width of each image."""
        return self._index

    def shape(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(height, width) in pixels of stored images: [B,2]."""
        return self._index[rows, 1:]

    def crop(
        self,
        rows: NDArray[np.integer[Any]],
        top: NDArray[np.integer[Any]],
        left: NDArray[np.integer[Any]],
        flip: NDArray[np.bool_],
        size: int,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Square crops [B,3,size,size] uint8 of the images ``rows`` [B].

        top, left: [B] pixels from the upper left corner; flip: [B] True mirrors left and right; out: filled
        and returned if given. Raises ValueError where a crop leaves its image, IndexError for a row that is
        not there.
        """
        index = self._index[rows]
        outside = (top < 0) | (left < 0) | (top + size > index[:, 1]) | (left + size > index[:, 2])
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise ValueError(
                f"a crop of {size} at ({int(top[at])}, {int(left[at])}) leaves image {int(rows[at])} "
                f"of {int(index[at, 1])} x {int(index[at, 2])}"
            )
        if out is None:
            out = np.empty((len(rows), 3, size, size), np.uint8)
        places = zip(index.tolist(), top.tolist(), left.tolist(), flip.tolist(), strict=True)
        for row, ((offset, height, width), y, x, mirrored) in enumerate(places):
            whole = self._pixels[offset : offset + 3 * height * width].reshape(3, height, width)
            window = whole[:, y : y + size, x : x + size]
            out[row] = window[:, :, ::-1] if mirrored else window
        return out

    def centre(self, rows: NDArray[np.integer[Any]], size: int) -> NDArray[np.uint8]:
        """Centre crops [B,3,size,size] uint8 of the images ``rows`` [B]: the evaluation view."""
        top, left = ((self.shape(rows) - size) // 2).T
        return self.crop(rows, top, left, np.zeros(len(rows), np.bool_), size)


def read_about(folder: Path) -> dict[str, Any]:
    """The content of store.json. Raises OSError or ValueError."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if not isinstance(about, dict):
        raise ValueError(f"{ABOUT} holds no table")
    return about
