"""What a suite's runs come to: one cell for each method, number of columns and number of aligned rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.experiments.one_exchange.suite import Claim, Printed, Suite

Spread = tuple[float, float]  # mean, and standard deviation (n - 1)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell.

    Attributes:
        dataset, method, width, aligned: which; ``aligned`` is 0 where it does not matter.
        scores: of each repeat, times 100.
        rounds, sent: of the method's own messages, of each repeat; ``sent`` in bytes.
        formula_rounds, formula: rounds and bytes by the paper's formula; empty where none covers the method.
        cpu_seconds: the mean of a run's.
        paper: what the paper prints in a table.

    """

    dataset: str
    method: str
    width: int
    aligned: int
    scores: Sequence[float]
    rounds: Sequence[int]
    sent: Sequence[int]
    formula_rounds: Sequence[int]
    formula: Sequence[int]
    cpu_seconds: float
    paper: Printed | None = None

    @property
    def score(self) -> Spread:
        """Mean and spread over the repeats."""
        return spread(self.scores)


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation (n - 1); that of one value is NaN."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def cells(suite: Suite, records: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return the cells, in the suite's order; one without a finished run is left out."""
    groups: dict[tuple[str, str, int, int], list[Mapping[str, Any]]] = {}
    for record in records.values():
        run = record["run"]
        groups.setdefault((run["dataset"], run["method"], run["width"], run["aligned"]), []).append(record)
    return [
        _cell(suite, key, groups[key])
        for dataset, entry in suite.datasets.items()
        for method in suite.methods
        for width in entry.widths
        for aligned in (0, *entry.aligned)
        if (key := (dataset, method, width, aligned)) in groups
    ]


def _cell(suite: Suite, key: tuple[str, str, int, int], found: Sequence[Mapping[str, Any]]) -> Cell:
    dataset, method, width, aligned = key
    costs = [record.get("costs", {"sent": [], "published": []}) for record in found]
    by = [cost["published"] for cost in costs if cost["published"]]
    return Cell(
        dataset=dataset, method=method, width=width, aligned=aligned,
        scores=[100 * record["score"] for record in found],
        rounds=[sum(each["rounds"] for each in cost["sent"]) for cost in costs],
        sent=[sum(each["bytes_sent"] for each in cost["sent"]) for cost in costs],
        formula_rounds=[sum(each["rounds"] for each in published) for published in by],
        formula=[sum(each["bytes_sent"] for each in published) for published in by],
        cpu_seconds=statistics.fmean(record["cpu_seconds"] for record in found),
        paper=suite.published.get(dataset, {}).get(method, {}).get(aligned),
    )  # fmt: skip


def over_widths(suite: Suite, found: Sequence[Cell], dataset: str, method: str, aligned: int) -> Spread | None:
    """Return a method's mean over the numbers of columns, and the spread over them, as figures 5 and 8 show it.

    ``None`` where one of them has yet to run as often as the data set's others: fewer columns are harder, and a mean of
    some would flatter or belie.  A method that learns from nobody has the same for every number of rows.
    """
    repeats = max((len(each.scores) for each in found if each.dataset == dataset), default=0)
    means = {each.width: each.score[0] for each in found if (each.dataset, each.method) == (dataset, method)
             and each.aligned in {0, aligned} and len(each.scores) == repeats}  # fmt: skip
    return spread(list(means.values())) if means.keys() >= set(suite.datasets[dataset].widths) else None


def claimed(suite: Suite, found: Sequence[Cell], claim: Claim) -> float | None:
    """Return our number beside one that the paper's text gives; ``None`` where runs are lacking."""
    aligned = suite.datasets[claim.dataset].aligned
    if claim.kind == "loss":
        first, last = (over_widths(suite, found, claim.dataset, claim.method, rows) for rows in claim.aligned)
        return None if first is None or last is None else first[0] - last[0]
    if claim.kind == "gain":
        pairs = [[over_widths(suite, found, claim.dataset, each, rows) for each in (claim.method, claim.over)]
                 for rows in aligned]  # fmt: skip
        return max((mine[0] - theirs[0] for mine, theirs in pairs if mine and theirs), default=None)
    return max((theirs / mine for rows in aligned for mine, theirs in _formulas(found, claim, rows)), default=None)


def _formulas(found: Sequence[Cell], claim: Claim, aligned: int) -> list[tuple[float, float]]:
    """Return the bytes by formula of the claim's method and of the other, if both are there."""
    mine, theirs = (
        [size for each in found for size in each.formula
         if (each.dataset, each.method, each.aligned) == (claim.dataset, method, aligned)]
        for method in (claim.method, claim.over)
    )  # fmt: skip
    return [(statistics.fmean(mine), statistics.fmean(theirs))] if mine and theirs else []
