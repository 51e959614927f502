"""How many answers a server gave and how many of them were novel, read from its metrics page."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from partgcd.config.errors import UserError

METRIC = "partgcd_images_total"

_MOST_BYTES = 4_000_000
_SECONDS = 5.0
_LINE = re.compile(rf"^{METRIC}\{{([^}}]*)\}}\s+([0-9.eE+]+)(?:\s+\d+)?$", re.MULTILINE)
_OUTCOME = re.compile(r'(?:^|,)\s*outcome="(\w+)"')


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
    """(answers, novel ones) of a page in the Prometheus text format, summed over workers."""
    counts = {"familiar": 0.0, "novel": 0.0}
    found = False
    for labels, value in _LINE.findall(text):
        outcome = _OUTCOME.search(labels)
        if outcome is not None and outcome[1] in counts:
            counts[outcome[1]] += float(value)
            found = True
    return (counts["familiar"] + counts["novel"], counts["novel"]) if found else None
