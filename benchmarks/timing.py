"""Times on a machine that does other things too: contenders take turns, and what is stated is a ratio.

Every round runs each contender once, in a fresh order, for about as long as the others; a round's ratio is between
neighbours in time, and the median over rounds is what a table shows, with the quartiles as its spread.
On one thread the clock counts that thread's own time, so that what others do on the machine counts as little as can be.
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
    """The median of some numbers, and their quartiles."""

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
    """Seconds a step, by contender, one number a round."""

    rounds: Mapping[str, list[float]]

    def milliseconds(self, name: str) -> Spread:
        """Return the milliseconds of a step."""
        return Spread.of([1e3 * seconds for seconds in self.rounds[name]])

    def microseconds(self, name: str) -> Spread:
        """Return the microseconds of a step."""
        return Spread.of([1e6 * seconds for seconds in self.rounds[name]])

    def ratio(self, name: str, to: str) -> Spread:
        """Return how many times as long a step of ``name`` takes as one of ``to``, in the same round."""
        return Spread.of([a / b for a, b in zip(self.rounds[name], self.rounds[to], strict=True)])


def alternate(contenders: Mapping[str, Contender], rounds: int, turn_s: float) -> Times:
    """Let the contenders take turns of about ``turn_s`` seconds each, for so many rounds after a first to warm up.

    A machine that is so busy that this takes over ``MOST_S`` seconds of the clock on the wall plays ``LEAST`` rounds.
    """
    steps = {}
    for name, run in contenders.items():
        run(2)
        steps[name] = min(200, max(2, round(turn_s / (run(2) / 2))))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order, lots = list(contenders), random.Random(0)  # noqa: S311 - an order, not a secret
    began = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST and time.perf_counter() - began > MOST_S:
            break
        lots.shuffle(order)
        for name in order:
            seconds[name].append(contenders[name](steps[name]) / steps[name])
    return Times(seconds)


def now() -> float:
    """Return seconds: of this thread's work if torch computes on one thread, else of the clock on the wall."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute on ``count`` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
