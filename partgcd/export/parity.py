"""Whether a graph answers as it should: compared with torch at export, and with stored answers ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from partgcd.config.errors import UserError
from partgcd.export.graph_names import output_names
from partgcd.export.session import run

if TYPE_CHECKING:  # a server checks bundles and has no use for torch
    from partgcd.export.graph import Graph

TOLERANCE = 1e-4
"""Largest difference of any probability between torch and the fp32 graph."""

BATCHES = (1, 2, 7)
"""Batch sizes that are tried. The graph's batch is dynamic, and this is how that is known."""

STORED = max(BATCHES)
"""Inputs that a bundle stores: pictures of nothing, so that no image leaves with it."""

_PROBABILITIES = ("global", "part", "fused")
# Beside probabilities: what a score may differ by, as a multiple of their tolerance. Maps are a softmax of
# likelihoods in tens of nats, novelty is in units of nats and standard deviations.
_LOOSER = {"maps": 10.0, "attention": 1.0, "novelty": 50.0}


def torch_answers(graph: Graph, pixels: NDArray[np.uint8], batch: int = STORED) -> dict[str, NDArray[Any]]:
    """All outputs of the torch module for ``pixels`` [B, 3, S, S], by name."""
    import torch

    starts = range(0, len(pixels), batch)
    with torch.no_grad():
        chunks = [graph(torch.from_numpy(pixels[start : start + batch])) for start in starts]
    names = output_names(len(chunks[0]) == len(output_names(True)))
    return {
        name: torch.cat(values).numpy() for name, values in zip(names, zip(*chunks, strict=True), strict=True)
    }


def clear(answers: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """[B] whether the class head's two best probabilities differ by more than the tolerance.

    Where they do not, rounding decides whose mixture makes the parts, and two right answers can differ.
    """
    top = np.sort(answers["global"], axis=1)[:, -2:]
    found: NDArray[np.bool_] = top[:, 1] - top[:, 0] > TOLERANCE
    return found


def draw_inputs(graph: Graph, size: int, seed: int) -> NDArray[np.uint8]:
    """STORED pictures [B, 3, S, S] of coloured waves and noise whose answers are not near ties."""
    draw = np.random.Generator(np.random.Philox(key=[seed, 0x9A21]))
    y, x = np.mgrid[0:size, 0:size] / size
    pictures = []
    for _ in range(4 * STORED):
        waves = draw.uniform(-20, 20, (3, 2, 1, 1))
        phase = draw.uniform(0, 2 * np.pi, (3, 1, 1))
        smooth = 128 + 90 * np.sin(waves[:, 0] * x + waves[:, 1] * y + phase)
        pictures.append(smooth + draw.normal(0, 20, (3, size, size)))
    pixels = np.stack(pictures).clip(0, 255).astype(np.uint8)
    top = np.sort(torch_answers(graph, pixels)["global"], axis=1)
    surest = np.argsort(top[:, -2] - top[:, -1], kind="stable")[:STORED]
    return pixels[np.sort(surest)]


def compare(
    session: Any, pixels: NDArray[np.uint8], expected: dict[str, NDArray[Any]], tolerance: float
) -> float:
    """Run ``pixels`` in every batch size and compare with the answers ``expected`` of the same images.

    Images whose two best global probabilities are nearer than 1e-4 are left out.

    Returns:
        the largest difference of any probability.

    Raises:
        UserError: a difference above the tolerance, another class, or a result that is no number.
    """
    sure, worst = clear(expected), 0.0
    for batch in BATCHES:
        for start in range(0, len(pixels) - batch + 1, batch):
            rows = slice(start, start + batch)
            found = run(session, pixels[rows])
            keep = sure[rows]
            for name, values in expected.items():
                if name not in found or found[name].shape != values[rows].shape:
                    raise UserError(f"model.onnx does not give {name} as it should: export the run again", 1)
                here, there = found[name][keep], values[rows][keep]
                if name == "assigned":
                    if (here != there).any():
                        raise UserError(_failed(f"another class at batch {batch}"), 1)
                    continue
                gap = float(np.abs(here.astype(np.float64) - there).max(initial=0.0))
                allowed = tolerance * _LOOSER.get(name, 1.0)
                if not gap <= allowed:  # NaN is not
                    raise UserError(
                        _failed(f"{name} differs by {gap:.2g} at batch {batch}, {allowed:.0e} allowed"), 1
                    )
                if name in _PROBABILITIES:
                    worst = max(worst, gap)
    return worst


def _failed(what: str) -> str:
    return (
        f"the graph does not answer as the model does: {what}; this onnxruntime is not to be trusted with it"
    )
