"""Arguments are checked against annotations: every error names the argument, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest

from anyparty.core.declared_types import checked
from anyparty.errors import PredictionError
from tests.sentences.snapshots import Sentences


@checked()
def call(
    n: int = 1,
    names: Sequence[str] | None = None,
    one: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "id",
    tables: Mapping[str, Any] | None = None,
    types: Mapping[str, Mapping[str, str]] | None = None,
    mode: Literal["a", "b"] = "a",
    make: Callable[[], int] | None = None,
    series: pl.Series | None = None,
    share: float = 0.5,
    rows: Iterable[int] = (),
    **more: Any,
) -> dict[str, Any]:
    return {"n": n, "names": names, "one": one, "tables": tables, "rows": rows, "more": more}


WRONG: tuple[dict[str, Any], ...] = (
    {"n": "1"}, {"n": True}, {"n": 1.5}, {"n": None}, {"share": "a"}, {"share": True}, {"names": "bank"},
    {"names": ["bank", 0]}, {"names": 0}, {"names": {"bank": 1}}, {"names": b"bank"}, {"one": 0}, {"one": None},
    {"one": {"bank": 0}}, {"one": {"bank": ["a", None]}}, {"tables": {0: 1}}, {"tables": {None: 1}}, {"tables": [1]},
    {"types": {"shop": "numeric"}}, {"types": {"shop": {"a": 1}}}, {"types": {"shop": {1: "numeric"}}}, {"mode": "c"},
    {"make": 3}, {"series": [1]}, {"names": list(range(100))}, {"n": pl.DataFrame({"secret": [1234]})},
)  # fmt: skip


def test_a_wrong_argument_is_named(sentences: Sentences) -> None:
    calls = {" ".join(str(arguments).split()): partial(call, **arguments) for arguments in WRONG}
    assert len(calls) == len(WRONG)
    sentences.check("arguments", calls)


def test_arguments_are_passed_on() -> None:
    frame = pl.DataFrame({"a": [1]})
    found = call(np.int64(3), tables=MappingProxyType({"bank": frame}), other=1)
    assert found["n"] == 3
    assert found["tables"]["bank"] is frame
    assert found["more"] == {"other": 1}


@pytest.mark.parametrize(
    "names", [["a", "b"], ("a", "b"), np.array(["a", "b"]), pl.Series(["a", "b"]), {"a": 1, "b": 2}.keys()]
)  # fmt: skip
def test_any_list_of_names_is_a_sequence(names: Any) -> None:
    assert tuple(call(names=names)["names"]) == ("a", "b")


def test_a_generator_is_read_once() -> None:
    assert tuple(call(names=(name for name in "ab"))["names"]) == ("a", "b")


def test_unknown_and_missing_arguments() -> None:
    @checked(PredictionError)
    def ask(tables: int, *, parties: int = 0) -> None: ...

    with pytest.raises(PredictionError, match="ask: there is no argument 'party'; did you mean 'parties'"):
        ask(1, party=2)
    with pytest.raises(PredictionError, match="ask: missing a required argument: 'tables'; its arguments are tables, "):
        ask()
    with pytest.raises(PredictionError, match="ask: too many positional arguments"):
        ask(1, 2)
