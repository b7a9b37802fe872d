"""The prediction service as an ASGI application: paths, requests, answers and error texts."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json
from starlette.exceptions import HTTPException

import anyparty
from anyparty.core.declared_types import mistake
from anyparty.errors import AnypartyError, UserError
from anyparty.serving.admission_middleware import AdmissionMiddleware, ServiceMetrics
from anyparty.serving.peer_group import NOT_CONNECTED
from anyparty.serving.predictor import Predictor
from anyparty.serving.service_settings import BearerTokens, ServiceLimits

MAX_BUDGET_MS = 1e9  # the maximum time budget; it exists to reject infinity and NaN
MAX_ERROR_LENGTH = 300  # maximum length, in characters, of an error text that quotes the request
LARGEST_EXACT = 2**53  # from here on, floats do not represent every whole number
EXAMPLE = '{"ids": ["a", "b"]}'


def _id(value: Any) -> Any:
    """Return an id that is text, a number, or a JSON object whose values are text or numbers; reject any other value.

    Without this check, pydantic would report one mistake for each allowed type.
    """
    parts = list(value.values()) if isinstance(value, dict) else [value]
    usable = (type(part) in {str, int} or (type(part) is float and math.isfinite(part)) for part in parts)
    if not parts or not all(usable):
        raise PydanticCustomError("id", "expected text, a number, or an object with these by id column")
    if any(type(part) is float and abs(part) >= LARGEST_EXACT for part in parts):
        raise PydanticCustomError(
            "id", "numbers with a point or an exponent are rounded above 2^53: send the id as text"
        )
    return value


Id = Annotated[str | int | float | dict[str, str | int | float], BeforeValidator(_id)]


class PredictionRequest(BaseModel):
    """A request for predictions."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"ids": ["a", "b"]}, {"ids": [{"branch": "1", "account": 2}]}]},
    )

    ids: Annotated[
        list[Id],
        FailFast(),
        Field(
            min_length=1,
            description="The ids to predict: text or numbers; with several id columns, an object with the value of "
            "each column (see id_columns in /about).",
        ),
    ]
    parties: Annotated[
        list[StrictStr] | None,
        FailFast(),
        Field(description="The parties whose blocks may take part. Default: all."),
    ] = None
    budget_ms: Annotated[
        float | None,
        Field(gt=0, le=MAX_BUDGET_MS, description="How long to wait for other parties, in milliseconds."),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _stop_at_first_unknown_key(cls, values: Any) -> Any:
        """Return the request, or reject it at its first unknown key; pydantic would report every unknown key."""
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                text = f"unknown key {key[:100]!r}; expected ids, parties or budget_ms"
                raise PydanticCustomError("unknown_key", "{text}", {"text": text})
        return values


class RowAnswer(BaseModel):
    """The answer for one requested id."""

    id: Annotated[
        str | int | float | dict[str, str | int | float],
        Field(
            description="The requested id. A number or a composite id has the types of the active party's table; an "
            "unknown id is returned as requested."
        ),
    ]
    prediction: Annotated[str | int | float | bool | None, Field(description="The most probable class, or the number.")]
    probabilities: Annotated[dict[str, float] | None, Field(description="By class; null for regression.")]
    took_part: Annotated[list[str], Field(description="The parties whose blocks were used.")]
    asked: Annotated[list[str], Field(description="The parties that hold this row and may take part.")]
    silent: Annotated[dict[str, str], Field(description="Those of them that did not answer, with the reason.")]
    aligned: Annotated[
        bool, Field(description="False for a row that was added after the alignment: only the active party holds it.")
    ]
    predictor: Annotated[str, Field(description="The predictor that was used.")]
    reason: Annotated[str | None, Field(description="Why there is no prediction.")]
    remarks: Annotated[
        list[str],
        Field(description="Cells of the active party's row that differ from training, or that are all empty."),
    ]


class PredictionResponse(BaseModel):
    """Answers in the order of the request's ids."""

    answers: list[RowAnswer]


class HealthStatus(BaseModel):
    """The answer of /health: the process is alive."""

    status: Literal["alive"]


class ReadyStatus(BaseModel):
    """The answer of /ready: the parties that can take part in predictions now."""

    status: Annotated[
        Literal["ready", "alone"],
        Field(description="'alone' while no other party is connected: answers use the active party's block only."),
    ]
    parties: Annotated[
        dict[str, str], Field(description="For each other party: 'connected', or why it cannot be asked now.")
    ]
    federation: Annotated[
        str, Field(description="Why the federation's server cannot be reached or no job can begin; else empty.")
    ]
    model: Annotated[
        str, Field(description="A warning if the model or alignment on disk was replaced since the start; else empty.")
    ]


class ServiceInfo(BaseModel):
    """The answer of /about: the method, model and limits of the service.  It holds no secret."""

    version: Annotated[str, Field(description="The version of anyparty.")]
    method: dict[str, Any]
    title: Annotated[str, Field(description="The method's title.")]
    active: Annotated[str, Field(description="The party that serves.")]
    parties: Annotated[list[str], Field(description="The parties that hold columns.")]
    id_columns: Annotated[list[str], Field(description="The id columns; a request for several names each of them.")]
    task: Literal["classification", "regression"]
    classes: list[str]
    fingerprints: Annotated[
        dict[str, str],
        Field(
            description="Hashes that must be equal at all parties of a federation: model, version, alignment; and of "
            "this party's part of the model."
        ),
    ]
    limits: dict[str, float]


class ErrorBody(BaseModel):
    """The body of an error response: the reason why the request was refused."""

    error: Annotated[str, Field(description="One sentence.")]


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "The model does not have a party, an id does not name the id columns, or the body is not JSON.",
        401: "The token is missing or unknown.",
        403: "The client is on another machine, and the service has no tokens.",
        413: "The request has too many ids.",
        422: "The body is not a valid request: no ids, an id of another shape, or an unknown key.",
        431: "The headers are too long.",
        503: "Too many requests are open, or this one waited longer than its budget; retry.",
    }.items()
}


