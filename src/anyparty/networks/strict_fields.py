"""Convert the fields of a dataclass that is made in Python to their declared types.

Settings files are checked when they are read. An object made in Python, such as ``Optimizer(lr=np.float32(0.1))``, is
not read from a file, but is saved in one.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from anyparty.errors import ConfigError


def as_declared(made: Any, of: Any, what: str) -> None:
    """Convert the fields of a frozen dataclass to their declared types; numpy numbers, lists and arrays are accepted.

    Call it first in ``__post_init__`` of the class ``of``. Fields that a user's subclass adds are not checked.

    Raises:
        ConfigError: a field has a value of another type; the message begins with ``what``.
    """
    for field in fields(of):
        value = getattr(made, field.name)
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        try:
            read = _adapters(of)[field.name].validate_python(value)
            fits = _truths(read) == _truths(value)  # pydantic converts true to 1, and "yes" to true
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
