"""Count requests, and check them before their body is parsed: client, host name, token, size, time and concurrency.

uvicorn and Starlette can also check host names and concurrency, but their error texts differ from this service's.
The checks in this module work with every ASGI server.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anyparty.serving.predictor import RequestOutcome
from anyparty.serving.service_settings import BearerTokens, ServiceLimits, is_loopback

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)


class _ConnectedParties(Collector):
    """A gauge of the connected parties, which is computed when Prometheus reads it."""

    def __init__(self, parties: Sequence[str], connected: Callable[[], set[str]]) -> None:
        self.parties, self.connected = parties, connected

    def collect(self) -> Iterable[Metric]:
        """Return the value 1 for each party that is connected now, and 0 for each party that is not."""
        family = GaugeMetricFamily("anyparty_party_connected", "Whether a party can be asked now.", labels=["party"])
        connected = self.connected()
        for name in self.parties:
            family.add_metric([name], float(name in connected))
        return [family]


class ServiceMetrics:
    """The Prometheus metrics of one prediction service."""

    def __init__(self, parties: Sequence[str], connected: Callable[[], set[str]]) -> None:
        """Start all counters at zero.

        Args:
            parties: all parties except the active one.
            connected: function that returns the parties that are connected now.

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
        self.overdue = Counter(
            "anyparty_requests_overdue", "Requests that waited in the service for longer than their budget.",
            registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "anyparty_connections_refused", "Connections that were closed at once, by the limit that was reached.",
            ["limit"], registry=self.registry,
        )  # fmt: skip
        for name in parties:
            for outcome in ("answered", "silent"):
                self.parties.labels(name, outcome)

    def count(self, outcome: RequestOutcome) -> None:
        """Add the outcome of a request to the counters."""
        for name in outcome.answered:
            self.parties.labels(name, "answered").inc()
        for name in outcome.silent:
            self.parties.labels(name, "silent").inc()
        self.own_only.inc(outcome.own_only)
        self.overdue.inc(outcome.overdue)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


PATHS = ("/predict", "/predict/batch", "/health", "/ready", "/metrics", "/about", "/openapi.json")
PREDICTION_PATHS = PATHS[:2]
OPEN_PATHS = ("/health",)  # paths that process monitors request without a token
ADMIN_PATHS = ("/health", "/ready", "/metrics")  # the only paths on the port for monitors
MAX_HEADER_BYTES = 16 << 10


