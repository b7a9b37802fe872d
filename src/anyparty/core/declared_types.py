"""Convert values from files and users to the types that a class, function or method declares.

Settings files are checked when they are read. An object made in Python, such as ``Optimizer(lr=np.float32(0.1))``, is
not read from a file, but may be saved in one. This module checks such objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np
from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from anyparty.core.types import of_python
from anyparty.errors import ConfigError, nearest

HELD = (str, int, float, type(None), list, tuple, Mapping, np.generic)


def of_type(hint: Any, value: Any, what: str) -> Any:
    """Convert the value of a parameter to the type ``hint`` that its method declares, and return it.

    Raises:
        ConfigError: the value has another type, or contains a value that no file can store. The message begins with
            ``what``.
    """
    if isinstance(value, bool) and bool not in {hint, *get_args(hint)}:
        raise ConfigError(f"{what}: expected a value other than true or false, got {value}")
    _check_tables(value, what)
    _check_names(hint, value, what)
    try:
        return TypeAdapter(hint).validate_python(of_python(value))
    except PydanticSchemaGenerationError:  # a user's own class, which no file can contain
        return value
    except ValidationError as error:
        raise ConfigError(f"{what}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None


def takes(of: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of ``of``, a class or function that creates a method, with their declared types.

    The parameters of a dataclass are its fields. The field ``rule`` of a split method is left out. Fields with
    ``repr=False`` are left out too, because records do not store them. The type is ``Any`` if a user's parameter
    declares no type, or a type that cannot be read.
    """
    try:
        signature = inspect.signature(of).parameters
    except (TypeError, ValueError):  # ``of`` is implemented in C and has no signature
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
    except (NameError, TypeError, AttributeError):  # a type may be defined only for type checkers
        return {}


def _check_names(hint: Any, value: Any, what: str) -> None:
    """Reject a mapping with keys that are not fields of the dataclass in ``hint``; pydantic would accept such keys."""
    known = [name.name for of in (hint, *get_args(hint)) if is_dataclass(of) for name in fields(of)]
    if known and isinstance(value, Mapping):
        for key in (str(key) for key in value if key not in known):
            raise ConfigError(f"{what}: there is no {key!r} in it{nearest(key, known)}")


def _check_tables(value: Any, what: str) -> None:
    """Reject a mapping that contains, at any depth, a value that a saved model cannot store."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(inner, HELD):
            raise ConfigError(f"{what}: a saved model cannot store {key} = {inner!r}; expected text, a number, true "
                              "or false, None, or a list or table of these")  # fmt: skip
    for inner in value.values() if isinstance(value, Mapping) else value if type(value) in {list, tuple} else ():
        _check_tables(inner, what)


def as_declared(made: Any, of: Any, what: str) -> None:
    """Convert the fields of a frozen dataclass to their declared types; numpy numbers, lists and arrays are accepted.

    The method ``__post_init__`` of the class ``of`` calls this function first. Fields that a user's subclass adds are
    not checked.

    Raises:
        ConfigError: a field has a value of another type; the message begins with ``what``.
    """
    for field in fields(of):
        value = getattr(made, field.name)
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        try:
            read = _adapters(of)[field.name].validate_python(value)
            fits = _truths(read) == _truths(value)  # False if pydantic has converted true to 1 or "yes" to true
        except ValidationError:
            fits = False
        if not fits:
            raise ConfigError(f"{what}: {field.name}: expected {field.type}, got {value!r}")
        object.__setattr__(made, field.name, read)


def _truths(value: Any) -> int:
    """Return the number of truth values in a list or tuple, or in a single value."""
    return sum(isinstance(each, bool) for each in (value if isinstance(value, list | tuple) else [value]))


@cache
def _adapters(of: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(of)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(of)}
