"""The service over HTTP: paths, what they take and answer, and every refusal as a sentence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException

import anyparty
from anyparty.errors import AnypartyError, UserError
from anyparty.serving.admission_middleware import Gate
from anyparty.serving.http_schemas import MOST_SAID, REFUSALS, About, Answers, Health, Ready, Wanted, sentence
from anyparty.serving.peer_group import ABSENT
from anyparty.serving.predictor import Service
from anyparty.serving.service_metrics import Meter
from anyparty.serving.service_settings import Limits, Tokens

ABOUT = """Predictions at the active party of a federation.

Ids in; for each id the probabilities of the classes (or the number), and where they come from: which parties took part,
which were asked, which were silent and why. Parties that do not answer within the time budget are left out and named.
An id that the service does not know gets no number, and a reason."""

Around = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an application serves.

    Attributes:
        service: what answers.
        around: entered before the first request, left after the last: what reaches the other parties.
        trouble: says why other parties cannot be reached by way of the federation; empty while they can.
        check: raises what is in the way of a start, before anything is announced.
        newer: says that the model on disk is another by now; empty while it is not.

    """

    service: Service
    around: Around
    trouble: Callable[[], str] = str
    check: Callable[[], Coroutine[Any, Any, None]] | None = None
    newer: Callable[[], str] = str


def build(served: Served, *, limits: Limits, tokens: Tokens, hosts: Sequence[str] = ()) -> FastAPI:
    """Return the application; see ``Gate`` for who is let in."""
    service = served.service
    roster, me = service.kept.roster, service.kept.me
    meter = Meter([name for name in roster.names if name != me], service.there)
    service.told = meter.told

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with served.around():
            yield

    app = FastAPI(
        title=f"anyparty: {me}", description=ABOUT, version=anyparty.__version__, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # their pages load programs from elsewhere
    )  # fmt: skip
    app.state.service, app.state.check = service, served.check
    app.include_router(_predictions(service, limits, meter))
    app.include_router(_state(served, limits, meter))
    app.add_middleware(Gate, limits=limits, tokens=tokens, meter=meter, hosts=hosts)
    _refusals(app)
    return app


def _predictions(service: Service, limits: Limits, meter: Meter) -> APIRouter:
    router = APIRouter(tags=["predictions"], responses=REFUSALS)

    async def answer(wanted: Wanted, path: str, budget_ms: float) -> Response:
        asked_ms = budget_ms if wanted.budget_ms is None else wanted.budget_ms
        most = limits.most_ids(path)
        if len(wanted.ids) > most:
            raise HTTPException(413, f"{len(wanted.ids):,} ids in one request; {path} takes at most {most:,}")
        if asked_ms > limits.most_budget_ms:
            raise HTTPException(422, f"budget_ms is {asked_ms:g}, expected at most {limits.most_budget_ms:g}")
        said = await service.predict(wanted.ids, wanted.parties, budget_s=asked_ms / 1e3)
        for each in said:
            meter.ids.labels("none" if each.prediction is None else "number").inc()
        return Response(_json({"answers": [vars(each) for each in said]}), media_type="application/json")

    @router.post("/predict", response_model=Answers, summary="Predict a few ids within a short time")
    async def predict(wanted: Wanted) -> Response:
        """Answer for each id, in order, within the budget (by default the service's own, see /about)."""
        return await answer(wanted, "/predict", limits.budget_ms)

    @router.post("/predict/batch", response_model=Answers, summary="Predict many ids")
    async def batch(wanted: Wanted) -> Response:
        """Answer as /predict does, for many ids at once and with a longer budget."""
        return await answer(wanted, "/predict/batch", limits.batch_budget_ms)

    return router


def _json(value: dict[str, Any]) -> bytes:
    """Return JSON, also of ids that are no Unicode: half a letter goes back escaped, as it was asked."""
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value).encode()


def _state(served: Served, limits: Limits, meter: Meter) -> APIRouter:
    router, service, kept = APIRouter(tags=["state"]), served.service, served.service.kept
    denied: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (401, 403)}
    roster = kept.roster

    @router.get("/health", summary="Whether the process lives; needs no token")
    async def health() -> Health:
        return Health(status="alive")

    @router.get("/ready", responses=denied, summary="Whom an answer could come from now")
    async def ready() -> Ready:
        """Ready as soon as the process answers: with nobody else there, from the active party's own block."""
        link = service.link()
        why = {name: link.why_not(name) if link else ABSENT for name in roster.names if name != kept.me}
        parties = {name: reason or "connected" for name, reason in why.items()}
        return Ready(status="ready", parties=parties, federation=served.trouble(), model=served.newer())

    @router.get("/about", responses=denied, summary="What is served")
    async def about() -> About:
        task = kept.about.task
        assert task is not None
        return About(
            version=anyparty.__version__, method=kept.about.method or {"name": "the user's own"},
            title=kept.method.can.title, active=kept.me, parties=list(roster.blocks), task=task.kind,
            classes=list(task.classes), limits=asdict(limits),
            fingerprints=kept.fingerprints,
        )  # fmt: skip

    @router.get("/metrics", responses=denied, response_class=PlainTextResponse, summary="Counters for Prometheus")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(meter.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def _refusals(app: FastAPI) -> None:
    """Answer every error with one sentence."""

    def says(status: Callable[[Any], int], words: Callable[[Any], str]) -> Callable[[Request, Any], Awaitable[Any]]:
        async def refuse(_: Request, error: Any) -> JSONResponse:
            return JSONResponse({"error": words(error)}, status(error))

        return refuse

    def status_of(error: RequestValidationError) -> int:
        return 400 if error.errors()[0]["type"] == "json_invalid" else 422

    app.add_exception_handler(RequestValidationError, says(status_of, sentence))

    def words_of(error: HTTPException) -> str:
        unread = error.status_code == 400 and "parsing the body" in error.detail
        return "the request is not JSON in UTF-8" if unread else str(error.detail)

    app.add_exception_handler(HTTPException, says(lambda error: error.status_code, words_of))
    app.add_exception_handler(UserError, says(lambda _: 400, lambda error: str(error)[:MOST_SAID]))
    app.add_exception_handler(AnypartyError, says(lambda _: 500, str))
    app.add_exception_handler(
        Exception, says(lambda _: 500, lambda _: "a mistake of ours; the service's log tells more")
    )
