"""What a settings file can hold, of what is given in Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

import numpy as np

HELD = (str, int, float, list, tuple, dict, date, time, type(None))  # a date and time is a date


def of_python(value: Any) -> Any:
    """Return a value with Python's numbers in place of numpy's, in lists and tables too."""
    if isinstance(value, Mapping):
        return {key: of_python(each) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(of_python, value))
    return value.item() if isinstance(value, np.generic) else value


def check_held(key: str, value: Any) -> None:
    """Refuse what no file can hold, in lists and tables too; of functions it is said where they are asked for.

    None is taken: alone it is as if it were left out, and within a table it is in the way of a run's folder alone.

    Raises:
        ValueError: naming it.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key}: expected a finite number, got {value}")
    if not (callable(value) or isinstance(value, HELD)):
        raise ValueError(f"{key}: expected words, numbers, truth values, and lists and tables of them, which settings "
                         f"can hold, got {value!r}; give the method itself, made in Python")  # fmt: skip
    for each in _within(value):
        check_held(key, each)


def nones(value: Any, where: str = "") -> Iterator[str]:
    """Yield where None stands within lists and tables, for which a file has no word."""
    named = value.items() if isinstance(value, dict) else [("", each) for each in _within(value)]
    for key, each in named:
        place = f"{where}.{key}".strip(".")
        if each is None:
            yield place
        yield from nones(each, place)


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
