"""What the graph's inputs and outputs are called. Known to exporter and predictor, and light to import."""

from __future__ import annotations

INPUT = "pixels"

OPSET = 20
"""The first operator set with GELU as one node. Opsets 18 and 23 were no faster and no more exact."""

GLOBAL_OUTPUTS = ("global", "fused", "assigned", "attention", "novelty")
PART_OUTPUTS = ("global", "part", "fused", "assigned", "maps", "attention", "novelty")


def output_names(parts: bool) -> tuple[str, ...]:
    """Names of the graph's outputs, in order."""
    return PART_OUTPUTS if parts else GLOBAL_OUTPUTS
