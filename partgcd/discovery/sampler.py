"""Which images make a step's batch: a pure function of (seed, epoch)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_batches(labelled: NDArray[np.bool_], batch_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Rows of every step of an epoch, about half of each batch labelled.

    As many images are drawn as there are, with replacement: a labelled one with weight 1, another with
    |D_l| / |D_u|. The last short batch is dropped; a catalog smaller than a batch makes one short step.

    Args:
        labelled: [N] whether the image has a label.
        batch_size: images a step, over all workers.
        seed, epoch: decide the draw; the number of workers does not.

    Returns:
        [steps, B] rows.
    """
    total, known = len(labelled), int(labelled.sum())
    weights = np.where(labelled, 1.0, known / max(total - known, 1)) if 0 < known < total else np.ones(total)
    draw = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    rows = draw.choice(total, size=total, replace=True, p=weights / weights.sum()).astype(np.int64)
    size = min(batch_size, total)
    return rows[: total // size * size].reshape(-1, size)
