"""The numbers of a suite: ours from the records, the paper's beside."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table.

    Attributes:
        dataset, method, parties, missing, test: which.
        by_seed: the metric of each seed, times 100 for shares.
        paper: its mean and spread, if it gives them.
        seconds: mean training time.
        epoch: mean CPU seconds of an epoch.
        rates: the shares of blocks that were missing in training and at test, means over the seeds.

    """

    dataset: str
    method: str
    parties: int
    missing: str
    test: str
    by_seed: Mapping[int, float]
    paper: tuple[float, float] | None
    seconds: float
    epoch: float
    rates: tuple[float, float] = (math.nan, math.nan)

    @property
    def ours(self) -> tuple[float, float]:
        """Mean and standard deviation over the seeds (n - 1); of one seed it is NaN."""
        values = list(self.by_seed.values())
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan

    @property
    def seeds(self) -> int:
        """How many seeds that is."""
        return len(self.by_seed)

    def over(self, seeds: Iterable[int]) -> float:
        """Return the mean over some of its seeds."""
        return statistics.fmean(self.by_seed[seed] for seed in seeds)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None else self.ours[0] - self.paper[0]

    @property
    def outside(self) -> bool:
        """Whether the difference is more than both spreads together; one seed has no spread to say so."""
        difference = self.difference
        return (
            self.seeds > 1
            and self.paper is not None
            and difference is not None
            and abs(difference) > self.ours[1] + self.paper[1]
        )


def cells_of(suite: Suite, records: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return the table's cells, in the suite's order; a cell without a finished run is left out."""
    groups: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = {}
    for record in records.values():
        run = record["run"]
        groups.setdefault((run["dataset"], run["method"], run["parties"], run["missing"]), []).append(record)
    return list(_cells(suite, groups))


def _cells(suite: Suite, groups: Mapping[tuple[str, str, int, str], Sequence[Mapping[str, Any]]]) -> Iterator[Cell]:
    for dataset, entry in suite.datasets.items():
        for method in entry.methods:
            for parties in suite.parties_of(dataset):
                for missing in suite.train_missing:
                    found = groups.get((dataset, method, parties, missing), [])
                    for place, test in enumerate(suite.test_missing if found else ()):
                        values = {record["run"]["seed"]: 100 * _value(record["scores"][test], entry.metric)
                                  for record in found}  # fmt: skip
                        printed = suite.published.get(dataset, {}).get(method, {}).get(missing)
                        yield Cell(
                            dataset=dataset, method=method, parties=parties, missing=missing, test=test,
                            by_seed=values, paper=printed[place] if printed else None,
                            seconds=statistics.fmean(record["seconds"] for record in found),
                            epoch=statistics.fmean(record["cpu_seconds"] / record["epochs"] for record in found),
                            rates=(statistics.fmean(record["missing"] for record in found),
                                   statistics.fmean(record["scores"][test]["missing"] for record in found)),
                        )  # fmt: skip


def _value(scores: Mapping[str, Any], metric: str) -> float:
    value = scores["clients"].get(metric, scores["overall"].get(metric))
    return math.nan if value is None else float(value)


def shown(cell: Cell | None, best: Container[str]) -> str:
    """Return our number as a table has it: bold if its method is one of the best, marked if outside both spreads."""
    if cell is None:
        return ""
    mark = "" if not cell.outside else (" ▲" if (cell.difference or 0) > 0 else " ▼")
    spread = f" ± {cell.ours[1]:.1f}" if cell.seeds > 1 else ""
    number = f"{cell.ours[0]:.1f}{spread}"
    return (f"**{number}**" if cell.method in best else number) + mark
