"""Aggregation of runs into cells: a cell holds the results of the runs behind one number of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyparty.experiments.suite import Records

MeanSpread = tuple[float, float]
"""Mean and standard deviation (divisor n - 1); the deviation of one value is NaN."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a suite's tables: the runs of one method in one condition.

    Attributes:
        facts: values that all of its runs share: data set, method, condition, the paper's numbers.
        measures: by measure, the value of each seed.

    """

    facts: Mapping[str, Any]
    measures: Mapping[str, Mapping[int, float]]

    def __getitem__(self, name: str) -> Any:
        """Return a fact."""
        return self.facts[name]

    def matches(self, **facts: Any) -> bool:
        """Return True if the cell has all given facts."""
        return all(self.facts[name] == value for name, value in facts.items())

    def seeds(self, measure: str) -> list[int]:
        """Return the seeds that have a measure."""
        return list(self.measures[measure])

    def mean(self, measure: str, seeds: Iterable[int] | None = None) -> float:
        """Return the mean of a measure over all its seeds, or over ``seeds``; NaN if there is no seed.

        ``statistics.fmean`` sums exactly, which matters because the published CSV files have all digits.
        """
        values = self.measures[measure]
        chosen = list(values.values()) if seeds is None else [values[seed] for seed in seeds]
        return statistics.fmean(chosen) if chosen else math.nan

    def mean_spread(self, measure: str) -> MeanSpread:
        """Return mean and standard deviation of a measure over its seeds."""
        return mean_spread(list(self.measures[measure].values()))


def mean_spread(values: Sequence[float]) -> MeanSpread:
    """Return the mean and the standard deviation (divisor n - 1).

    Both are NaN if there is no value.  The deviation of one value is NaN, too.
    """
    return (
        statistics.fmean(values) if values else math.nan,
        statistics.stdev(values) if len(values) > 1 else math.nan,
    )


def by_condition(records: Records, names: Sequence[str]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Group records by the named fields of their runs."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records.values():
        groups.setdefault(tuple(record["run"][name] for name in names), []).append(record)
    return groups


def by_seed(values: Iterable[tuple[Mapping[str, Any], float]]) -> dict[int, float]:
    """Return the values of records by their runs' seeds."""
    return {int(record["run"]["seed"]): value for record, value in values}


def shared_seeds(cells: Iterable[Cell], measure: str) -> list[int]:
    """Return the seeds that all cells have.

    A seed determines rows, labels and masks, so only results with the same seed can be compared.
    """
    each = [set(cell.seeds(measure)) for cell in cells]
    return sorted(set.intersection(*each)) if each else []
