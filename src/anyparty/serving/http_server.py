"""Serve predictions over HTTP: load a model's folder, listen on a port, and limit connections.

uvicorn limits only the time between two requests.  Clients without a token could therefore exhaust the process's file
descriptors.  Such a client connects and then stops during the TLS handshake or within the headers, or it does not read
the answer.  ``LimitedProtocol`` and ``LimitedServer`` close such connections.  ``LimitedProtocol`` uses the parser h11,
which rejects headers above 16 KiB.  httptools, which uvicorn prefers if httptools is installed, has no such limit.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.serving.backends import KitLocation, StalenessCheck, in_process_peers, load_run, open_federation
from anyparty.serving.http_app import ServingBackend, build_app
from anyparty.serving.job_manager import JobDelays
from anyparty.serving.service_settings import BearerTokens, ServiceLimits, TlsFiles, check_clients_authenticate

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
log = logging.getLogger(__name__)


# ---- the ASGI application


def application(
    place: Path | str,
    *,
    limits: ServiceLimits | None = None,
    tokens: Sequence[str] | BearerTokens = (),
    tables: Mapping[str, Any] | None = None,
    config: Config | None = None,
    delays: JobDelays | None = None,
    say: Callable[[str], None] = log.warning,
    anywhere: bool = False,
    host: str = "127.0.0.1",
    allow_code: Sequence[str] = (),
) -> FastAPI:
    """Build the service as an ASGI application.

    Args:
        place: the folder of a run of ``anyparty train``; in a federation, the federation's folder or the active
            party's kit, which is the folder from which that party starts.
        limits: limits of requests.
        tokens: accepted bearer tokens; without tokens, only clients on this machine are admitted.
        tables: for each party, a file name or data frame that replaces the run's table; in a federation, only the
            active party's table can be replaced.
        config: settings of the federation, if its method or encoders are user code.
        delays: delays and timeouts of a federation's jobs.
        say: function that receives the text of a warning.
        anywhere: whether requests without a token are admitted from every machine and under every host name; set it
            only if the server requires client certificates.
        host: a host name or address under which requests without a token are admitted, in addition to
            ``LOCAL_HOSTS``.
        allow_code: modules that a run's settings may import, such as ``("my_methods",)``.

    Raises:
        ConfigError: the folder or a setting is invalid.
        ModelError: the model is missing or invalid.
        PredictionError: a table belongs to a party that the model does not have.
        TableError: a table is invalid.

    """
    path, accepted = Path(place), tokens if isinstance(tokens, BearerTokens) else BearerTokens.of(tokens)
    if (path / "config.toml").is_file() or (path / "model.json").is_file():
        staleness = StalenessCheck(path)
        predictor, others = load_run(path, tables, allow_code=allow_code)
        backend = ServingBackend(predictor=predictor, running=functools.partial(in_process_peers, predictor, others))
        warning = ""
    else:
        staleness = StalenessCheck(KitLocation.of(path).site.folder)
        backend, warning = open_federation(path, _own_table(path, tables), config, delays)
    if warning:
        say(warning)
    limits, connect = limits or ServiceLimits(), backend.running

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with connect(), staleness.watch(say):
            yield

    backend = replace(backend, running=running, staleness=staleness)
    backend.predictor.min_wait_s = limits.min_wait_s
    # Without tokens, only known host names are admitted: a web page can let its own host name point to this machine.
    hosts = dict.fromkeys([*LOCAL_HOSTS, f"[{host}]" if ":" in host else host.lower()])
    return build_app(backend, limits=limits, tokens=accepted, hosts=() if accepted or anywhere else tuple(hosts))


def _own_table(path: Path, tables: Mapping[str, Any] | None) -> Any:
    """Return the active party's table; ``None`` if ``tables`` is empty."""
    if not tables:
        return None
    active = KitLocation.of(path).site.party
    for name in tables:
        if name != active:
            raise ConfigError(f"--table {name}=...: in a federation each party names its table in its own settings; "
                              f"here only the table of {active!r} can be given")  # fmt: skip
    return tables[active]


# ---- the server


