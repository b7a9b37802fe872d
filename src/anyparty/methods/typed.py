"""Parameters of methods as the types that are declared for them: what is given is a file's, or a user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter, ValidationError

from anyparty.errors import ConfigError

HELD = (str, int, float, type(None), list, tuple, Mapping, np.generic)


def of_type(hint: Any, value: Any, what: str) -> Any:
    """Return a parameter as the type that its method declares: settings come from files, as whatever was written.

    Raises:
        ConfigError: it is none, or holds something that no file can; ``what`` it is stands first.
    """
    if isinstance(value, bool) and bool not in {hint, *get_args(hint)}:
        raise ConfigError(f"{what}: expected no truth value, got {value}")
    try:
        return TypeAdapter(hint).validate_python(_plain(value, what))
    except ValidationError as error:
        raise ConfigError(f"{what}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None


def _plain(value: Any, what: str) -> Any:
    """Return a parameter with Python's numbers in place of numpy's, in lists and tables too.

    Raises:
        ConfigError: a table holds something that no file can.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(inner, HELD):
                raise ConfigError(f"{what}: {key} = {inner!r} is nothing that a saved model can hold: words, numbers, "
                                  f"truth values, None, and lists and tables of them")  # fmt: skip
        return {key: _plain(inner, what) for key, inner in value.items()}
    return type(value)(_plain(inner, what) for inner in value) if type(value) in {list, tuple} else value
