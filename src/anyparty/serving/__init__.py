"""The prediction service at the active party (extra ``serve``): predictions by id over HTTP, with provenance.

Training, transport between machines and file formats belong to other packages.  In a federation, the parties answer the
service's requests in a *serving job*, which is a job of NVIDIA FLARE.

http_server           ``serve`` and ``application``: load a model's folder, and listen on a port.
http_app              paths, requests and answers of the HTTP service.
admission_middleware  checks client, token and size of each request, and limits concurrency; metrics for Prometheus.
service_settings      limits of the service, bearer tokens and TLS files.
backends              load a run with all parties in one process, or a federation; detect that the model was replaced.
predictor             predicts rows by id with the connected parties.
loaded_party          a party's part of the model and its rows, ready to predict.
serving_protocol      messages between the parties, and many numbered requests with deadlines over one channel.
peer_group            the active party's connections to the other parties; a circuit breaker for slow parties.
responder             a passive party's side of a serving job; counts of the messages that a party sends.
batch_executor        a thread for requests of many rows.
job_manager           keeps a serving job running in a federation.
ipc                   connects the service to the active party's process in a serving job.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.errors import needing

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["application", "serve"]


def _server() -> Any:
    with needing("serve", "the prediction service"):
        from anyparty.serving import http_server  # noqa: PLC0415 - needs the extra "serve"
    return http_server


def application(place: Path | str, **settings: Any) -> FastAPI:
    """Build the prediction service of the model in a folder, as an ASGI application.

    ``anyparty.serving.http_server.application`` describes the keyword arguments in ``settings``.
    """
    app: FastAPI = _server().application(place, **settings)
    return app


def serve(place: Path | str, **settings: Any) -> None:
    """Serve predictions of the model in a folder over HTTP, until Ctrl-C.

    ``anyparty.serving.http_server.serve`` describes the keyword arguments in ``settings``.
    """
    _server().serve(place, **settings)
