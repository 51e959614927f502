"""Float32 products that stay float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Runs its block without autocast and with plain float32 matrix products on ``device``.

    The quadratic terms of a Gaussian in hundreds of dimensions are differences of large sums: with the 8 or
    11 bits of bfloat16 or TF32 products they mean nothing. Torch's settings are put back when the block ends.
    While a graph is exported the block runs as it is: a graph has neither autocast nor settings.
    """
    if torch.compiler.is_exporting():
        yield
        return
    kinds = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision
