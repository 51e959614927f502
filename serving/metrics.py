"""What a server counts. Defined once, kept for Prometheus, and on Ray handed to Ray's own metrics too."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Definition(NamedTuple):
    """One metric: its kind, what it means, its labels and, of a histogram, its buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


DEFINITIONS = {
    "partgcd_requests_total": Definition("counter", "Requests answered.", ("route", "method", "status")),
    "partgcd_request_seconds": Definition(
        "histogram", "From the first byte of a request to the last of its answer.", ("route",), _SECONDS
    ),
    "partgcd_phase_seconds": Definition(
        "histogram",
        "Of a request: read (its body). Of an image: wait (in the queue), decode, predict, draw.",
        ("phase",),
        _SECONDS,
    ),
    "partgcd_queue_images": Definition("gauge", "Images that are waiting or worked on."),
    "partgcd_request_images": Definition("histogram", "Images in a request.", (), _COUNTS),
    "partgcd_batch_images": Definition("histogram", "Images in a run of the graph.", (), _COUNTS),
    "partgcd_images_total": Definition("counter", "Images by outcome: familiar, novel or broken.", ("outcome",)),
    "partgcd_assigned_total": Definition("counter", "Images put into a class.", ("class_id",)),
    "partgcd_rejected_total": Definition("counter", "Requests refused, by title of their problem.", ("reason",)),
    "partgcd_decoders_ended_total": Definition("counter", "Decoders ended by an image: slow or failed.", ("why",)),
    "partgcd_model_info": Definition("gauge", "1 for the model that answers.", ("version",)),
    "partgcd_model_changes_total": Definition("counter", "Models or names taken or refused.", ("result",)),
    "partgcd_candidate_refused": Definition("gauge", "1 while a newer model is refused and the old one goes on."),
    "partgcd_collected_total": Definition(
        "counter", "Images for the inbox: kept, known, rate, quota, busy or failed.", ("result",)
    ),
}  # fmt: skip


class Backend(Protocol):
    """Something that keeps the metrics of `DEFINITIONS`."""

    def record(self, name: str, value: float, labels: dict[str, str]) -> None:
        """Add to a counter, set a gauge, observe in a histogram."""


class Metrics:
    """The metrics of one server. Any thread may call it."""

    def __init__(self, mirror: Backend | None = None) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._kept: dict[str, Any] = {}
        self._mirror = mirror
        self._version = ""
        for name, each in DEFINITIONS.items():
            if each.kind == "histogram":
                self._kept[name] = Histogram(
                    name, each.text, each.labels, registry=self._registry, buckets=each.buckets
                )
            else:
                make = Counter if each.kind == "counter" else Gauge
                self._kept[name] = make(name, each.text, each.labels, registry=self._registry)

    def record(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter, set a gauge, observe in a histogram."""
        kept = self._kept[name].labels(**labels) if labels else self._kept[name]
        kind = DEFINITIONS[name].kind
        (kept.inc if kind == "counter" else kept.set if kind == "gauge" else kept.observe)(value)
        if self._mirror is not None:
            self._mirror.record(name, value, labels)

    def phase(self, name: str, seconds: float) -> None:
        """One phase of a request or an image."""
        self.record("partgcd_phase_seconds", seconds, phase=name)

    def serve_version(self, version: str) -> None:
        """The model that answers from now on."""
        if self._version and self._version != version:
            self.record("partgcd_model_info", 0.0, version=self._version)
            self._kept["partgcd_model_info"].remove(self._version)
        self._version = version
        self.record("partgcd_model_info", 1.0, version=version)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
