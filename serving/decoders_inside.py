"""Decoding in the server's own process, where the system can't time and watch another one (Windows).

What a header says bounds an image's memory here too. But nothing ends one that takes long, and a crash in a decoder
written in C is the server's.
"""

from __future__ import annotations

import logging
import math

import numpy as np
from numpy.typing import NDArray

from partgcd.config.tree import DataSettings
from partgcd.data.decode import begin
from partgcd.data.pixels import evaluation_view
from partgcd.decoding.begun import BrokenImage
from partgcd.serving.decode_budget import Budget
from partgcd.serving.settings import Limits

_log = logging.getLogger("partgcd.serving")


class InsideDecoders:
    """In the place of `Decoders`: no processes, and so nothing to start or to end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._budget = Budget(int(limits.max_decode_mb * 1e6))

    def start(self, count: int) -> None:
        """Nothing to start."""

    def wait_ready(self) -> None:
        """Say once what is missing."""
        _log.warning("images are decoded in the server's own process: no deadline ends a slow one")

    def view(
        self,
        data: bytes,
        settings: DataSettings,
        label: str = "",
        most: float = math.inf,
        wait: float = 1.0,
    ) -> NDArray[np.uint8]:
        """As `Decoders.view`; its errors too, but that none takes too long."""
        try:
            begun = begin(data, self._limits.max_megapixels)
            with self._budget.held(begun.bytes_needed, most, wait):
                return evaluation_view(begun.finish(), settings)
        except MemoryError:
            raise BrokenImage("does not fit in memory") from None

    def close(self) -> None:
        """Nothing to end."""
