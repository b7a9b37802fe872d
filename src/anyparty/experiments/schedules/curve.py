"""A run's curve on the clock: the score of every epoch, and the time units that it took to get there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.experiments.schedules.suite import Suite

Record = Mapping[str, Any]


def along(
    suite: Suite, records: Mapping[str, Record], dataset: str, case: str, method: str, rate: float, latency: float
) -> Iterator[Record]:
    """Yield the records that tell of an algorithm at a latency, one a seed."""
    trained_at = latency if suite.algorithms[method].at_once else suite.search_latency
    for record in records.values():
        run = record["run"]
        if (run["dataset"], run["case"], run["method"]) == (dataset, case, method) \
                and (run["rate"], run["latency"]) == (rate, trained_at):  # fmt: skip
            yield record


def scores(record: Record) -> list[float]:
    """Return the held-out score after each epoch."""
    return [point["score"] for point in record["curve"]]


def times(suite: Suite, record: Record, latency: float) -> list[float]:
    """Return the time units after each epoch, had the latency been this.

    Rounds last as long as their iterations and one round trip, so that latency adds to each of them alike.
    """
    run = record["run"]
    more = 0.0 if suite.algorithms[run["method"]].at_once else latency - run["latency"]
    return [point["time"] + more * point["rounds"] for point in record["curve"]]


def time_of(suite: Suite, record: Record, target: float, latency: float) -> float | None:
    """Return the time units until the score first is at the target, ``None`` if it never is.

    Between two epochs it rises in a straight line; before the first there is no score to draw one from.
    """
    points = list(zip(times(suite, record, latency), scores(record), strict=True))
    if points and points[0][1] >= target:
        return points[0][0]
    for (begun, low), (ended, high) in pairwise(points):
        if high >= target:
            return begun + (ended - begun) * (target - low) / (high - low)
    return None