def validation_message(error: RequestValidationError) -> str:
    """Return one sentence about the first mistake in an invalid request."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        text = f"the request is not JSON ({first['ctx']['error']}, at character {place})"
    elif first["type"] == "unknown_key":
        text = first["msg"]
    elif not place:
        text = f"the request should be a JSON object like {EXAMPLE}, sent as application/json"
    else:
        text = f"{place}: {mistake(first)}; got {first['input']!r}"
    return text[:MAX_ERROR_LENGTH]


DESCRIPTION = """Predictions at the active party of a federation.

Send ids; the answer has, for each id, the class probabilities (or the number) and its provenance: which parties took
part, which were asked, and which did not answer and why. A party that does not answer within the time budget is left
out and named. An id that the service does not know gets a reason instead of a prediction."""


@dataclass(frozen=True, kw_only=True)
class ServingBackend:
    """The objects and functions that the HTTP application needs from a loaded run or federation.

    Attributes:
        predictor: answers requests.
        running: returns a context manager that connects the other parties while the application runs.
        trouble: returns the reason why the federation does not reach the other parties; empty while it reaches them.
        check: function that is called before the service starts; it raises an error if the service cannot start.
        staleness: returns a warning if the model on disk was replaced, else an empty string.
        needs_parties: whether /ready has status 503 while no other party is connected.

    """

    predictor: Predictor
    running: Callable[[], AbstractAsyncContextManager[None]]
    trouble: Callable[[], str] = str
    check: Callable[[], Coroutine[Any, Any, None]] | None = None
    staleness: Callable[[], str] = str
    needs_parties: bool = False


def build_app(
    backend: ServingBackend, *, limits: ServiceLimits, tokens: BearerTokens, hosts: Sequence[str] = (),
    admin_ports: Collection[int] = (),
) -> FastAPI:  # fmt: skip
    """Build the HTTP application that answers requests with ``backend``.

    ``AdmissionMiddleware`` describes ``limits``, ``tokens``, ``hosts`` and ``admin_ports``.
    """
    predictor = backend.predictor
    roster, me = predictor.party.roster, predictor.party.me
    metrics = ServiceMetrics([name for name in roster.names if name != me], predictor.connected)
    predictor.on_outcome = metrics.count

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with backend.running():
            yield

    app = FastAPI(
        title=f"anyparty: {me}", description=DESCRIPTION, version=anyparty.__version__, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # these two pages would load scripts from other sites
    )  # fmt: skip
    app.state.predictor, app.state.check, app.state.metrics = predictor, backend.check, metrics
    app.include_router(_prediction_routes(predictor, limits, metrics))
    app.include_router(_state_routes(backend, limits, metrics))
    app.add_middleware(
        AdmissionMiddleware, limits=limits, tokens=tokens, metrics=metrics, hosts=hosts, admin_ports=admin_ports
    )
    _add_error_handlers(app)
    return app


def _prediction_routes(predictor: Predictor, limits: ServiceLimits, metrics: ServiceMetrics) -> APIRouter:
    router = APIRouter(tags=["predictions"], responses=REFUSALS)

    async def answer(request: PredictionRequest, http: Request, path: str) -> Response:
        budget_ms = limits.wait_ms(path) if request.budget_ms is None else request.budget_ms
        max_ids = limits.max_ids(path)
        if len(request.ids) > max_ids:
            raise HTTPException(413, f"{len(request.ids):,} ids in one request; {path} takes at most {max_ids:,}")
        if budget_ms > limits.most_budget_ms:
            raise HTTPException(422, f"budget_ms is {budget_ms:g}, expected at most {limits.most_budget_ms:g}")
        predictions = await predictor.predict(
            request.ids, request.parties, budget_s=budget_ms / 1e3, arrived=http.state.arrived
        )
        unanswered = sum(each.prediction is None for each in predictions)
        metrics.ids.labels("none").inc(unanswered)
        metrics.ids.labels("number").inc(len(predictions) - unanswered)
        return Response(_json({"answers": [vars(each) for each in predictions]}), media_type="application/json")

    @router.post("/predict", response_model=PredictionResponse, summary="Predict a few ids within a short time")
    async def predict(request: PredictionRequest, http: Request) -> Response:
        """Predict each id, in order, within the time budget ``budget_ms``; /about gives the default budget."""
        return await answer(request, http, "/predict")

    @router.post("/predict/batch", response_model=PredictionResponse, summary="Predict many ids")
    async def batch(request: PredictionRequest, http: Request) -> Response:
        """Predict as /predict does, but accept more ids in one request; /about gives the default time budget."""
        return await answer(request, http, "/predict/batch")

    return router


def _json(value: dict[str, Any]) -> bytes:
    """Return a value as JSON; lone surrogates in ids are escaped rather than rejected."""
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value).encode()


def _state_routes(backend: ServingBackend, limits: ServiceLimits, metrics: ServiceMetrics) -> APIRouter:
    router, predictor, party = APIRouter(tags=["state"]), backend.predictor, backend.predictor.party
    denied: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (401, 403)}
    roster = party.roster

    @router.get("/health", summary="Whether the process is alive; needs no token")
    async def health() -> HealthStatus:
        return HealthStatus(status="alive")

    alone: dict[int | str, dict[str, Any]] = {
        503: {"model": ReadyStatus, "description": "No other party is connected."}
    }

    @router.get("/ready", responses=denied | alone, summary="Which parties can be asked now")
    async def ready(response: Response) -> ReadyStatus:
        """Return the parties that can take part in predictions now.

        The status is 'alone' while no other party is connected.  Predictions then use only the active party's block,
        and the HTTP status is 503 if the service was started so.
        """
        peers = predictor.best_peers()
        others = [name for name in roster.names if name != party.me]
        reasons = {name: peers.unavailable(name) if peers else NOT_CONNECTED for name in others}
        parties = {name: reason or "connected" for name, reason in reasons.items()}
        is_alone = bool(parties) and "connected" not in parties.values()
        if is_alone and backend.needs_parties:
            response.status_code = 503
        status: Literal["ready", "alone"] = "alone" if is_alone else "ready"
        return ReadyStatus(status=status, parties=parties, federation=backend.trouble(), model=backend.staleness())

    @router.get("/about", responses=denied, summary="The method, model and limits that are served")
    async def about() -> ServiceInfo:
        task = party.summary.task
        assert task is not None
        return ServiceInfo(
            version=anyparty.__version__, method=party.summary.method or {"name": "the user's own"},
            title=party.method.can.title, active=party.me, parties=list(roster.blocks),
            id_columns=predictor.index.id_columns.columns, task=task.kind, classes=list(task.classes),
            limits=asdict(limits), fingerprints=party.fingerprints,
        )  # fmt: skip

    @router.get("/metrics", responses=denied, response_class=PlainTextResponse, summary="Metrics for Prometheus")
    async def prometheus() -> PlainTextResponse:
        return PlainTextResponse(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with ``{"error": "one sentence"}``."""

    async def respond(_: Request, error: Exception) -> JSONResponse:
        status, text = _status_and_text(error)
        return JSONResponse({"error": text}, status)

    for kind in (RequestValidationError, HTTPException, AnypartyError, Exception):
        app.add_exception_handler(kind, respond)


TOO_LONG = "a number in the request, such as budget_ms, has too many digits"


def _status_and_text(error: Exception) -> tuple[int, str]:
    match error:
        case RequestValidationError():
            return 400 if error.errors()[0]["type"] == "json_invalid" else 422, validation_message(error)
        case HTTPException(status_code=400) if "parsing the body" in error.detail:
            long = "integer string conversion" in str(error.__cause__)  # the error for an integer with too many digits
            return 400, TOO_LONG if long else "the request is not JSON in UTF-8"
        case HTTPException():
            return error.status_code, error.detail
        case UserError():
            return 400, str(error)[:MAX_ERROR_LENGTH]
        case AnypartyError():
            return 500, str(error)
    return 500, "an internal error; see the service's log"
