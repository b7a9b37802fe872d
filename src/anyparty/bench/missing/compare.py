"""From records to a table: ours beside the paper's, with both spreads, as Markdown and CSV."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.bench import suite as base
from anyparty.bench.missing import figure

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
        epoch: mean seconds of an epoch.

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
    epoch: float

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


@dataclass(frozen=True, kw_only=True)
class Page(base.Page):
    """The tables of a suite, and its plot."""

    suite: Suite
    cells: Sequence[Cell]

    def plot(self, path: Path) -> None:
        """See the base."""
        if self.cells:
            figure.plot(self.suite, self.cells, path)


def page(suite: Suite, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> Page:
    """Return a suite's results, from its records by key."""
    found = cells(suite, records)
    return Page(suite=suite, cells=found, markdown=markdown(suite, found, about), csv=as_csv(found))


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
            for parties in suite.parties:
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
                            epoch=statistics.fmean(record["seconds"] / record["epochs"] for record in found),
                        )  # fmt: skip


def _value(scores: Mapping[str, Any], metric: str) -> float:
    value = scores["clients"].get(metric, scores["overall"].get(metric))
    return math.nan if value is None else float(value)


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables of a suite, one a data set and number of parties, and what must be known to read them."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        mine = [cell for cell in found if cell.dataset == dataset]
        if len(suite.parties) > 1:
            lines += _against_parties(suite, dataset, mine)
        elif mine:
            lines += [f"## {dataset}, {mine[0].parties} parties: {entry.unit}", "", *_table(suite, dataset, mine), ""]
        if mine and entry.in_place_of:
            lines += [f"In place of {entry.in_place_of}.", ""]
    lines += [LEGEND, ""]
    lines += base.footer(suite, about)
    return "\n".join(lines) + "\n"


def _table(suite: Suite, dataset: str, here: Sequence[Cell]) -> list[str]:
    at = {(cell.method, cell.missing, cell.test): cell for cell in here}
    columns = [(missing, test) for missing in suite.train_missing for test in suite.test_missing]
    best = {
        column: max((cell.ours[0] for cell in here if (cell.missing, cell.test) == column), default=math.nan)
        for column in columns
    }
    entries = suite.datasets[dataset].methods
    lines = [
        "| missing in training → at test | "
        + " | ".join(f"{missing} → {test}" for missing, test in columns)
        + " | s / training |",
        "|---|" + "---|" * (len(columns) + 1),
    ]
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


def _against_parties(suite: Suite, dataset: str, mine: Sequence[Cell]) -> list[str]:
    """Return a table of the metric against the number of parties for each pair of mechanisms, and one of the time."""
    entry, lines = suite.datasets[dataset], list[str]()
    first, heads = "|---|" + "---|" * len(suite.parties), " | ".join(f"K = {k}" for k in suite.parties)
    for missing, test in [(missing, test) for missing in suite.train_missing for test in suite.test_missing]:
        at = {(c.method, c.parties): c for c in mine if (c.missing, c.test) == (missing, test)}
        there = [(method, of.title) for method, of in entry.methods.items() if any(name == method for name, _ in at)]
        if not there:
            continue
        best = {k: max((c.ours[0] for c in at.values() if c.parties == k), default=math.nan) for k in suite.parties}
        lines += [f"## {dataset}, missing {missing} → {test}: {entry.unit}", "", f"| method | {heads} |", first]
        for method, title in there:
            shown = " | ".join(_shown(at.get((method, k)), best[k]) for k in suite.parties)
            lines.append(f"| {title} | {shown} |")
        lines += ["", f"Seconds of a training epoch, {dataset}, missing {missing}:", "", f"| method | {heads} |", first]
        for method, title in there:
            took = " | ".join(f"{at[method, k].epoch:.2f}" if (method, k) in at else "" for k in suite.parties)
            lines.append(f"| {title} | {took} |")
        lines.append("")
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
             "paper_mean", "paper_std", "difference", "outside_both_spreads", "seconds",
             "seconds_an_epoch"]  # fmt: skip
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for cell in found:
        paper = cell.paper or ("", "")
        difference = "" if cell.difference is None else f"{cell.difference:.3f}"
        ours = [f"{value:.3f}" for value in cell.ours]
        row = [cell.dataset, cell.method, cell.parties, cell.missing, cell.test, *ours, cell.seeds, *paper, difference,
               cell.outside if cell.paper else "", f"{cell.seconds:.1f}", f"{cell.epoch:.3f}"]  # fmt: skip
        writer.writerow(row)
    return text.getvalue()
