"""The prediction service at the active party (extra ``serve``): ids in, answers with their provenance out, in time.

start        from a folder to a service that listens: ``serve``, ``application``
app, words   paths over HTTP, what they take and answer; gate, limits: who may ask, and how much; meter: what is counted
service      ids to answers, with whoever is there; breaker: whom to wait for; answers: with their provenance
kept         what a party kept of training, made ready to predict; which ids the active party knows
ask, lanes   what parties say to each other: numbered requests with deadlines; link: all parties, as a job reaches them
home         a party's part in a job of work "serve"
worker       where requests of many rows are computed, so that others need not wait for them
together     a run of one team's own data, all parties in one process
apart, jobs  a federation: keeps a job running with all that are connected (desk)
bridge       the local socket over which a federation's jobs are reached; frames: what goes over it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.errors import needing

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["application", "serve"]


def _start() -> Any:
    with needing("serve", "the prediction service"):
        from anyparty.serving import http_server as start  # noqa: PLC0415 - an extra
    return start


def application(place: Path | str, **settings: Any) -> FastAPI:
    """Return the service as an ASGI application: see ``anyparty.serving.http_server.application``."""
    app: FastAPI = _start().application(place, **settings)
    return app


def serve(place: Path | str, **settings: Any) -> None:
    """Serve predictions until Ctrl-C: see ``anyparty.serving.http_server.serve``."""
    _start().serve(place, **settings)
