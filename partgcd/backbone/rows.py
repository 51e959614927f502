"""A few patches of each image, packed: what a block need not compute, it is not asked for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """M chosen patches of B images, in the order of images; R is the largest number that an image has, at least 1.

    Attributes:
        image, patch: [M] which image, which of its patches.
        place: [M] which of the image's R places the patch is packed into.
        shape: B and R.
    """

    image: Tensor
    patch: Tensor
    place: Tensor
    shape: tuple[int, int]

    def spread(self, values: Tensor) -> Tensor:
        """Values [M, ...] of the chosen patches as [B, R, ...], 0 where an image has fewer than R."""
        wide = values.new_zeros(*self.shape, *values.shape[1:])
        return wide.index_put((self.image, self.place), values)

    def of(self, values: Tensor) -> Tensor:
        """What values [B, P, ...] are at the chosen patches: [B, R, ...], 0 where an image has fewer than R."""
        return self.spread(values[self.image, self.patch])


def rows_of(chosen: Tensor) -> Rows:
    """The patches that are True in ``chosen`` [B, P]. It waits for the device: R is not known before."""
    image, patch = chosen.nonzero(as_tuple=True)
    place = (torch.cumsum(chosen, dim=1) - 1)[image, patch]
    most = int(place.max()) + 1 if len(place) else 1
    return Rows(image, patch, place, (len(chosen), most))
