"""From a folder to a service that listens."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI

from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.serving.connection import Server, patient
from anyparty.serving.federation_backend import Place, open_house
from anyparty.serving.http_app import Served, build
from anyparty.serving.job_manager import Pauses
from anyparty.serving.local_backend import answering, open_run
from anyparty.serving.service_settings import Certificates, Limits, Tokens, check_open_to
from anyparty.serving.staleness import Newer

HERE = ("127.0.0.1", "localhost", "[::1]")
log = logging.getLogger(__name__)


def application(
    place: Path | str,
    *,
    limits: Limits | None = None,
    tokens: Sequence[str] | Tokens = (),
    tables: Mapping[str, Any] | None = None,
    config: Config | None = None,
    pauses: Pauses | None = None,
    say: Callable[[str], None] = log.warning,
    anywhere: bool = False,
    host: str = "127.0.0.1",
    allow_code: Sequence[str] = (),
) -> FastAPI:
    """Return the service as an ASGI application.

    Args:
        place: a run of ``anyparty train``; a federation's folder at the active party's machine, or its kit.
        limits: what a request may ask.
        tokens: the bearer tokens that are let in; none lets in everybody on this machine.
        tables: by party, a file name or data frame, instead of those of the run; in a federation the active party's.
        config: a federation's settings, if its method or encoders are of the user's own making.
        pauses: how long to wait for jobs, in a federation.
        say: takes what is to be said of the folder.
        anywhere: let in requests without a token wherever they come from, and whatever name they call this machine by:
            who is let in has been seen to otherwise, by certificates.
        host: the name or address of this machine that is listened on: without a token, requests go by it, too.
        allow_code: modules that a run's settings may load, such as ``("my_methods",)``.

    Raises:
        ConfigError, ModelError, PredictionError, TableError: see ``anyparty.errors``.

    """
    path, let_in = Path(place), tokens if isinstance(tokens, Tokens) else Tokens.of(tokens)
    if (path / "config.toml").is_file() or (path / "model.json").is_file():
        newer = Newer(path)
        service, others = open_run(path, tables, allow_code=allow_code)

        @asynccontextmanager
        async def around() -> AsyncIterator[None]:
            async with answering(service, others):
                yield

        served, remark = Served(service=service, around=around), ""
    else:
        newer = Newer(Place.of(path).site.folder)
        served, remark = open_house(path, _own(path, tables), config, pauses)
    if remark:
        say(remark)
    limits, reach = limits or Limits(), served.around

    @asynccontextmanager
    async def watched() -> AsyncIterator[None]:
        async with reach(), newer.told(say):
            yield

    served = replace(served, around=watched, newer=newer)
    served.service.fair_s = limits.fair_s
    # without a token nobody may ask from elsewhere, and no web page under a name of its own
    names = dict.fromkeys([*HERE, f"[{host}]" if ":" in host else host.lower()])
    return build(served, limits=limits, tokens=let_in, hosts=() if let_in or anywhere else tuple(names))


def _own(path: Path, tables: Mapping[str, Any] | None) -> Any:
    """Return the active party's table as it is now, if it is given."""
    if not tables:
        return None
    active = Place.of(path).site.party
    for name in tables:
        if name != active:
            raise ConfigError(f"--table {name}=...: in a federation every party names its own table at home; "
                              f"here only that of {active!r} can be given")  # fmt: skip
    return tables[active]


def serve(
    place: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: Limits | None = None,
    tokens: Sequence[str] | Tokens = (),
    tls: Certificates | None = None,
    tables: Mapping[str, Any] | None = None,
    config: Config | None = None,
    threads: int = 1,
    say: Callable[[str], None] = print,
    allow_code: Sequence[str] = (),
) -> None:
    """Serve predictions until Ctrl-C.

    Args:
        place: as ``application`` takes it, and so are limits, tokens, tables and config.
        host: where to listen.
        port: where to listen; 0 takes a free one.
        limits: see there.
        tokens: see there.
        tls: certificates, also of clients.
        tables: see there.
        config: see there.
        threads: how many PyTorch may use: one is quickest for a few ids.
        say: takes sentences about what is served.
        allow_code: see there.

    Raises:
        ConfigError: the port is in use, strangers could ask, or a certificate cannot be read.
        ModelError, PredictionError, TableError: see ``anyparty.errors``.

    """
    let_in = tokens if isinstance(tokens, Tokens) else Tokens.of(tokens)
    check_open_to(host, let_in, tls)
    torch.set_num_threads(threads)
    app = application(
        place, limits=limits, tokens=let_in, tables=tables, config=config, say=say, host=host,
        anywhere=tls is not None and tls.client_ca is not None, allow_code=allow_code,
    )  # fmt: skip
    limits = limits or Limits()
    server = Server(_settings(app, tls, limits), limits)
    if app.state.check is not None:
        asyncio.run(app.state.check())
    with listening(host, port) as door:
        at = door.getsockname()
        say(f"Serving on {'https' if tls else 'http'}://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]} "
            f"(predictions: POST /predict; stop: Ctrl-C)")  # fmt: skip
        server.run(sockets=[door])


def _settings(app: FastAPI, tls: Certificates | None, limits: Limits) -> uvicorn.Config:
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        if tls.client_ca is not None:
            files |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    open_s = math.ceil(limits.most_budget_ms / 1000) + 1  # by then every open request has its answer
    settings = uvicorn.Config(
        app, http=patient(limits), lifespan="on", log_level="warning", access_log=False, server_header=False, ws="none",
        timeout_graceful_shutdown=open_s, **files,
    )  # fmt: skip
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: the certificate, its key or the authority cannot be used ({error})") from None
    return settings


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        ConfigError: the host is not this machine's, or the port is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # the protocol is named, so that asyncio sees TCP and sends at once: else an answer waits 40 ms for a receipt
        door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
            door.listen(128)
        except OSError:
            door.close()
            raise
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be listened on ({_reason(error)}); free the port, or name "
                          f"another with --port") from None  # fmt: skip
    return door


def _reason(error: OSError) -> str:
    known = error.errno is not None and not isinstance(error, socket.gaierror)
    return os.strerror(error.errno) if known and error.errno else str(error.strerror or error)