def serve(
    place: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: ServiceLimits | None = None,
    tokens: Sequence[str] | BearerTokens = (),
    tls: TlsFiles | None = None,
    tables: Mapping[str, Any] | None = None,
    config: Config | None = None,
    threads: int = 1,
    say: Callable[[str], None] = print,
    allow_code: Sequence[str] = (),
) -> None:
    """Serve predictions until Ctrl-C.

    Args:
        place: the folder of a run, of a federation or of the active party, as in ``application``.
        host: the address to listen on.
        port: the port to listen on; 0 selects a free port.
        limits: limits of requests and connections.
        tokens: accepted bearer tokens; without tokens, only clients on this machine are admitted.
        tls: certificates of the service and, optionally, a CA for client certificates.
        tables: for each party, a table that replaces the stored one, as in ``application``.
        config: settings of the federation, if its method or encoders are user code.
        threads: number of PyTorch threads; one is fastest for a few ids.
        say: function that receives the service's address and the texts of warnings.
        allow_code: modules that a run's settings may import, such as ``("my_methods",)``.

    Raises:
        ConfigError: the port is in use, other machines could send requests without authentication, or a certificate
            is invalid.
        ModelError: the model is missing or invalid.
        PredictionError: a table belongs to a party that the model does not have.
        TableError: a table is invalid.

    """
    accepted = tokens if isinstance(tokens, BearerTokens) else BearerTokens.of(tokens)
    check_clients_authenticate(host, accepted, tls)
    torch.set_num_threads(threads)
    app = application(
        place, limits=limits, tokens=accepted, tables=tables, config=config, say=say, host=host,
        anywhere=tls is not None and tls.client_ca is not None, allow_code=allow_code,
    )  # fmt: skip
    limits = limits or ServiceLimits()
    server = LimitedServer(uvicorn_config(app, tls, limits), limits)
    if app.state.check is not None:
        asyncio.run(app.state.check())
    with listening_socket(host, port) as listener:
        address = listener.getsockname()
        name = f"[{address[0]}]" if ":" in address[0] else address[0]
        say(f"Serving on {'https' if tls else 'http'}://{name}:{address[1]} "
            f"(predictions: POST /predict; stop: Ctrl-C)")  # fmt: skip
        server.run(sockets=[listener])


def uvicorn_config(app: FastAPI, tls: TlsFiles | None, limits: ServiceLimits) -> uvicorn.Config:
    """Return uvicorn's configuration for the application, with the TLS files and the limits.

    A shutdown waits for open requests at most two seconds longer than the longest time budget of a request.

    Raises:
        ConfigError: a certificate is invalid.
    """
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        if tls.client_ca is not None:
            files |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        app, http=limited_protocol(limits), lifespan="on", log_level="warning", access_log=False, server_header=False,
        ws="none", timeout_graceful_shutdown=math.ceil(limits.most_budget_ms / 1000) + 1, **files,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: the certificate, its key or the CA cannot be used ({error})") from None
    return config


def listening_socket(host: str, port: int) -> socket.socket:
    """Open a socket that listens on ``host`` and ``port``.

    Raises:
        ConfigError: ``host`` is not an address of this machine, or the port is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sets TCP_NODELAY only if IPPROTO_TCP is given. Without TCP_NODELAY, answers are delayed by 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({_reason(error)}); free the port, or choose another with "
                          f"--port") from None  # fmt: skip
    return listener


def _reason(error: OSError) -> str:
    known = error.errno is not None and not isinstance(error, socket.gaierror)
    return os.strerror(error.errno) if known and error.errno else str(error.strerror or error)


# ---- limits on connections


class LimitedProtocol(H11Protocol):
    """A connection that is closed if the client sends no complete headers, or reads nothing, for ``body_s`` seconds."""

    limits: ClassVar[ServiceLimits] = ServiceLimits()
    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the headers, or close the connection if too many connections are open."""
        super().connection_made(transport)
        # high=1: the transport calls ``pause_writing`` for every unread answer; with TLS, high=0 would block all writes
        transport.set_write_buffer_limits(high=1, low=0)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the header timer when a request's headers are complete; start it again for the next request."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_header_timer()
        elif self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both timers."""
        self._stop_header_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the read timer, because the client has not yet read all of the answer."""
        super().pause_writing()
        self._check_progress(None)

    def resume_writing(self) -> None:
        """Stop the read timer, because the client has read the answer."""
        self._stop_read_timer()
        super().resume_writing()

    def _check_progress(self, before: int | None) -> None:
        """Abort the connection, even a closing one, if the client has read nothing since the last check.

        ``before`` is the number of unread bytes at the last check; ``None`` at the first check.
        """
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before:
            self.transport.abort()
        else:
            self._read_timer = self.loop.call_later(self.limits.body_s, self._check_progress, unread)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._read_timer = None

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.body_s, self.transport.abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        self._header_timer = None


def limited_protocol(limits: ServiceLimits) -> type[asyncio.Protocol]:
    """Return a subclass of ``LimitedProtocol`` with the given limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


class LimitedServer(uvicorn.Server):
    """A server that limits a TLS handshake to ``limits.body_s`` seconds; asyncio's default is 60."""

    def __init__(self, config: uvicorn.Config, limits: ServiceLimits) -> None:
        """Store the limits; the server does not listen before ``run``."""
        super().__init__(config)
        self.limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and limit the time of TLS handshakes on the event loop.

        uvicorn has no setting for this limit.
        """
        loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            create_server = functools.partial(loop.create_server, ssl_handshake_timeout=self.limits.body_s)
            loop.create_server = create_server  # type: ignore[method-assign]
        await super().startup(sockets)
