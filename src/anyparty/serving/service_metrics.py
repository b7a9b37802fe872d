"""What the service counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anyparty.serving.predictor import Told

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class _Connected(Collector):
    """Who is there, asked when somebody looks."""

    def __init__(self, parties: Sequence[str], there: Callable[[], set[str]]) -> None:
        self.parties, self.there = parties, there

    def collect(self) -> Iterable[Metric]:
        """Return 1 for each party that can be asked now, 0 for the others."""
        family = GaugeMetricFamily("anyparty_party_connected", "Whether a party can be asked now.", labels=["party"])
        there = self.there()
        for name in self.parties:
            family.add_metric([name], float(name in there))
        return [family]


class Meter:
    """The service's counters."""

    def __init__(self, parties: Sequence[str], there: Callable[[], set[str]]) -> None:
        """Begin at zero; ``parties`` are the others than the active one, ``there`` says who can be asked."""
        self.registry = CollectorRegistry()
        self.registry.register(_Connected(parties, there))
        self.requests = Counter(
            "anyparty_requests", "Requests, by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "anyparty_request_seconds", "How long requests for predictions took.", ["path"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.ids = Counter(
            "anyparty_ids", "Ids that were asked for, by whether they got a number.", ["answer"],
            registry=self.registry,
        )  # fmt: skip
        self.parties = Counter(
            "anyparty_party_requests", "Requests that a party was to answer, and whether it did.", ["party", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.alone = Counter(
            "anyparty_own_block_only_ids", "Ids that were answered from the active party's own block alone.",
            registry=self.registry,
        )  # fmt: skip
        self.open = Gauge("anyparty_requests_open", "Requests that are worked on now.", registry=self.registry)
        for name in parties:
            for outcome in ("answered", "silent"):
                self.parties.labels(name, outcome)

    def told(self, told: Told) -> None:
        """Count what became of a request."""
        for name in told.answered:
            self.parties.labels(name, "answered").inc()
        for name in told.silent:
            self.parties.labels(name, "silent").inc()
        self.alone.inc(told.alone)

    def text(self) -> bytes:
        """Return all counters in Prometheus's own words."""
        return generate_latest(self.registry)
