"""Check requests before their body is parsed: client address, host name, token, size and concurrency.

uvicorn and Starlette have settings for host names and concurrency, but with other error texts.  The checks here also
work with any other ASGI server.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anyparty.serving.service_metrics import ServiceMetrics
from anyparty.serving.service_settings import BearerTokens, ServiceLimits, is_loopback

PATHS = ("/predict", "/predict/batch", "/health", "/ready", "/metrics", "/about", "/openapi.json")
PREDICTION_PATHS = PATHS[:2]
OPEN_PATHS = ("/health",)  # process monitors need no token


class RequestRefused(Exception):  # noqa: N818 - an answer, not a failure
    """Raised to answer a request without passing it to the application."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class AdmissionMiddleware:
    """An ASGI middleware that refuses requests with a status and one sentence."""

    def __init__(
        self, app: ASGIApp, *, limits: ServiceLimits, tokens: BearerTokens, metrics: ServiceMetrics,
        hosts: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Wrap an application.

        Args:
            app: the application.
            limits: limits of size, time and concurrency.
            tokens: accepted tokens; without tokens, no token is required.
            metrics: counts requests.
            hosts: if not empty, only clients on this machine are admitted, and only under one of these host names.

        """
        self.app, self.limits, self.tokens, self.metrics, self.open = app, limits, tokens, metrics, 0
        self.hosts = hosts

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
        self._check_client(scope, headers)
        if self.tokens and path not in OPEN_PATHS and not self.tokens.accepts(headers.get("authorization", "")):
            raise RequestRefused(401, "a token is required: send the header 'Authorization: Bearer TOKEN'",
                                 www_authenticate="Bearer")  # fmt: skip
        body = await self._read_body(path, headers, receive)
        if path not in PREDICTION_PATHS:
            await self.app(scope, _replay(body, receive), send)
            return
        if self.open >= self.limits.at_once:
            raise RequestRefused(503, f"{self.open} requests are open already; retry in a second", retry_after="1")
        self.open += 1
        self.metrics.open.inc()
        try:
            await self.app(scope, _replay(body, receive), send)
        finally:
            self.open -= 1
            self.metrics.open.dec()

    def _check_client(self, scope: Scope, headers: Headers) -> None:
        """If ``hosts`` is set, refuse clients on other machines, and requests under other host names.

        A web page could otherwise reach the service under the page's own host name.
        """
        if not self.hosts:
            return
        client, *_ = scope.get("client") or [""]  # a client behind a Unix socket has no address, and is local
        if client and not is_loopback(client):
            raise RequestRefused(403, f"without a token this service answers its own machine only, and this request "
                                      f"comes from {client[:80]!r}; start it with a token to admit others")  # fmt: skip
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if name.lower() not in self.hosts:
            raise RequestRefused(400, f"the host name of this service is one of {', '.join(self.hosts)}, not "
                                      f"{name[:80]!r}")  # fmt: skip

    async def _read_body(self, path: str, headers: Headers, receive: Receive) -> bytes:
        """Read a request's body within the limits of size and time."""
        max_bytes, length = self.limits.max_bytes(path), headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > max_bytes:
            raise self._too_large(path)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                while len(body) <= max_bytes:
                    message: dict[str, Any] = dict(await receive())
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
    """Return an ASGI ``receive`` that replays the buffered body, then delegates."""
    replayed = False

    async def read() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read
