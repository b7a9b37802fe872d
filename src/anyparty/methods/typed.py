"""Parameters of methods as the types that are declared for them: what is given is a file's, or a user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np
from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from anyparty.core.types import of_python
from anyparty.errors import ConfigError, nearest

HELD = (str, int, float, type(None), list, tuple, Mapping, np.generic)


def of_type(hint: Any, value: Any, what: str) -> Any:
    """Return a parameter as the type that its method declares: settings come from files, as whatever was written.

    Raises:
        ConfigError: it is none, or holds something that no file can; ``what`` it is stands first.
    """
    if isinstance(value, bool) and bool not in {hint, *get_args(hint)}:
        raise ConfigError(f"{what}: expected no truth value, got {value}")
    _check_tables(value, what)
    _check_names(hint, value, what)
    try:
        return TypeAdapter(hint).validate_python(of_python(value))
    except PydanticSchemaGenerationError:  # a user's own class, which no file's value is
        return value
    except ValidationError as error:
        raise ConfigError(f"{what}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None


def takes(of: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters with which a class, or a function, makes a method, and the types declared for them.

    Of a dataclass these are its fields, but for a split method's rule and for what ``repr=False`` keeps out of records.
    A user's own may declare no types, or some that say nothing here: any value will do for such a parameter.
    """
    try:
        signature = inspect.signature(of).parameters
    except (TypeError, ValueError):  # made in C
        return {}
    apart = {"rule", *(each.name for each in fields(of) if not each.repr)} if is_dataclass(of) else set()
    hints = _hints(of) | (_hints(of.__init__) if isinstance(of, type) else {})  # type: ignore[misc]
    return {
        name: hints.get(name, Any) for name, each in signature.items()
        if name not in apart and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    }  # fmt: skip


def _hints(of: object) -> dict[str, Any]:
    try:
        return get_type_hints(of)
    except (NameError, TypeError, AttributeError):  # named where only a type checker looks
        return {}


def _check_names(hint: Any, value: Any, what: str) -> None:
    """Refuse a table whose keys are no fields of the dataclass that the hint names: pydantic takes them silently."""
    known = [name.name for of in (hint, *get_args(hint)) if is_dataclass(of) for name in fields(of)]
    if known and isinstance(value, Mapping):
        for key in (str(key) for key in value if key not in known):
            raise ConfigError(f"{what}: there is no {key!r} in it{nearest(key, known)}")


def _check_tables(value: Any, what: str) -> None:
    """Refuse a table, in lists and tables too, that holds something that no saved model can."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(inner, HELD):
            raise ConfigError(f"{what}: {key} = {inner!r} is nothing that a saved model can hold: words, numbers, "
                              f"truth values, None, and lists and tables of them")  # fmt: skip
    for inner in value.values() if isinstance(value, Mapping) else value if type(value) in {list, tuple} else ():
        _check_tables(inner, what)
