"""What a request and an answer look like over HTTP, and how a wrong request is put into a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

SAID = "said"  # the type of an error whose message is the sentence
MOST_MS = 1e9  # far above any limit; a whole number may have as many digits as it likes, and is no float then


class Wanted(BaseModel):
    """A request for predictions."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[StrictStr], Field(min_length=1, description="The ids to predict, as text.")]
    parties: Annotated[
        list[StrictStr] | None,
        Field(description="The parties whose blocks may take part. Without it: all."),
    ] = None
    budget_ms: Annotated[
        StrictFloat | StrictInt | None,
        Field(gt=0, le=MOST_MS, description="How long to wait for other parties, milliseconds."),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _one_mistake_is_enough(cls, given: Any) -> Any:
        """Refuse the first key that is none, and the first name that is no text: errors of many are large."""
        if not isinstance(given, dict):
            return given
        for key in given:
            if key not in cls.model_fields:
                raise _wrong(f"there is no {key[:100]!r} in a request; known are: ids, parties, budget_ms")
        for key in ("ids", "parties"):
            names = given.get(key)
            for n, name in enumerate(names if isinstance(names, list) else ()):
                if not isinstance(name, str):
                    raise _wrong(f'{key}.{n} should be text, like "7"; got {name!r}')
        return given


def _wrong(said: str) -> PydanticCustomError:
    return PydanticCustomError(SAID, "{said}", {"said": said})


class Said(BaseModel):
    """The answer to one id."""

    id: Annotated[str, Field(description="The id, as it was asked.")]
    prediction: Annotated[str | float | None, Field(description="The most probable class, or the number.")]
    probabilities: Annotated[dict[str, float] | None, Field(description="By class; null where a number is predicted.")]
    took_part: Annotated[list[str], Field(description="The parties whose blocks the answer used.")]
    asked: Annotated[list[str], Field(description="The parties that may take part and have this row.")]
    silent: Annotated[dict[str, str], Field(description="Those of them that did not answer, and why.")]
    aligned: Annotated[
        bool, Field(description="False for a row that came after the alignment: only the active party knows it.")
    ]
    predictor: Annotated[str, Field(description="What made the answer.")]
    reason: Annotated[str | None, Field(description="Why there is no number.")]


class Answers(BaseModel):
    """Answers, in the order of the request's ids."""

    answers: list[Said]


class Health(BaseModel):
    """The process lives."""

    status: Literal["alive"]


class Ready(BaseModel):
    """Whether the service answers, and from whom."""

    status: Literal["ready"]
    parties: Annotated[dict[str, str], Field(description="By other party: 'connected', or why it cannot be asked now.")]
    federation: Annotated[
        str, Field(description="Why the federation's server cannot be reached, or no job can begin; empty otherwise.")
    ]
    model: Annotated[
        str, Field(description="That another model or alignment lies there than is served; empty otherwise.")
    ]


class About(BaseModel):
    """What is served.  Nothing here is secret."""

    version: Annotated[str, Field(description="Of anyparty.")]
    method: dict[str, Any]
    title: Annotated[str, Field(description="What makes the answers.")]
    active: Annotated[str, Field(description="The party that serves.")]
    parties: Annotated[list[str], Field(description="The parties that hold columns.")]
    task: Literal["classification", "regression"]
    classes: list[str]
    fingerprints: Annotated[
        dict[str, str],
        Field(
            description="Hashes of what must be alike at all parties, where they are apart: model, version, alignment; "
            "and of this party's own part of the model."
        ),
    ]
    limits: dict[str, float]


class Problem(BaseModel):
    """Why a request was refused."""

    error: Annotated[str, Field(description="One sentence.")]


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "A party that the model does not know, or a body that is not JSON."},
    401: {"model": Problem, "description": "No token, or one that is not known."},
    403: {"model": Problem, "description": "A client on another machine, where the service has no tokens."},
    413: {"model": Problem, "description": "More ids than one request takes."},
    422: {"model": Problem, "description": "Not a request for predictions: no ids, ids that are not text, a typing "
                                           "error in a key."},
    503: {"model": Problem, "description": "Too many requests at once; ask again."},
}  # fmt: skip

MOST_SAID = 300  # letters of a sentence that repeats what was asked
EXAMPLE = '{"ids": ["a", "b"]}'
SENTENCES: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "json_invalid": lambda place, error: f"the request is not JSON ({error['ctx']['error']}, at letter {place})",
    "missing": lambda place, _: f"{place!r} is missing; expected a request like {EXAMPLE}",
    "too_short": lambda place, _: f"{place!r} is empty; name at least one",
}


def sentence(error: RequestValidationError) -> str:
    """Say what is wrong with a request, and what was expected."""
    first = error.errors()[0]
    if first["loc"][1:2] == ("budget_ms",) and first["type"].endswith("_type"):
        return f"budget_ms should be a number of milliseconds; got {first['input']!r}"[:MOST_SAID]
    if first["type"] == SAID:
        return str(first["msg"])[:MOST_SAID]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if not place:
        return f"the request should be a JSON object like {EXAMPLE}, sent as application/json"
    if first["type"] in SENTENCES:
        return SENTENCES[first["type"]](place, first)[:MOST_SAID]
    return f"{place}: {first['msg'].lower()}; got {first['input']!r}"[:MOST_SAID]
