"""One table out of many results: mean and spread over seeds, a row for each set, backbone and method."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

COLUMNS = ["set", "backbone", "method", "seeds", "All", "Old", "New", "class head", "part head",
           "NMI", "ARI", "purity", "classes", "seconds"]  # fmt: skip


def rows(results: Iterable[dict[str, Any]], sets: list[str], methods: list[str]) -> list[dict[str, str]]:
    """Rows of text by column, in the order of ``sets`` and ``methods``; accuracies in percent.

    "a ± b" is the mean and the standard deviation over seeds (n - 1); purity is that of the first and of the
    last epoch's candidates; classes are those that have an image; seconds are a run's training and refreshes without
    making the views, and for clustering, which has no epochs, all of it.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["set"], result["backbone"], result["method"]), []).append(result)

    def place(key: tuple[str, str, str]) -> tuple[int, str, int]:
        order = {name: index for index, name in enumerate(sets)}
        ranks = {name: index for index, name in enumerate(methods)}
        return order.get(key[0], len(order)), key[1], ranks.get(key[2], len(ranks))

    return [_row(key, groups[key]) for key in sorted(groups, key=place)]


def _row(key: tuple[str, str, str], runs: list[dict[str, Any]]) -> dict[str, str]:
    v2 = [run["accuracy"]["v2"] for run in runs]
    heads = [run["accuracy"]["heads"] for run in runs]
    row = dict(
        zip(COLUMNS, [key[0], key[1], key[2], " ".join(str(run["seed"]) for run in runs)], strict=False)
    )
    row |= {name.capitalize(): spread([one[name] for one in v2]) for name in ("all", "old", "new")}
    row["class head"] = spread([one["global"]["all"] for one in heads if "global" in one])
    row["part head"] = spread([one["part"]["all"] for one in heads if "part" in one])
    row["NMI"] = spread([run["accuracy"]["nmi"] for run in runs])
    row["ARI"] = spread([run["accuracy"]["ari"] for run in runs])
    pure = [[value for value in run["purity"] if value is not None] for run in runs]
    pure = [values for values in pure if len(values) > 1]
    row["purity"] = (
        f"{_percent([values[0] for values in pure])} to {_percent([values[-1] for values in pure])}"
        if pure
        else ""
    )
    used = [run["classes"]["used"] - run["classes"]["empty"] for run in runs]
    row["classes"] = f"{' '.join(map(str, sorted(set(used))))} of {runs[0]['classes']['true']}"
    row["seconds"] = (
        f"{statistics.mean(run['seconds']['epochs'] or run['seconds']['discovery'] for run in runs):.0f}"
    )
    return row


def _percent(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.0f}"


def spread(values: list[float | None]) -> str:
    """Mean and standard deviation (n - 1) of shares, in percent; the value alone of a single one."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"{known[0]:.1f}"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}"


def markdown(table: list[dict[str, str]], columns: list[str]) -> str:
    """The rows as a Markdown table; columns that are empty everywhere are left out."""
    shown = [column for column in columns if any(row[column] for row in table)]
    lines = [f"| {' | '.join(shown)} |", f"|{'---|' * len(shown)}"]
    lines += [f"| {' | '.join(row[column] for column in shown)} |" for row in table]
    return "\n".join(lines) + "\n"
