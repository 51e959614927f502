"""The pixel store on a GPU: crops and flips are cut where the trunk runs, and no pixel crosses the bus twice."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.data.pixels import PixelStore
from partgcd.data.views import Crops

_AT_ONCE = 64
"""Images whose pixel addresses are held at once: 64 crops of 224 pixels are 77 MB of them."""


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A tensor on ``device``; to a GPU through pinned memory, which is copied while the host goes on."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class DevicePixels:
    """All pixels of a store on one device, as they lie in its file."""

    def __init__(self, store: PixelStore, device: torch.device) -> None:
        # Through a writable copy: torch can't wrap a read-only map.
        self._flat = torch.from_numpy(store.flat.copy()).to(device)
        self._index = torch.from_numpy(store.index.copy()).to(device)

    @staticmethod
    def fits(store: PixelStore, device: torch.device, share: float = 0.3) -> bool:
        """Whether ``device`` is a GPU with room to spare: a store takes ``share`` of its free memory at most."""
        if device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return store.flat.nbytes < share * free

    def crop(self, rows: NDArray[np.int64], crops: Crops, size: int) -> Tensor:
        """The same pixels [B, 3, size, size] uint8 as `PixelStore.crop` cuts, on the device."""
        device = self._flat.device
        across = torch.arange(size, device=device)
        top, left, flip = (to_device(each, device) for each in crops)
        offset, height, width = self._index[to_device(rows, device)].unbind(dim=1)
        channel = torch.arange(3, device=device)
        found = []
        for part in torch.split(torch.arange(len(rows), device=device), _AT_ONCE):
            x = torch.where(flip[part, None], size - 1 - across, across) + left[part, None]
            y = across + top[part, None]
            plane = offset[part, None] + channel * (height * width)[part, None]
            line = plane[:, :, None] + (y * width[part, None])[:, None, :]
            found.append(self._flat[line[..., None] + x[:, None, None, :]])
        return torch.cat(found)
