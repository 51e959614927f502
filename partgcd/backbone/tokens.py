"""Trunk tokens on disk: the frozen part of the backbone is run once for a view and never again.

The evaluation view never changes, so its tokens are exact for the whole run. A pool of V random views an
image is the optional approximation of fresh views; a share of it can be renewed every epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.backbone.device_pixels import to_device
from partgcd.backbone.load import Backbone
from partgcd.data.pixels import PixelStore
from partgcd.data.views import mix, random_crops

CHUNK = 64
"""Rows computed together. Fixed, so that a store finished after an interruption is bit for bit the same."""

_DTYPE = np.float16
_LARGEST = 65504.0
_RESIDENT_SHARE = 0.4
"""Largest share of a GPU's free memory that a store may take."""


class TokenStore:
    """Tokens [N, V, T, D] in half precision, with the generation of each (chunk, slot) beside them.

    The generation is written after its rows, so whatever a kill leaves behind is known and redone.
    """

    def __init__(
        self,
        folder: Path,
        rows: int,
        slots: int,
        shape: tuple[int, int],
        stamp: str,
        tail: NDArray[np.float16] | None = None,
    ) -> None:
        """``tail`` [M, T, D] are rows after the ``rows`` computed ones: given, never computed, alike in all slots."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp_file = folder / "stamp.json"
        wanted = {"stamp": stamp, "rows": rows, "slots": slots, "shape": list(shape)}
        fresh = _read(stamp_file) != wanted
        self._tail = tail if tail is not None else np.empty((0, *shape), _DTYPE)
        self.own, self.rows, self.slots = rows, rows + len(self._tail), slots
        chunks = -(-rows // CHUNK)
        full = (rows, slots, *shape)
        if fresh:
            stamp_file.unlink(missing_ok=True)
        self._tokens = _map(folder / "tokens.f16", _DTYPE, fresh, full)
        self._done = _map(folder / "done.i32", np.int32, fresh, (slots, chunks))
        self._resident: Tensor | None = None
        if fresh:
            stamp_file.write_text(json.dumps(wanted))
        # 0 is "not computed": files come from the system filled with zeros, so a kill here is harmless.

    def missing(self, generation: NDArray[np.int64]) -> list[tuple[int, int]]:
        """(slot, chunk) pairs whose stored generation is not the wanted one [slots, chunks]."""
        slots, chunks = np.nonzero(self._done != generation + 1)
        return list(zip(slots.tolist(), chunks.tolist(), strict=True))

    def write(self, slot: int, chunk: int, generation: int, tokens: Tensor) -> None:
        """Store one chunk's tokens [B, T, D] and then its generation."""
        rows = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, self.own))
        self._tokens[rows, slot] = tokens.float().clamp(-_LARGEST, _LARGEST).cpu().numpy().astype(_DTYPE)
        self._done[slot, chunk] = generation + 1

    def read(
        self, rows: NDArray[np.int64], device: torch.device, slots: NDArray[np.int64] | int = 0
    ) -> Tensor:
        """Tokens [B, T, D] in float32 on ``device``."""
        given = rows >= self.own
        if not given.any():
            return self._computed(rows, device, slots)
        tokens = torch.empty(len(rows), *self._tail.shape[1:], device=device)
        here = torch.from_numpy(given).to(device)
        tokens[here] = torch.from_numpy(self._tail[rows[given] - self.own]).to(device).float()
        if not given.all():
            own = slots[~given] if isinstance(slots, np.ndarray) else slots
            tokens[~here] = self._computed(rows[~given], device, own)
        return tokens

    def _computed(
        self, rows: NDArray[np.int64], device: torch.device, slots: NDArray[np.int64] | int
    ) -> Tensor:
        if self._resident is not None:
            index = torch.from_numpy(rows).to(device)
            slot = torch.from_numpy(slots).to(device) if isinstance(slots, np.ndarray) else slots
            return self._resident[index, slot].float()
        return to_device(self._tokens[rows, slots], device).float()

    @property
    def resident(self) -> bool:
        """Whether reads come from a copy on a GPU."""
        return self._resident is not None

    def hold_on(self, device: torch.device) -> None:
        """Keep a copy on a GPU with room to spare, so that reads cross no bus; elsewhere do nothing.

        Call it after every change: the copy does not follow `write`.
        """
        self._resident = None
        if device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(device)
        if self._tokens.nbytes < _RESIDENT_SHARE * free:
            self._resident = torch.from_numpy(np.asarray(self._tokens)).to(device)


def _read(stamp: Path) -> Any:
    """What a stamp says; None where there is none or a kill cut it off."""
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None


def _map(file: Path, dtype: type[Any], fresh: bool, shape: tuple[int, ...]) -> NDArray[Any]:
    if fresh:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        with file.open("wb") as stream:
            stream.truncate(size)
            # A sparse file on a full disk would end the process at a write, with no error to catch.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
    return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def generations(epoch: int, slots: int, rows: int, share: float) -> NDArray[np.int64]:
    """Which generation of views each (slot, chunk) holds in ``epoch`` (counted from 1), [slots, chunks].

    A share of all pairs moves on by one generation at every epoch after the first, in rotation.
    """
    chunks = -(-rows // CHUNK)
    order = np.arange(slots * chunks)
    phase = (mix(order.astype(np.uint64)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.floor((epoch - 1) * share + phase).astype(np.int64).reshape(slots, chunks)


class Material(NamedTuple):
    """What tokens are made of: pixels of N images, through a frozen trunk on ``device``.

    Attributes:
        keys: [N] image identities, which decide the crops of random views.
    """

    backbone: Backbone
    pixels: PixelStore
    keys: NDArray[np.uint64]
    autocast: Callable[[], torch.autocast]
    device: torch.device


def fill(
    store: TokenStore,
    material: Material,
    generation: NDArray[np.int64],
    seed: int | None,
    tick: Callable[[int, int], None],
    share_out: Callable[[list[tuple[int, int]]], list[tuple[int, int]]] | None = None,
) -> bool:
    """Compute whatever ``store`` lacks of ``generation``.

    Args:
        generation: [slots, chunks] wanted generations.
        seed: None for the evaluation view (centre crop), else the seed of the random views.
        tick: called with (done, total) chunks; it may raise to stop.
        share_out: this process's part of the (slot, chunk) pairs to compute, where others have the same store
            open and compute the rest; wait for them and call `TokenStore.hold_on` before reading.

    Returns:
        Whether anything was lacking.
    """
    backbone, pixels, keys, autocast, device = material
    size = backbone.info.image_size
    lacking = store.missing(generation)
    missing = share_out(lacking) if share_out is not None else lacking
    for done, (slot, chunk) in enumerate(missing):
        tick(done, len(missing))
        rows = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, store.own))
        wanted = int(generation[slot, chunk])
        if seed is None:
            images = pixels.centre(rows, size)
        else:
            # A pool is its own stream of views: these step numbers never meet a training step's.
            crops = random_crops(seed, wanted, 2**40 + slot, keys[rows], 0, pixels.shape(rows), size)
            images = pixels.crop(rows, crops.top, crops.left, crops.flip, size)
        with torch.no_grad(), autocast():
            tokens = backbone.trunk(to_device(images, device))
        store.write(slot, chunk, wanted, tokens)
    tick(len(missing), len(missing))
    if share_out is None and (lacking or not store.resident):
        store.hold_on(device)
    return bool(lacking)
