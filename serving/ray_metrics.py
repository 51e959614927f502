"""The same metrics through Ray, which gathers them from all replicas."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from partgcd.serving.metrics import DEFINITIONS


class RayMetrics:
    """A `Backend` for `Metrics`. Ray adds the replica's tags and the prefix ``ray_``."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        for name, each in DEFINITIONS.items():
            if each.kind == "histogram":
                self._kept[name] = Histogram(
                    name, description=each.text, boundaries=list(each.buckets), tag_keys=each.labels
                )
            else:
                make = Counter if each.kind == "counter" else Gauge
                self._kept[name] = make(name, description=each.text, tag_keys=each.labels)

    def record(self, name: str, value: float, labels: dict[str, str]) -> None:
        """See `Backend`."""
        kept, kind = self._kept[name], DEFINITIONS[name].kind
        (kept.inc if kind == "counter" else kept.set if kind == "gauge" else kept.observe)(value, labels)
