"""Any number of images through a predictor, in order and with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partgcd.export.predictor import BATCH, Answer, Failure, Predictor

_Prepared = NDArray[np.uint8] | Failure


def classify_stream(
    predictor: Predictor,
    files: Iterable[Path],
    top_k: int = 1,
    explain: bool = False,
    batch: int = BATCH,
    decoders: int = 2,
) -> Iterator[tuple[Path, Answer | Failure]]:
    """Each file with its answer, in the order they come.

    ``decoders`` threads decode ahead of the graph, at most two batches: memory does not grow with the number of
    files, and ``files`` is drawn from only as fast as answers are taken.
    """
    source = iter(files)
    ahead: deque[tuple[Path, Future[_Prepared]]] = deque()
    pool = ThreadPoolExecutor(decoders)
    try:
        while True:
            for file in islice(source, 3 * batch - len(ahead)):
                ahead.append((file, pool.submit(predictor.prepare_or_fail, file)))
            if not ahead:
                return
            taken = [ahead.popleft() for _ in range(min(batch, len(ahead)))]
            answers = predictor.answer_all([future.result() for _, future in taken], top_k, explain)
            yield from zip((file for file, _ in taken), answers, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)
