"""Clients that connect and do not ask, or do not read: their connections are closed after a while.

The server knows a time-out between requests alone.  Without these, whoever opens connections and stops in mid-header,
in the middle of TLS's greeting, or before reading what was answered, takes the process its file descriptors, and asks
for no token.

The parser is h11, which takes headers of 16 KiB at most.  httptools, which the server would prefer where it is
installed, takes as many as come, before a token can be looked at.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyparty.serving.service_settings import Limits


class Patient(H11Protocol):
    """One client's connection."""

    limits: ClassVar[Limits] = Limits()
    _waits: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; or close at once, where there are too many."""
        super().connection_made(transport)
        # so that ``pause_writing`` tells of every answer that is not read; with TLS, 0 would stop all writing
        transport.set_write_buffer_limits(high=1, low=0)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting until the headers of a request are whole."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._done()
        elif self.cycle is None or self.cycle.response_complete:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._done()
        self._read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait until the client reads what it was sent."""
        super().pause_writing()
        self._look(None)

    def resume_writing(self) -> None:
        """It has read all."""
        self._read()
        super().resume_writing()

    def _look(self, before: int | None) -> None:
        """Close the connection if nothing was read since the last look, also one that is being closed."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.limits.body_s, self._look, left)

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None

    def _wait(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(self.limits.body_s, self.transport.abort)

    def _done(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
        self._waits = None


class Server(uvicorn.Server):
    """A server that waits ``limits.body_s`` for a client's part of TLS's greeting, too; asyncio's own limit is 60 s."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        """Prepare; ``run`` listens."""
        super().__init__(config)
        self.limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen: the server has no setting for that limit, so the loop is asked with it."""
        loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            within = functools.partial(loop.create_server, ssl_handshake_timeout=self.limits.body_s)
            loop.create_server = within  # type: ignore[method-assign]
        await super().startup(sockets)


def patient(limits: Limits) -> type[asyncio.Protocol]:
    """Return the protocol of a server that waits ``limits.body_s`` for headers, on ``limits.connections`` at most."""
    return type("Patient", (Patient,), {"limits": limits})
