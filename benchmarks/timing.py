"""Timing on a busy machine: contenders take turns, and the result is a ratio.

Every round runs each contender once, in a new order, for about the same time. A round's ratio compares neighbours in
time; a table shows the median over rounds, with the quartiles as its spread. On one thread the clock counts that
thread's own time, so that other processes affect it as little as possible.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

LEAST, MOST_S = 9, 25.0

Contender = Callable[[int], float]
"""Do so many steps, answer the seconds they took."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of ``values``."""
        low, median, high = np.percentile(values, [25, 50, 75])
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


@dataclass(frozen=True)
class Times:
    """Seconds per step, by contender, one number for each round."""

    rounds: Mapping[str, list[float]]

    def milliseconds(self, name: str) -> Spread:
        """Return the milliseconds per step."""
        return Spread.of([1e3 * seconds for seconds in self.rounds[name]])

    def microseconds(self, name: str) -> Spread:
        """Return the microseconds per step."""
        return Spread.of([1e6 * seconds for seconds in self.rounds[name]])

    def ratio(self, name: str, to: str) -> Spread:
        """Return the ratio of the time of a step of ``name`` to that of ``to`` in the same round."""
        return Spread.of([a / b for a, b in zip(self.rounds[name], self.rounds[to], strict=True)])


def alternate(contenders: Mapping[str, Contender], rounds: int, turn_s: float) -> Times:
    """Let the contenders take turns of about ``turn_s`` seconds each, for a number of rounds after a warm-up round.

    If this takes more than ``MOST_S`` seconds of wall-clock time, only ``LEAST`` rounds are run.
    """
    steps = {}
    for name, run in contenders.items():
        run(2)
        steps[name] = min(200, max(2, round(turn_s / (run(2) / 2))))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order, lots = list(contenders), random.Random(0)  # noqa: S311 - the order is not a secret
    began = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST and time.perf_counter() - began > MOST_S:
            break
        lots.shuffle(order)
        for name in order:
            seconds[name].append(contenders[name](steps[name]) / steps[name])
    return Times(seconds)


def now() -> float:
    """Return seconds: this thread's CPU time if torch uses one thread, else wall-clock time."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads temporarily."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
