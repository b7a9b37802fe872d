"""Results of a suite: its records, aggregated into the cells of its tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
Records = Mapping[str, Record]
"""A mapping from the key of each finished run to its record."""

MeanSpread = tuple[float, float]
"""The mean and the standard deviation (divisor n - 1) of n values; the deviation of one value is NaN."""

SCORE = "score"  # the measure that tables show, in per cent


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a suite's tables: the results of one method in one condition, with one run for each seed.

    Attributes:
        facts: values that are equal for all runs of the cell: data set, method, condition, the paper's numbers.
        measures: for each measure, such as "score", a mapping from the seed of a run to the value.

    """

    facts: Mapping[str, Any]
    measures: Mapping[str, Mapping[int, float]]

    def __getitem__(self, name: str) -> Any:
        """Return the cell's fact with this name."""
        return self.facts[name]

    def matches(self, **facts: Any) -> bool:
        """Return True if the cell has all given facts."""
        return all(self.facts[name] == value for name, value in facts.items())

    def seeds(self, measure: str = SCORE) -> list[int]:
        """Return the seeds of this cell's runs that have a value of one measure; ``measure`` is its name."""
        return list(self.measures[measure])

    def mean(self, measure: str = SCORE, seeds: Iterable[int] | None = None) -> float:
        """Return the mean of one measure over the runs with the given seeds, by default over all runs of the cell.

        The mean is NaN if there is no run.

        ``statistics.fmean`` sums exactly, which matters because the published CSV files have all digits.
        """
        values = self.measures[measure]
        chosen = list(values.values()) if seeds is None else [values[seed] for seed in seeds]
        return statistics.fmean(chosen) if chosen else math.nan

    def mean_spread(self, measure: str = SCORE) -> MeanSpread:
        """Return the mean and the standard deviation of one measure over all runs of this cell."""
        return mean_spread(list(self.measures[measure].values()))


def mean_spread(values: Sequence[float]) -> MeanSpread:
    """Return the mean and the standard deviation (divisor n - 1) of ``values``.

    Both are NaN if there is no value.  The deviation of one value is NaN, too.
    """
    return (
        statistics.fmean(values) if values else math.nan,
        statistics.stdev(values) if len(values) > 1 else math.nan,
    )


def group_records(records: Records, names: Sequence[str]) -> dict[tuple[Any, ...], list[Record]]:
    """Group the records by some fields of their runs; the keys of the result are tuples of the fields' values."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records.values():
        groups.setdefault(tuple(record["run"].get(name) for name in names), []).append(record)
    return groups


def by_seed(values: Iterable[tuple[Record, float]]) -> dict[int, float]:
    """Convert pairs of a run's record and a value to a dict from the run's seed to the value."""
    return {int(record["run"]["seed"]): value for record, value in values}


def shared_seeds(cells: Iterable[Cell], measure: str = SCORE) -> list[int]:
    """Return the seeds for which every cell in ``cells`` has a value of one measure; ``measure`` is its name.

    A seed determines rows, labels and masks, so only results with the same seed can be compared.
    """
    each = [set(cell.seeds(measure)) for cell in cells]
    return sorted(set.intersection(*each)) if each else []
