"""Results of a schedules suite: curves over time units, the time until the target, and cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from anyparty.experiments.aggregation import Cell, by_seed
from anyparty.experiments.schedules.schedules_suite import SchedulesSuite
from anyparty.experiments.suite import Records

Record = Mapping[str, Any]


def runs_at(
    suite: SchedulesSuite, records: Records, dataset: str, case: str, method: str, rate: float, latency: float
) -> Iterator[Record]:
    """Yield the records of an algorithm that apply to a latency, one for each seed."""
    trained_at = latency if suite.algorithms[method].at_once else suite.search_latency
    for record in records.values():
        run = record["run"]
        if (run["dataset"], run["case"], run["method"]) == (dataset, case, method) \
                and (run["rate"], run["latency"]) == (rate, trained_at):  # fmt: skip
            yield record


def scores(record: Record) -> list[float]:
    """Return the held-out score after each epoch."""
    return [point["score"] for point in record["curve"]]


def times(suite: SchedulesSuite, record: Record, latency: float) -> list[float]:
    """Return the time at the end of each epoch, in time units, at a latency.

    A round lasts as long as its local iterations and one round trip, so a different latency changes the duration of
    every round by the same amount.
    """
    run = record["run"]
    more = 0.0 if suite.algorithms[run["method"]].at_once else latency - run["latency"]
    return [point["time"] + more * point["rounds"] for point in record["curve"]]


def time_to_target(suite: SchedulesSuite, record: Record, target: float, latency: float) -> float | None:
    """Return the time units until the score first reaches the target; ``None`` if the score never reaches it.

    The score is interpolated linearly between two epochs.  If the first epoch reaches the target, its time is returned.
    """
    points = list(zip(times(suite, record, latency), scores(record), strict=True))
    if points and points[0][1] >= target:
        return points[0][0]
    for (began, low), (ended, high) in pairwise(points):
        if high >= target:
            return began + (ended - began) * (target - low) / (high - low)
    return None


def aggregate(suite: SchedulesSuite, records: Records) -> list[Cell]:
    """Return a cell for each data set, case, latency and algorithm that has runs and a target.

    Additional facts: the chosen ``rate``; ``at_an_end``, True if the rate is at an end of its grid; the ``target``; the
    ``ratio`` of the mean time to that of the algorithm ``suite.beside``, over the seeds with which both algorithms
    reach the target; the ``paper`` mean and spread in time units, empty if the paper's run did not reach the target;
    and the ``paper_ratio``.

    Measures: ``time`` for the seeds that reach the target; ``diverged`` (1 or 0) for all seeds; ``best`` and ``last``
    held-out score, ``test`` score and ``trace_restarts`` for the seeds that did not diverge.
    """
    rates, targets, cells = suite.chosen_rates(records), suite.targets(records), list[Cell]()
    for dataset in suite.datasets:
        for case, entry in suite.cases.items():
            target = targets.get((dataset, entry.parties))
            for place, latency in enumerate(suite.latencies):
                paper = {name: tuple(each[place]) for name, each in suite.published.get(case, {}).items()}
                group: dict[str, tuple[dict[str, Any], dict[str, dict[int, float]]]] = {}
                for method in suite.algorithms:
                    chosen = rates.get((dataset, case, method))
                    if chosen is None or target is None:
                        continue
                    if found := list(runs_at(suite, records, dataset, case, method, chosen.rate, latency)):
                        facts = {"dataset": dataset, "case": case, "method": method, "latency": latency,
                                 "rate": chosen.rate, "at_an_end": chosen.at_an_end, "target": target,
                                 **_published(paper, method, suite.beside)}  # fmt: skip
                        group[method] = facts, _measures(suite, found, target, latency)
                beside = group[suite.beside][1]["time"] if suite.beside in group else {}
                cells += [Cell(facts=facts | {"ratio": _ratio(measures["time"], beside)}, measures=measures)
                          for facts, measures in group.values()]  # fmt: skip
    return cells


def _measures(
    suite: SchedulesSuite, found: Sequence[Record], target: float, latency: float
) -> dict[str, dict[int, float]]:
    converged = [record for record in found if not record["diverged"]]
    reached = ((record, time_to_target(suite, record, target, latency)) for record in found)
    return {
        "time": by_seed((record, time) for record, time in reached if time is not None),
        "diverged": by_seed((record, float(bool(record["diverged"]))) for record in found),
        "best": by_seed((record, max(scores(record))) for record in converged),
        "last": by_seed((record, scores(record)[-1]) for record in converged),
        "test": by_seed((record, record["test"]) for record in converged),
        "trace_restarts": by_seed((record, record["curve"][-1].get("trace_began_anew", 0)) for record in converged),
    }


def _published(paper: Mapping[str, tuple[float, ...]], method: str, beside: str) -> dict[str, Any]:
    mine, other = paper.get(method), paper.get(beside)
    return {"paper": None if mine is None else tuple(1000 * value for value in mine),
            "paper_ratio": mine[0] / other[0] if mine and other else None}  # fmt: skip


def _ratio(times: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """Return the ratio of two mean times over the seeds that both have, because other seeds would bias the ratio."""
    both = times.keys() & others.keys()
    return statistics.fmean(times[seed] for seed in both) / statistics.fmean(others[seed] for seed in both) \
        if both else None  # fmt: skip
