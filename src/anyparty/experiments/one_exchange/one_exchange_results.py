"""Results of a one-exchange suite: cells, means over the numbers of columns, and the paper's claims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from anyparty.experiments.aggregation import Cell, MeanSpread, by_condition, by_seed, mean_spread
from anyparty.experiments.one_exchange.one_exchange_suite import Claim, OneExchangeSuite
from anyparty.experiments.suite import Records


def aggregate(suite: OneExchangeSuite, records: Records) -> list[Cell]:
    """Return a cell for each data set, method, number of columns and number of aligned rows that has runs.

    Measures: ``score`` in per cent; ``rounds`` and ``bytes`` of the method's own messages; ``formula_rounds`` and
    ``formula_bytes`` by the paper's formula, for the runs that it covers; ``cpu_seconds``.
    """
    groups = by_condition(records, ["dataset", "method", "width", "aligned"])
    cells = []
    for dataset, entry in suite.datasets.items():
        for method in suite.methods:
            for width in entry.widths:
                for aligned in (0, *entry.aligned):
                    found = groups.get((dataset, method, width, aligned), [])
                    costs = [(record, record.get("costs", {"sent": [], "published": []})) for record in found]
                    covered = [(record, cost) for record, cost in costs if cost["published"]]
                    if found:
                        cells.append(Cell(
                            facts={"dataset": dataset, "method": method, "width": width, "aligned": aligned,
                                   "paper": suite.published.get(dataset, {}).get(method, {}).get(aligned)},
                            measures={
                                "score": by_seed((r, 100 * r["score"]) for r in found),
                                "rounds": by_seed((r, sum(s["rounds"] for s in c["sent"])) for r, c in costs),
                                "bytes": by_seed((r, sum(s["bytes_sent"] for s in c["sent"])) for r, c in costs),
                                "formula_rounds": by_seed(
                                    (r, sum(s["rounds"] for s in c["published"])) for r, c in covered),
                                "formula_bytes": by_seed(
                                    (r, sum(s["bytes_sent"] for s in c["published"])) for r, c in covered),
                                "cpu_seconds": by_seed((r, r["cpu_seconds"]) for r in found),
                            },
                        ))  # fmt: skip
    return cells


def over_widths(
    suite: OneExchangeSuite, cells: Sequence[Cell], dataset: str, method: str, aligned: int
) -> MeanSpread | None:
    """Return a method's mean score over the numbers of columns, and the standard deviation, as in figures 5 and 8.

    Return ``None`` if a number of columns has fewer repeats than the other results of the data set. With fewer columns
    the task is harder, so a mean over some numbers of columns would be biased. A method that uses no other party has
    one value for all numbers of aligned rows.
    """
    repeats = max((len(cell.seeds("score")) for cell in cells if cell["dataset"] == dataset), default=0)
    means = {
        cell["width"]: cell.mean("score") for cell in cells
        if cell.matches(dataset=dataset, method=method) and cell["aligned"] in {0, aligned}
        and len(cell.seeds("score")) == repeats
    }  # fmt: skip
    return mean_spread(list(means.values())) if means.keys() >= set(suite.datasets[dataset].widths) else None


def claimed(suite: OneExchangeSuite, cells: Sequence[Cell], claim: Claim) -> float | None:
    """Return our number for a claim of the paper; ``None`` if runs are missing."""
    aligned = suite.datasets[claim.dataset].aligned
    if claim.kind == "loss":
        first, last = (over_widths(suite, cells, claim.dataset, claim.method, rows) for rows in claim.aligned)
        return None if first is None or last is None else first[0] - last[0]
    if claim.kind == "gain":
        pairs = [[over_widths(suite, cells, claim.dataset, each, rows) for each in (claim.method, claim.over)]
                 for rows in aligned]  # fmt: skip
        return max((ours[0] - other[0] for ours, other in pairs if ours and other), default=None)
    sizes = [[_formula_bytes(cells, claim.dataset, each, rows) for each in (claim.method, claim.over)]
             for rows in aligned]  # fmt: skip
    return max((other / ours for ours, other in sizes if ours and other), default=None)


def _formula_bytes(cells: Sequence[Cell], dataset: str, method: str, aligned: int) -> float | None:
    """Return the mean number of bytes by the paper's formula over all runs; ``None`` if the formula covers no run."""
    sizes = [size for cell in cells if cell.matches(dataset=dataset, method=method, aligned=aligned)
             for size in cell.measures["formula_bytes"].values()]  # fmt: skip
    return statistics.fmean(sizes) if sizes else None
