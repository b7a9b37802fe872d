"""Clients that connect and do not ask: a connection without a whole request is closed after a while.

The server knows a time-out between requests alone.  Without this one, whoever opens connections and stops in mid-header
takes the process its file descriptors, and asks for no token.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from anyparty.serve.limits import Limits

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Base
else:
    Base = AutoHTTPProtocol


class Patient(Base):
    """One client's connection."""

    limits: ClassVar[Limits] = Limits()
    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; or close at once, where there are too many."""
        super().connection_made(transport)
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
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(self.limits.body_s, self.transport.abort)

    def _done(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
        self._waits = None


def patient(limits: Limits) -> type[asyncio.Protocol]:
    """Return the protocol of a server that waits ``limits.body_s`` for headers, on ``limits.connections`` at most."""
    return type("Patient", (Patient,), {"limits": limits})
