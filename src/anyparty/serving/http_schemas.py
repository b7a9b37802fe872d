"""Requests and answers of the HTTP service, and the error text for an invalid request."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

MAX_BUDGET_MS = 1e9  # far above any limit; also rejects infinity and NaN
MAX_ERROR_LENGTH = 300  # characters of an error text that repeats input
EXAMPLE = '{"ids": ["a", "b"]}'


def _id(value: Any) -> Any:
    """Reject an id of another shape with one sentence; pydantic would report a mistake for each allowed type."""
    parts = list(value.values()) if isinstance(value, dict) else [value]
    usable = (type(part) in {str, int} or (type(part) is float and math.isfinite(part)) for part in parts)
    if not parts or not all(usable):
        raise PydanticCustomError("id", "expected text, a number, or an object with these by id column")
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
        """Report one unknown key; pydantic would collect an error for each of them."""
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                text = f"unknown key {key[:100]!r}; expected ids, parties or budget_ms"
                raise PydanticCustomError("unknown_key", "{text}", {"text": text})
        return values


class RowAnswer(BaseModel):
    """The answer to one id."""

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


class PredictionResponse(BaseModel):
    """Answers in the order of the request's ids."""

    answers: list[RowAnswer]


class HealthStatus(BaseModel):
    """The process is alive."""

    status: Literal["alive"]


class ReadyStatus(BaseModel):
    """The parties that the service can ask now."""

    status: Literal["ready"]
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
    """The method, model and limits that are served.  Nothing here is secret."""

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
    """Why a request was refused."""

    error: Annotated[str, Field(description="One sentence.")]


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "The model does not have a party, an id does not name the id columns, or the body is not JSON.",
        401: "The token is missing or unknown.",
        403: "The client is on another machine, and the service has no tokens.",
        413: "The request has too many ids.",
        422: "The body is not a valid request: no ids, an id of another shape, or an unknown key.",
        503: "Too many requests are open; retry.",
    }.items()
}


def validation_message(error: RequestValidationError) -> str:
    """Return one sentence about the first mistake of a request."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        text = f"the request is not JSON ({first['ctx']['error']}, at character {place})"
    elif first["type"] == "unknown_key":
        text = first["msg"]
    elif not place:
        text = f"the request should be a JSON object like {EXAMPLE}, sent as application/json"
    else:
        text = f"{place}: {first['msg'].lower()}; got {first['input']!r}"
    return text[:MAX_ERROR_LENGTH]
