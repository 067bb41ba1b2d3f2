"""Counters and histograms that grow as things happen and start from zero with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from fairlead.control.observability import metric_families
from fairlead.control.observability.metric_families import ALL, MetricFamily

MAX_LABEL_VALUES = 64  # distinct values per label; further values become "other"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # one more series per counter, and a reset shows the same
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def _make(family: MetricFamily) -> Counter | Gauge | Histogram:
    if family.kind == "histogram":
        return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=REGISTRY)
    kind = Counter if family.kind == "counter" else Gauge
    return kind(family.name, family.help, family.labels, registry=REGISTRY)


_live = {family.name: _make(family) for family in ALL if family.live}
_seen: dict[tuple[str, int], set[str]] = {}


def count(family: MetricFamily, *labels: str, by: float = 1.0) -> None:
    """Add to a counter."""
    counter = _metric(family, labels)
    assert isinstance(counter, Counter)
    counter.inc(by)


def observe(family: MetricFamily, seconds: float, *labels: str) -> None:
    """Add a duration to a histogram."""
    child = _metric(family, labels)
    assert isinstance(child, Histogram)
    child.observe(max(0.0, seconds))


def count_round(seconds: float, changed: bool, decisions: Iterable[object]) -> None:
    """Count a round of decisions."""
    observe(metric_families.ROUND_TIME, seconds)
    count(metric_families.ROUNDS, "changed" if changed else "unchanged")
    for decision in decisions:
        count(metric_families.DECISIONS, type(decision).__name__.lower())


def set_gauge(family: MetricFamily, value: float) -> None:
    """Set a gauge."""
    gauge = _metric(family, ())
    assert isinstance(gauge, Gauge)
    gauge.set(value)


@contextmanager
def gauge_incremented(family: MetricFamily) -> Iterator[None]:
    """Hold a gauge one higher during the block."""
    gauge = _metric(family, ())
    assert isinstance(gauge, Gauge)
    gauge.inc()
    try:
        yield
    finally:
        gauge.dec()


def bounded_labels(family: MetricFamily, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels, with further values of a label replaced by "other" once it has too many.

    Tenants and nodes are exempt: administrators create them, and a missing one would be worse than a long list.
    """
    kept = []
    for place, (label, value) in enumerate(zip(family.labels, labels, strict=True)):
        if label not in ("tenant", "node"):
            known = _seen.setdefault((family.name, place), set())
            if value not in known and len(known) >= MAX_LABEL_VALUES * (4 if label == "route" else 1):
                value = "other"
            known.add(value)
        kept.append(value)
    return tuple(kept)


def _metric(family: MetricFamily, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
    metric = _live[family.name]
    return metric.labels(*bounded_labels(family, labels)) if labels else metric
