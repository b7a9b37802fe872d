"""From records to tables: ours beside the paper's, with both spreads, as Markdown and CSV."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from anyparty.experiments import suite as base
from anyparty.experiments.missing_blocks import gaps, seeds
from anyparty.experiments.missing_blocks.by_parties import against_parties
from anyparty.experiments.missing_blocks.cells import Cell, shown

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Suite

LEGEND = (
    "Ours: mean ± standard deviation over the seeds, without ± of one seed; below it the paper's. "
    "**Bold**: the best of our column, compared over the seeds that all its rows have, other draws left out. "
    "Where rows differ in their seeds, a column has how many and which. "
    "▲ ▼: above or below the paper's by more than both spreads together."
)


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables of a suite, one a data set and number of parties, and what must be known to read them."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        here, several = [cell for cell in found if cell.dataset == dataset], suite.parties_of(dataset)
        if len(several) > 1:
            lines += against_parties(suite, dataset, here)
        elif here:
            lines += _tables(suite, dataset, f"{dataset}, {several[0]} parties: {entry.unit}", here)
        if here and entry.in_place_of:
            lines += [f"In place of {entry.in_place_of}.", ""]
    lines += [LEGEND, "", *gaps.summary(suite, found), *base.footer(suite, found, about)]
    return "\n".join(lines) + "\n"


def _tables(suite: Suite, dataset: str, title: str, here: Sequence[Cell]) -> list[str]:
    """Return a data set's tables with their headings: one, or one for each training mechanism."""
    lines = list[str]()
    if suite.layout == "columns":
        columns = [(missing, test) for missing in suite.train_missing for test in suite.test_missing]
        names = [f"{missing} → {test}" for missing, test in columns]
        lines += [f"## {title}", "", *_table(suite, dataset, here, columns, ["missing in training → at test", *names])]
        return [*lines, ""]
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
    best = {column: seeds.best([cell for cell in here if (cell.missing, cell.test) == column]) for column in columns}
    entries, uneven = suite.datasets[dataset].methods, seeds.differ(here)
    heads = [*heading, *(["seeds"] if uneven else []), "s / training"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---|" * (len(heads) - 1)]
    for method, entry in entries.items():
        mine = [at.get((method, *column)) for column in columns]
        if not any(mine):
            continue
        row = [shown(cell, best[column]) for cell, column in zip(mine, columns, strict=True)]
        row += [seeds.words(cell.by_seed for cell in mine if cell)] if uneven else []
        seconds = statistics.fmean(cell.seconds for cell in mine if cell)
        lines.append(f"| {entry.title} | " + " | ".join(row) + f" | {seconds:.0f} |")
        if any(cell and cell.paper for cell in mine):
            papers = (
                "" if not cell or not cell.paper else f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}" for cell in mine
            )
            lines.append("| *paper* | " + " | ".join(papers) + (" | | |" if uneven else " | |"))
    return lines


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
        mean, spread = (f"{value:.3f}" for value in cell.ours)
        ours = [mean, spread if cell.seeds > 1 else ""]
        row = [cell.dataset, cell.method, cell.parties, cell.missing, cell.test, *ours, cell.seeds, *paper, difference,
               cell.outside if cell.paper and cell.seeds > 1 else "", f"{cell.seconds:.1f}"]  # fmt: skip
        writer.writerow(row)
    return text.getvalue()
