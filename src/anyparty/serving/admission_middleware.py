"""What stands before the service: who may ask, how much, how many at once.  Nothing is parsed before that is said."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anyparty.serving.service_metrics import Meter
from anyparty.serving.service_settings import Limits, Tokens, loopback

PATHS = ("/predict", "/predict/batch", "/health", "/ready", "/metrics", "/about", "/openapi.json")
PREDICTS = PATHS[:2]
OPEN = ("/health",)  # whoever watches over processes needs no token


class Refused(Exception):  # noqa: N818 - not a failure: an answer
    """A request is answered without being looked at any further."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class Gate:
    """An ASGI application around the service's own."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, tokens: Tokens, meter: Meter, hosts: Sequence[str] = ()
    ) -> None:
        """Stand before ``app``: for clients on this machine that call it by one of ``hosts``; without any, for all."""
        self.app, self.limits, self.tokens, self.meter, self.inside = app, limits, tokens, meter, 0
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it with a sentence."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path, status = time.perf_counter(), scope["path"] if scope["path"] in PATHS else "other", 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._let_in(scope, receive, noted)
        except Refused as refused:
            answer = JSONResponse({"error": str(refused)}, refused.status, {**refused.headers, "connection": "close"})
            await answer(scope, receive, noted)
        finally:
            self.meter.requests.labels(path, str(status)).inc()
            if path in PREDICTS:
                self.meter.seconds.labels(path).observe(time.perf_counter() - began)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        client, *_ = scope.get("client") or [""]  # empty behind a unix socket, which is of this machine
        if self.hosts and client and not loopback(client):
            raise Refused(403, f"without a token this service answers its own machine alone, and this request comes "
                               f"from {client[:80]!r}; start it with a token to let others ask")  # fmt: skip
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if self.hosts and name.lower() not in self.hosts:
            raise Refused(400, f"this service goes by {' and '.join(self.hosts)}, not by the host {name[:80]!r}")
        if self.tokens and path not in OPEN and not self.tokens.let_in(headers.get("authorization", "")):
            raise Refused(401, "show a token: the header 'Authorization: Bearer TOKEN'", www_authenticate="Bearer")
        body = await self._body(path, headers, receive)
        if path not in PREDICTS:
            await self.app(scope, _again(body, receive), send)
            return
        if self.inside >= self.limits.at_once:
            raise Refused(503, f"{self.inside} requests are worked on already; ask again in a second", retry_after="1")
        self.inside += 1
        self.meter.open.inc()
        try:
            await self.app(scope, _again(body, receive), send)
        finally:
            self.inside -= 1
            self.meter.open.dec()

    async def _body(self, path: str, headers: Headers, receive: Receive) -> bytes:
        """Read a request's body, but never more than its limit."""
        most, said = self.limits.most_bytes(path), headers.get("content-length", "0")
        if not (said.isascii() and said.isdecimal()) or int(said) > most:
            raise self._too_large(path)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                while len(body) <= most:
                    message: dict[str, Any] = dict(await receive())
                    body += message.get("body", b"")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refused(408, f"the request did not arrive whole within {self.limits.body_s:g} s") from None
        raise self._too_large(path)

    def _too_large(self, path: str) -> Refused:
        ids, most = self.limits.most_ids(path), self.limits.most_bytes(path)
        more = f" (POST /predict/batch takes {self.limits.batch_ids:,})" if path == "/predict" else ""
        return Refused(413, f"the request is too large: {path} takes at most {ids:,} ids{more} and {most:,} bytes; "
                            f"send them in several requests")  # fmt: skip


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then whatever else comes."""
    given = False

    async def read() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read
