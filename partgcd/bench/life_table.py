"""Tables out of the results of simulated lives: a row for each set, method and stage, means over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from scipy.stats import t as student

from partgcd.bench.quality_table import spread

COLUMNS = ["set", "stage", "method", "seeds", "All", "Old", "New", "earlier", "forgetting", "new classes",
           "ids changed", "seconds", "CPU seconds"]  # fmt: skip


def rows(results: Iterable[dict[str, Any]], methods: list[str]) -> list[dict[str, str]]:
    """Rows of text; accuracies in percent of held-out images, "a ± b" with the standard deviation over seeds.

    Forgetting is the loss of Old since the first stage in points, the mean over seeds with its 95% interval
    (Student's t, paired by seed); "new classes" are those found, of those that came first with the arrival, and in
    brackets how many classes of the arrival's photos no id stood for, those that were missed before among them. "ids
    changed" are those whose images are now mostly of another class than they first stood for, and in brackets those
    whose first class has most of its images answered by another id.
    """
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["set"], result["stage"], result["method"]), []).append(result)
    order = {name: place for place, name in enumerate(methods)}
    keys = sorted(groups, key=lambda key: (key[0], key[1], order.get(key[2], len(order))))
    return [_row(key, groups[key]) for key in keys]


def _row(key: tuple[str, int, str], runs: list[dict[str, Any]]) -> dict[str, str]:
    row = {"set": key[0], "stage": str(key[1]), "method": key[2],
           "seeds": " ".join(str(run["seed"]) for run in runs)}  # fmt: skip
    for column, name in (("All", "all"), ("Old", "old"), ("New", "new"), ("earlier", "earlier")):
        row[column] = spread([run["accuracy"][name] for run in runs])
    row["forgetting"] = interval([100 * run["forgetting"] for run in runs if "forgetting" in run])
    found = [run for run in runs if run.get("new_classes") is not None]
    row["new classes"] = " ".join(_counted(run) for run in found)
    row["ids changed"] = " ".join(_changed(run) for run in runs if "changed_meaning" in run)
    for column, name in (("seconds", "seconds"), ("CPU seconds", "cpu_seconds")):
        spent = [run[name] for run in runs if name in run]
        row[column] = f"{statistics.mean(spent):.0f}" if spent else ""
    return row


def _counted(run: dict[str, Any]) -> str:
    unknown = f" ({run['unknown_classes']})" if "unknown_classes" in run else ""
    return f"{run['new_classes']}/{run['true_new']}{unknown}"


def _changed(run: dict[str, Any]) -> str:
    moved = f" ({len(run['moved_away'])})" if "moved_away" in run else ""
    return f"{len(run['changed_meaning'])}{moved}"


def interval(values: list[float]) -> str:
    """Mean and 95% interval of paired differences; the mean alone of a single one."""
    if not values:
        return ""
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.1f}"
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"
