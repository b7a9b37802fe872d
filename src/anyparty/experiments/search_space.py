"""A search space: settings by their names in a settings file, each with choices or with a range of numbers. Example:

{"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}, "method.embedding": [16, 32, 64], "train.seed": [0, 1]}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from anyparty.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class NumberRange:
    """A range of numbers from ``low`` to ``high``, both included, from which numbers are drawn uniformly.

    If both limits are whole, whole numbers are drawn.  With ``log``, the logarithm is drawn uniformly.
    """

    low: float
    high: float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draw a number of the range at random."""
        if self.log:
            drawn = float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
            return round(drawn) if self.whole else drawn
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        return float(rng.uniform(self.low, self.high))

    @property
    def whole(self) -> bool:
        """True if both limits are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values, from which each is drawn with the same probability."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one of the values at random."""
        return self.values[int(rng.integers(len(self.values)))]


SearchSpace = Mapping[str, NumberRange | Choices]

TUNED: Mapping[str, Any] = {
    "optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True},
    "optimizer.weight_decay": [0.0, 1e-4, 1e-3],
    "train.batch_size": [32, 64, 128],
}
"""The search space of ``compare(tune=...)`` by default."""


def search_space(values: Mapping[str, Any]) -> dict[str, NumberRange | Choices]:
    """Return the search space that settings describe.

    Args:
        values: by name of a setting, a list of choices, or a table with "low", "high" and optionally "log".

    Raises:
        ConfigError: the space is empty, or an entry is neither a list of choices nor such a table.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError('space: expected settings with choices or ranges, such as {"optimizer.lr": [0.001, 0.01]}, '
                          f"got {values!r}")  # fmt: skip
    return {key: _entry(key, value) for key, value in values.items()}


def _entry(key: str, value: Any) -> NumberRange | Choices:
    if "." not in key:
        raise ConfigError(f"space: {key!r} is not the name of a setting; write group.key, such as optimizer.lr")
    if isinstance(value, list | tuple) and value:
        return Choices(values=tuple(value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"space: {key}: expected a list of values, or a table with low and high, got {value!r}")
    known = ("low", "high", "log")
    for name in value:
        if name not in known:
            raise ConfigError(f"space: {key}: there is no {name!r}{nearest(name, known)}")
    low, high = value.get("low"), value.get("high")
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (low, high))
    if not numbers or not cast("float", low) < cast("float", high) or (value.get("log") and cast("float", low) <= 0):
        raise ConfigError(f"space: {key}: expected two numbers low < high, above 0 if log is true, got {dict(value)!r}")
    return NumberRange(low=cast("float", low), high=cast("float", high), log=bool(value.get("log", False)))


def drawn(space: SearchSpace, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Return ``n`` random configurations: each has one value for every setting of the space."""
    return [{key: entry.draw(rng) for key, entry in space.items()} for _ in range(n)]
