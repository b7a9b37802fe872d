"""Serve predictions over HTTP: load a model's folder, listen on a port, and limit connections.

uvicorn limits only the time between two requests.  Clients without a token could therefore exhaust the process's file
descriptors.  Such a client connects and then stops during the TLS handshake or within the headers, or it does not read
the answer.  ``LimitedProtocol`` and ``LimitedServer`` close such connections.  ``LimitedProtocol`` uses the parser h11,
which does not buffer more than 16 KiB of headers.  httptools, which uvicorn prefers if httptools is installed, has no
such limit.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import uvicorn
from fastapi import FastAPI
from prometheus_client import Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.serving.admission_middleware import ADMIN_PATHS
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
    needs_parties: bool = False,
    admin_ports: Collection[int] = (),
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
        needs_parties: whether /ready has status 503 while no other party is connected.
        admin_ports: ports on which only the paths for monitors exist: /health, /ready and /metrics.

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

    backend = replace(backend, running=running, staleness=staleness, needs_parties=needs_parties)
    backend.predictor.min_wait_s = limits.min_wait_s
    # Without tokens, only known host names are admitted: a web page can let its own host name point to this machine.
    hosts = dict.fromkeys([*LOCAL_HOSTS, f"[{host}]" if ":" in host else host.lower()])
    admitted = () if accepted or anywhere else tuple(hosts)
    return build_app(backend, limits=limits, tokens=accepted, hosts=admitted, admin_ports=admin_ports)


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
    admin_port: int | None = None,
    needs_parties: bool = False,
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
        admin_port: a second port, for monitors, with only /health, /ready and /metrics; clients that use up all
            connections to ``port`` do not affect it.
        needs_parties: whether /ready has status 503 while no other party is connected.

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
    admin_ports: list[int] = []
    app = application(
        place, limits=limits, tokens=accepted, tables=tables, config=config, say=say, host=host,
        anywhere=tls is not None and tls.client_ca is not None, allow_code=allow_code, needs_parties=needs_parties,
        admin_ports=admin_ports,
    )  # fmt: skip
    limits = limits or ServiceLimits()
    counter = ConnectionCounter(limits, admin_ports, app.state.metrics.refused)
    server = LimitedServer(uvicorn_config(app, tls, limits, counter), limits)
    if app.state.check is not None:
        asyncio.run(app.state.check())
    with ExitStack() as sockets:
        names = [port] if admin_port is None else [port, admin_port]
        listeners = [sockets.enter_context(listening_socket(host, each)) for each in names]
        urls = [f"{'https' if tls else 'http'}://{_authority(listener)}" for listener in listeners]
        admin_ports += [listener.getsockname()[1] for listener in listeners[1:]]
        say(f"Serving on {urls[0]} (predictions: POST /predict; stop: Ctrl-C)")
        for url in urls[1:]:
            say(f"For monitors: {url} ({', '.join(ADMIN_PATHS)})")
        gc.collect()
        gc.freeze()  # the loaded packages and the model are not searched for garbage again, which would take 0.3 s
        server.run(sockets=listeners)


def _authority(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


SHUTDOWN_S = 5  # seconds that a shutdown waits for open requests; Docker kills a process 10 seconds after SIGTERM


def uvicorn_config(
    app: FastAPI, tls: TlsFiles | None, limits: ServiceLimits, counter: ConnectionCounter | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration for the application, with the TLS files, the limits and the connection counter.

    A shutdown waits for open requests for at most ``SHUTDOWN_S`` seconds.

    Raises:
        ConfigError: a certificate is invalid.
    """
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        if tls.client_ca is not None:
            files |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        app, http=limited_protocol(limits, counter), lifespan="on", log_level="warning", access_log=False,
        server_header=False, ws="none", timeout_graceful_shutdown=SHUTDOWN_S, **files,
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


REPORT_EVERY_S = 60.0  # shortest time between two warnings about refused connections


class ConnectionCounter:
    """A counter of open connections, in all and by address, which refuses connections above the limits."""

    def __init__(
        self, limits: ServiceLimits, admin_ports: Collection[int] = (), refused: Counter | None = None
    ) -> None:
        """Start with no open connection.

        Args:
            limits: the limits on connections.
            admin_ports: the ports for monitors, which have a limit of their own.
            refused: the metric that counts refused connections, by limit.

        """
        self.limits, self.admin_ports, self.refused = limits, admin_ports, refused
        self._open: dict[str, list[asyncio.Transport]] = {}
        self._unreported, self._next_report = 0, 0.0

    def add(self, transport: asyncio.Transport) -> None:
        """Count a new connection, or close it if a limit is reached."""
        limits, name = self.limits, self._name(transport)
        same = self._open.setdefault(name, [])
        if name == "admin" and len(same) >= limits.admin_connections:
            self._refuse("admin", same.pop(0), name)
        elif name != "admin" and len(same) >= limits.client_connections:
            self._refuse("client", transport, name)
            return
        elif name != "admin" and self._total() >= limits.connections:
            self._refuse("all", transport, name)
            return
        same.append(transport)

    def discard(self, transport: asyncio.Transport) -> None:
        """Count a closed connection; a connection that was refused is ignored."""
        name = self._name(transport)
        same = self._open.get(name, [])
        if transport in same:
            same.remove(transport)
        if not same:
            self._open.pop(name, None)

    def _total(self) -> int:
        return sum(len(each) for name, each in self._open.items() if name != "admin")

    def _name(self, transport: asyncio.Transport) -> str:
        """Return "admin" for a connection to a port for monitors, else the client's address."""
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if isinstance(here, tuple) and here[1] in self.admin_ports:
            return "admin"
        return str(there[0]) if isinstance(there, tuple) else ""

    def _refuse(self, limit: str, transport: asyncio.Transport, name: str) -> None:
        transport.abort()
        if self.refused is not None:
            self.refused.labels(limit).inc()
        self._unreported += 1
        if (now := time.monotonic()) >= self._next_report:
            log.warning("closed %d connections since the last report, because too many were open: the last one came "
                        "from %s, limit %r", self._unreported, name, limit)  # fmt: skip
            self._unreported, self._next_report = 0, now + REPORT_EVERY_S


class LimitedProtocol(H11Protocol):
    """A connection that is closed if the client sends no complete headers, or reads nothing, for ``body_s`` seconds."""

    limits: ClassVar[ServiceLimits] = ServiceLimits()
    counter: ClassVar[ConnectionCounter]
    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the headers, or close the connection if too many connections are open."""
        super().connection_made(transport)
        # high=1: the transport calls ``pause_writing`` for every unread answer; with TLS, high=0 would block all writes
        transport.set_write_buffer_limits(high=1, low=0)
        self.counter.add(transport)
        if not transport.is_closing():
            self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the header timer when a request's headers are complete; start it again for the next request."""
        before, in_body = self.cycle, self.cycle is not None and self.cycle.more_body
        super().data_received(data)
        if self.cycle is not before:
            self._stop_header_timer()
        elif self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()
        if self.cycle is not None and (self.cycle is not before or in_body):
            self.cycle.scope["state"]["arrived"] = self.loop.time()  # the time budget begins with the last piece

    def shutdown(self) -> None:
        """Close the connection when the server stops; a request whose body is incomplete is not answered."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
            self.transport.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both timers."""
        self.counter.discard(self.transport)
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


def limited_protocol(limits: ServiceLimits, counter: ConnectionCounter | None = None) -> type[asyncio.Protocol]:
    """Return a subclass of ``LimitedProtocol`` with the given limits; ``counter`` counts its connections."""
    counter = counter or ConnectionCounter(limits)
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits, "counter": counter})


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
