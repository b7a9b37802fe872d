"""Metrics of the prediction service, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anyparty.serving.predictor import RequestOutcome

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class _ConnectedParties(Collector):
    """A gauge whose values are computed when Prometheus reads them."""

    def __init__(self, parties: Sequence[str], connected: Callable[[], set[str]]) -> None:
        self.parties, self.connected = parties, connected

    def collect(self) -> Iterable[Metric]:
        """Return 1 for each party that can be asked now, 0 for the others."""
        family = GaugeMetricFamily("anyparty_party_connected", "Whether a party can be asked now.", labels=["party"])
        connected = self.connected()
        for name in self.parties:
            family.add_metric([name], float(name in connected))
        return [family]


class ServiceMetrics:
    """The counters of one service."""

    def __init__(self, parties: Sequence[str], connected: Callable[[], set[str]]) -> None:
        """Start all counters at zero.

        Args:
            parties: all parties except the active one.
            connected: returns the parties that can be asked now.

        """
        self.registry = CollectorRegistry()
        self.registry.register(_ConnectedParties(parties, connected))
        self.requests = Counter(
            "anyparty_requests", "Requests, by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "anyparty_request_seconds", "Duration of prediction requests.", ["path"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.ids = Counter(
            "anyparty_ids", "Requested ids, by whether they got a prediction.", ["answer"], registry=self.registry
        )
        self.parties = Counter(
            "anyparty_party_requests", "Requests that needed a party, by whether it answered.", ["party", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.own_only = Counter(
            "anyparty_own_block_only_ids", "Ids answered from the active party's block only.", registry=self.registry
        )
        self.open = Gauge("anyparty_requests_open", "Open prediction requests.", registry=self.registry)
        for name in parties:
            for outcome in ("answered", "silent"):
                self.parties.labels(name, outcome)

    def count(self, outcome: RequestOutcome) -> None:
        """Count the outcome of a request."""
        for name in outcome.answered:
            self.parties.labels(name, "answered").inc()
        for name in outcome.silent:
            self.parties.labels(name, "silent").inc()
        self.own_only.inc(outcome.own_only)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
