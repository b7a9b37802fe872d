"""From records to tables: ours beside the paper's, with both spreads, as Markdown and CSV."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from anyparty.bench import suite as base
from anyparty.bench.missing import gaps

if TYPE_CHECKING:
    from anyparty.bench.missing.suite import Suite

LEGEND = (
    "Ours: mean ± standard deviation over the seeds; below it the paper's. **Bold**: the best of our column. "
    "▲ ▼: above or below the paper's by more than both spreads together."
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table.

    Attributes:
        dataset, method, parties, missing, test: which.
        ours: mean and standard deviation over the seeds (n - 1), times 100 for shares.
        seeds: how many seeds that is.
        paper: its mean and spread, if it gives them.
        seconds: mean training time.
        rates: the shares of blocks that were missing in training and at test, means over the seeds.

    """

    dataset: str
    method: str
    parties: int
    missing: str
    test: str
    ours: tuple[float, float]
    seeds: int
    paper: tuple[float, float] | None
    seconds: float
    rates: tuple[float, float] = (math.nan, math.nan)

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


def cells(suite: Suite, records: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
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
                        values = [100 * _value(record["scores"][test], entry.metric) for record in found]
                        printed = suite.published.get(dataset, {}).get(method, {}).get(missing)
                        yield Cell(
                            dataset=dataset, method=method, parties=parties, missing=missing, test=test,
                            ours=(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0),
                            seeds=len(values), paper=printed[place] if printed else None,
                            seconds=statistics.fmean(record["seconds"] for record in found),
                            rates=(statistics.fmean(record["missing"] for record in found),
                                   statistics.fmean(record["scores"][test]["missing"] for record in found)),
                        )  # fmt: skip


def _value(scores: Mapping[str, Any], metric: str) -> float:
    value = scores["clients"].get(metric, scores["overall"].get(metric))
    return math.nan if value is None else float(value)


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables of a suite, one a data set and number of parties, and what must be known to read them."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        for parties in suite.parties_of(dataset):
            here = [cell for cell in found if cell.dataset == dataset and cell.parties == parties]
            if here:
                lines += _tables(suite, dataset, f"{dataset}, {parties} parties: {entry.unit}", here)
    lines += [LEGEND, "", *gaps.summary(suite, found), *base.footer(suite, about)]
    return "\n".join(lines) + "\n"


def _tables(suite: Suite, dataset: str, title: str, here: Sequence[Cell]) -> list[str]:
    """Return a data set's tables with their headings: one, or one for each training mechanism."""
    entry, lines = suite.datasets[dataset], []
    if suite.layout == "columns":
        columns = [(missing, test) for missing in suite.train_missing for test in suite.test_missing]
        names = [f"{missing} → {test}" for missing, test in columns]
        lines += [f"## {title}", "", *_table(suite, dataset, here, columns, ["missing in training → at test", *names])]
        return [*lines, "", *([f"In place of {entry.in_place_of}.", ""] if entry.in_place_of else [])]
    for missing in suite.train_missing:
        of = [cell for cell in here if cell.missing == missing]
        if of:
            columns = [(missing, test) for test in suite.test_missing]
            lines += [f"## {title}, trained under {missing}", "", f"Blocks missing: {_rates(of)}.", ""]
            lines += [*_table(suite, dataset, of, columns, ["missing at test", *suite.test_missing]), ""]
    return lines


def _rates(cells: Sequence[Cell]) -> str:
    """Return the shares of blocks that were missing, in words."""
    tests = {cell.test: cell.rates[1] for cell in cells}
    return f"{cells[0].rates[0]:.0%} in training; at test " + ", ".join(f"{k} {v:.0%}" for k, v in tests.items())


def _table(
    suite: Suite, dataset: str, here: Sequence[Cell], columns: Sequence[tuple[str, str]], heading: Sequence[str]
) -> list[str]:
    at = {(cell.method, cell.missing, cell.test): cell for cell in here}
    best = {
        column: max((cell.ours[0] for cell in here if (cell.missing, cell.test) == column), default=math.nan)
        for column in columns
    }
    entries = suite.datasets[dataset].methods
    lines = ["| " + " | ".join([*heading, "s / training"]) + " |", "|---|" + "---|" * (len(columns) + 1)]
    for method, entry in entries.items():
        mine = [at.get((method, *column)) for column in columns]
        if not any(mine):
            continue
        seconds = statistics.fmean(cell.seconds for cell in mine if cell)
        shown = (_shown(cell, best[column]) for cell, column in zip(mine, columns, strict=True))
        lines.append(f"| {entry.title} | " + " | ".join(shown) + f" | {seconds:.0f} |")
        if any(cell and cell.paper for cell in mine):
            papers = (
                "" if not cell or not cell.paper else f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}" for cell in mine
            )
            lines.append("| *paper* | " + " | ".join(papers) + " | |")
    return lines


def _shown(cell: Cell | None, best: float) -> str:
    if cell is None:
        return ""
    mark = "" if not cell.outside else (" ▲" if (cell.difference or 0) > 0 else " ▼")
    number = f"{cell.ours[0]:.1f} ± {cell.ours[1]:.1f}"
    return (f"**{number}**" if cell.ours[0] >= best else number) + mark


def as_csv(found: Sequence[Cell]) -> str:
    """Return one line a cell."""
    text = StringIO()
    names = ["dataset", "method", "parties", "train_missing", "test_missing", "mean", "std", "seeds",
             "paper_mean", "paper_std", "difference", "outside_both_spreads", "seconds"]  # fmt: skip
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for cell in found:
        paper = cell.paper or ("", "")
        difference = "" if cell.difference is None else f"{cell.difference:.3f}"
        ours = [f"{value:.3f}" for value in cell.ours]
        row = [cell.dataset, cell.method, cell.parties, cell.missing, cell.test, *ours, cell.seeds, *paper, difference,
               cell.outside if cell.paper else "", f"{cell.seconds:.1f}"]  # fmt: skip
        writer.writerow(row)
    return text.getvalue()