class RequestRefused(Exception):  # noqa: N818 - it leads to an answer, so it is not named an error
    """An exception for a refused request; the client gets the exception's HTTP status and text."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class AdmissionMiddleware:
    """An ASGI middleware that checks each request, and answers a refused request with a status and one sentence."""

    def __init__(
        self, app: ASGIApp, *, limits: ServiceLimits, tokens: BearerTokens, metrics: ServiceMetrics,
        hosts: Sequence[str] = (), admin_ports: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Wrap an application.

        Args:
            app: the application.
            limits: limits of size, time and concurrency.
            tokens: accepted tokens; without tokens, no token is required.
            metrics: the counters to which requests are added.
            hosts: if not empty, only clients on this machine are admitted, and only under one of these host names.
            admin_ports: the ports on which only ``ADMIN_PATHS`` exist.

        """
        self.app, self.limits, self.tokens, self.metrics, self.open = app, limits, tokens, metrics, 0
        self.hosts, self.admin_ports = hosts, admin_ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path, status = time.perf_counter(), scope["path"] if scope["path"] in PATHS else "other", 500

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._admit(scope, receive, record_status)
        except RequestRefused as refused:
            headers = {**refused.headers, "connection": "close"}
            answer = JSONResponse({"error": str(refused)}, refused.status, headers)
            await answer(scope, receive, record_status)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            if path in PREDICTION_PATHS:
                self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        self._check_headers(scope, headers)
        self._check_client(scope, headers)
        if self.tokens and path not in OPEN_PATHS and not self.tokens.accepts(headers.get("authorization", "")):
            raise RequestRefused(401, "a token is required: send the header 'Authorization: Bearer TOKEN'",
                                 www_authenticate="Bearer")  # fmt: skip
        if path not in ADMIN_PATHS and (scope.get("server") or ("", None))[1] in self.admin_ports:
            raise RequestRefused(404, f"this port has only the paths {', '.join(ADMIN_PATHS)}")
        body = await self._read_body(path, headers, receive)
        if path not in PREDICTION_PATHS:
            await self.app(scope, _replay(body, receive), send)
            return
        self._check_delay(scope, path)
        if self.open >= self.limits.at_once:
            raise RequestRefused(503, f"{self.open} requests are open already; retry in a second", retry_after="1")
        self.open += 1
        self.metrics.open.inc()
        try:
            await self.app(scope, _replay(body, receive), send)
        finally:
            self.open -= 1
            self.metrics.open.dec()

    def _check_headers(self, scope: Scope, headers: Headers) -> None:
        """Refuse long headers, and a body whose end proxies and servers could see at different places."""
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        if size + sum(len(name) + len(value) + 4 for name, value in headers.raw) > MAX_HEADER_BYTES:
            raise RequestRefused(431, f"the headers are too long; they may have {MAX_HEADER_BYTES:,} bytes")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise RequestRefused(400, "a request has either the header Transfer-Encoding or Content-Length, not both")

    def _check_delay(self, scope: Scope, path: str) -> None:
        """Refuse a request that was read only after its time budget; store the time when the request arrived."""
        now, state = asyncio.get_running_loop().time(), scope.setdefault("state", {})
        waited_ms = 1e3 * (now - state.setdefault("arrived", now))
        if waited_ms > self.limits.wait_ms(path):
            self.metrics.overdue.inc()
            raise RequestRefused(503, f"the service is busy: the request waited {waited_ms:.0f} ms before it was read; "
                                      f"retry in a second", retry_after="1")  # fmt: skip

    def _check_client(self, scope: Scope, headers: Headers) -> None:
        """If ``hosts`` is set, refuse clients on other machines, and requests for host names that are not in ``hosts``.

        Without the check of host names, a web page could reach the service by letting its own host name point to this
        machine.
        """
        if not self.hosts:
            return
        client, *_ = scope.get("client") or [""]  # a client without an address uses a Unix socket on this machine
        if client and not is_loopback(client):
            raise RequestRefused(403, f"without a token this service answers its own machine only, and this request "
                                      f"comes from {client[:80]!r}; start it with a token to admit others")  # fmt: skip
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if name.lower() not in self.hosts:
            raise RequestRefused(400, f"the host name of this service is one of {', '.join(self.hosts)}, not "
                                      f"{name[:80]!r}")  # fmt: skip

    async def _read_body(self, path: str, headers: Headers, receive: Receive) -> bytes:
        """Return a request's body, which is read within the limits of size and time."""
        max_bytes, length = self.limits.max_bytes(path), headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > max_bytes:
            raise self._too_large(path)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                while len(body) <= max_bytes:
                    message: dict[str, Any] = dict(await receive())
                    if message["type"] == "http.disconnect":
                        raise RequestRefused(400, "the connection was closed before the request was complete")
                    body += message.get("body", b"")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RequestRefused(408, f"the request did not arrive within {self.limits.body_s:g} s") from None
        raise self._too_large(path)

    def _too_large(self, path: str) -> RequestRefused:
        ids, max_bytes = self.limits.max_ids(path), self.limits.max_bytes(path)
        batch = f" (POST /predict/batch takes {self.limits.batch_ids:,})" if path == "/predict" else ""
        return RequestRefused(413, f"the request is too large: {path} takes at most {ids:,} ids{batch} and "
                                   f"{max_bytes:,} bytes; send several requests")  # fmt: skip


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI ``receive`` function that first returns the whole ``body``, and then calls ``receive``."""
    replayed = False

    async def read() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read
