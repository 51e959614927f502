"""One table out of several runs."""

from __future__ import annotations

from typing import Any

import numpy as np


def summarise_repeats(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds with their spread (largest minus smallest), shaped like one run's summary."""
    first = summaries[0]
    result: dict[str, Any] = {
        "seeds": [summary["seed"] for summary in summaries],
        "runs": [summary["id"] for summary in summaries],
        "method": first["method"],
        "classes": {"total": [summary["classes"]["total"] for summary in summaries]},
        "seconds": {"total": round(sum(summary["seconds"]["total"] for summary in summaries), 2)},
        "accuracy": None,
    }
    if all(summary["accuracy"] is not None for summary in summaries):
        accuracies = [summary["accuracy"] for summary in summaries]
        mean: dict[str, Any] = {"set": accuracies[0]["set"]}
        spread: dict[str, Any] = {}
        for key in ("v2", "v1"):
            mean[key], spread[key] = {}, {}
            for name in accuracies[0][key]:
                values = [accuracy[key][name] for accuracy in accuracies if accuracy[key][name] is not None]
                mean[key][name] = float(np.mean(values)) if values else None
                spread[key][name] = float(np.ptp(values)) if values else None
        for key in ("plain", "nmi", "ari"):
            values = [accuracy[key] for accuracy in accuracies if accuracy[key] is not None]
            mean[key] = float(np.mean(values)) if values else None
            spread[key] = float(np.ptp(values)) if values else None
        result["accuracy"], result["spread"] = mean, spread
    return result
