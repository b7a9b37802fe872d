"""The prediction service at the active party (extra ``serve``): predictions by id over HTTP, with provenance.

Training, transport between machines and file formats belong to other packages.

http_server             ``serve`` and ``application``: load a model's folder and listen.
http_app, http_schemas  paths, requests and answers.
admission_middleware    checks of client, token, size and concurrency; limits and tokens are in service_settings.
service_metrics         metrics for Prometheus.
predictor               predicts ids with the connected parties; circuit_breaker decides which parties to wait for.
loaded_party            a party's part of the model and its rows, ready to predict.
serving_protocol        the service's messages.
multiplexer             many numbered requests with deadlines over one channel.
peer_group              the other parties on one channel.
responder               a passive party's part in a serving job.
batch_executor          a thread for requests of many rows.
local_backend           serves a run with all parties in one process.
federation_backend      serves a federation.
job_manager, ipc        keep a serving job running, and connect the service to the job.
traffic_log             counts the messages that a party sends while it serves.
staleness               detects that the model on disk was replaced.
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
        from anyparty.serving import http_server  # noqa: PLC0415 - an extra
    return http_server


def application(place: Path | str, **settings: Any) -> FastAPI:
    """Build the service as an ASGI application; see ``anyparty.serving.http_server.application``."""
    app: FastAPI = _server().application(place, **settings)
    return app


def serve(place: Path | str, **settings: Any) -> None:
    """Serve predictions until Ctrl-C; see ``anyparty.serving.http_server.serve``."""
    _server().serve(place, **settings)
