"""Marks of parameters: which of them run with the quick tests."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], quick: Callable[[Any], bool] | set[str]) -> list[Any]:
    """Return the values as parameters of a test; those that are not ``quick`` run with the slow tests.

    Args:
        values: the values; a tuple is one set of arguments.
        quick: the values that stay with the quick tests, or a function that says so of a value.
    """
    stays = quick.__contains__ if isinstance(quick, set) else quick
    return [
        value
        if stays(value)
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]


LABEL_HOLDERS = slow_but([False, True], lambda two: not two)
