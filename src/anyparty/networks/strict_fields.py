"""Fields of a dataclass that is made in Python, as the types that are declared for them.

A settings file is checked as it is read.  ``Optimizer(lr=np.float32(0.1))`` stands in none, and is kept in one.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from anyparty.errors import ConfigError


def as_declared(made: Any, of: Any, what: str) -> None:
    """Turn the fields of a frozen dataclass into their declared types: numpy's numbers, lists and arrays are read.

    To be called first in ``__post_init__`` of the class ``of``; fields that a user's subclass adds are its own matter.

    Raises:
        ConfigError: a field holds something else; ``what`` it belongs to stands first.
    """
    for field in fields(of):
        value = getattr(made, field.name)
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        try:
            read = _adapters(of)[field.name].validate_python(value)
            fits = _truths(read) == _truths(value)  # pydantic reads true as 1, and "yes" as true
        except ValidationError:
            fits = False
        if not fits:
            raise ConfigError(f"{what}: {field.name}: expected {field.type}, got {value!r}")
        object.__setattr__(made, field.name, read)


def _truths(value: Any) -> int:
    """Return how many truth values there are."""
    return sum(isinstance(each, bool) for each in (value if isinstance(value, list | tuple) else [value]))


@cache
def _adapters(of: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(of)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(of)}
