"""How many answers a server gave and how many of them were novel, read from its metrics page."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from partgcd.config.errors import UserError

METRIC = "partgcd_images_total"

_MOST_BYTES = 4_000_000
_SECONDS = 5.0


def check_url(url: str) -> None:
    """Refuse what is no web address. Raises UserError."""
    if re.fullmatch(r"https?://[^\s]+", url) is None:
        raise UserError(f"--metrics-url '{url}' is no address: give http://HOST:PORT/metrics")


def read_counters(url: str) -> tuple[float, float] | None:
    """(answers, novel ones) since the server began; None where it does not answer as it should."""
    check_url(url)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return parse_counters(text)


def parse_counters(text: str) -> tuple[float, float] | None:
    """(answers, novel ones) of a page in the Prometheus text format, summed over workers; None if it is none.

    Raises:
        UserError: prometheus-client, which reads the format, is not installed.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise UserError(
            "reading a server's metrics needs prometheus-client: pip install 'partgcd[cpu]'"
        ) from None

    counts: dict[str, list[float]] = {"familiar": [], "novel": []}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == METRIC:
                    counts.get(sample.labels.get("outcome", ""), []).append(float(sample.value))
    except ValueError:  # a page of something else
        return None
    novel = sum(counts["novel"])
    return (sum(counts["familiar"]) + novel, novel) if any(counts.values()) else None
