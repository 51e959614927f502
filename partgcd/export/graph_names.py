"""What the graph's inputs and outputs are called. Known to exporter and predictor, and light to import."""

from __future__ import annotations

INPUT = "pixels"

OPSET = 20
"""The first operator set with GELU as one node. Opsets 18 and 23 were no faster and no more exact."""

FEATURE = "feature"
"""The class token, of unit norm: what decides between the halves of a class that was split after the training."""

GLOBAL_OUTPUTS = ("global", "fused", "assigned", "attention", "novelty", FEATURE)
PART_OUTPUTS = ("global", "part", "fused", "assigned", "maps", "attention", "novelty", FEATURE)


def output_names(parts: bool) -> tuple[str, ...]:
    """Names of the graph's outputs, in order."""
    return PART_OUTPUTS if parts else GLOBAL_OUTPUTS
