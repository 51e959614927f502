"""The graph of a bundle, and the gates it passes on the way: parity with torch, and what lower precision costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.calibrate import Calibration
from partgcd.export.graph import Graph, strip, to_onnx
from partgcd.export.int8 import to_int8
from partgcd.export.manifest import CostEntry, ParityEntry, Precision
from partgcd.export.parity import BATCHES, STORED, TOLERANCE, compare, draw_inputs, torch_answers
from partgcd.export.precision import COST_IMAGES, LOW_TOLERANCE, MOST_CHANGED, changed, same_share, to_fp16
from partgcd.export.session import open_session, run_all
from partgcd.export.source import Source
from partgcd.parts.mixture import sample_rows

FP32_BLOCKS = (0, 2, 4)
"""First blocks that int8 leaves in fp32, tried in turn until the cost is small enough: errors made there grow."""

Progress = Callable[[str, int, int], None]
_Answers = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class MadeGraph:
    """The graph that goes into a bundle and what was found out about it.

    Attributes:
        cost: None at fp32.
        threshold: of the novelty score, as this graph gives it.
        inputs, answers: the stored parity inputs, and what is to come out of them.
    """

    data: bytes
    parity: ParityEntry
    cost: CostEntry | None
    threshold: float
    inputs: NDArray[np.uint8]
    answers: _Answers


def make_graph(
    source: Source, found: Calibration, graph: Graph, precision: Precision, progress: Progress
) -> MadeGraph:
    """Export ``graph``, compare it with itself in torch and, if asked for, lower its precision.

    Raises:
        UserError: the graph can't be exported or does not answer as torch does, or precision costs too much.
    """
    # Images whose two best classes are nearly one answer can't show whether two programs agree.
    seen = source.seeable[found.rows]
    order = np.argsort(-found.margin[seen], kind="stable")
    sure = found.rows[seen][order][: max(STORED, int(0.9 * seen.sum()))]
    real = source.pixels(sure[sample_rows(len(sure), 2 * STORED, source.settings.seed)])
    example = real[:2] if len(real) > 1 else np.repeat(real, 2, axis=0)
    progress("graph", 0, 1)
    model = to_onnx(graph, torch.from_numpy(example))
    progress("graph", 1, 1)
    inputs = draw_inputs(graph, source.settings.data.image_size, source.settings.seed)
    answers = torch_answers(graph, inputs)
    data = _stripped(model.SerializeToString())
    session = open_session(data, provider="cpu")
    progress("parity", 0, 1)
    worst = compare(session, real, torch_answers(graph, real), TOLERANCE)
    worst = max(worst, compare(session, inputs, answers, TOLERANCE))
    progress("parity", 1, 1)
    parity = ParityEntry(
        images=len(real), batches=list(BATCHES), largest_difference=worst, tolerance=TOLERANCE
    )
    if precision == "fp32":
        return MadeGraph(data, parity, None, found.threshold, inputs, answers)
    ways = [(partial(to_int8, model, blocks), blocks) for blocks in FP32_BLOCKS]
    if precision == "fp16":
        ways = [(partial(to_fp16, model), 0)]
    return _lowered(source, found, precision, ways, session, parity, inputs, progress)


def _lowered(
    source: Source,
    found: Calibration,
    precision: Precision,
    ways: Sequence[tuple[Callable[[], bytes], int]],
    session: Any,
    parity: ParityEntry,
    inputs: NDArray[np.uint8],
    progress: Progress,
) -> MadeGraph:
    """The first of several ways to lower precision whose answers are nearly those of the fp32 ``session``."""
    seen = found.rows[source.seeable[found.rows]]
    rows = seen[sample_rows(len(seen), COST_IMAGES, source.settings.seed)]
    before, shares = _answer(source, rows, session, "fp32", progress), []
    for number, (lower, blocks) in enumerate(ways, start=1):
        data = _stripped(lower())
        other = open_session(data, provider="cpu")
        phase = f"cost of {precision}" + (f", try {number}" if number > 1 else "")
        after = _answer(source, rows, other, phase, progress)
        shares.append(changed(before, after))
        if not shares[-1] <= MOST_CHANGED:
            continue
        cost = CostEntry(
            images=len(rows),
            changed=shares[-1],
            largest_difference=float(np.abs(before["fused"] - after["fused"]).max()),
            fp32_blocks=blocks,
        )
        answers = run_all(other, inputs)
        compare(other, inputs, answers, LOW_TOLERANCE)  # in every batch size, as it will be checked
        level = same_share(found.threshold, before["novelty"], after["novelty"])
        return MadeGraph(
            data, parity.model_copy(update={"tolerance": LOW_TOLERANCE}), cost, level, inputs, answers
        )
    raise UserError(
        f"{precision} changes the class of {100 * min(shares):.1f}% of {len(rows)} images of the run, "
        f"{100 * MOST_CHANGED:.0f}% is allowed: export without --{precision}",
        1,
    )


def _answer(
    source: Source, rows: NDArray[np.int64], session: Any, phase: str, progress: Progress
) -> _Answers:
    """Fused probabilities and novelty scores of the images ``rows``."""
    kept: dict[str, list[NDArray[Any]]] = {"fused": [], "novelty": []}
    for start in range(0, len(rows), 32):
        progress(phase, start, len(rows))
        answers = run_all(session, source.pixels(rows[start : start + 32]))
        for name, values in kept.items():
            values.append(answers[name])
    progress(phase, len(rows), len(rows))
    return {name: np.concatenate(values) for name, values in kept.items()}


def _stripped(data: bytes) -> bytes:
    import onnx

    stripped: bytes = strip(onnx.load_model_from_string(data)).SerializeToString()
    return stripped
