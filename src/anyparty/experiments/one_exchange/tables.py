"""From cells to a page: scores by number of columns and of aligned rows, costs beside formulas, the paper's numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any

from anyparty.experiments import suite as base
from anyparty.experiments.one_exchange import plots
from anyparty.experiments.one_exchange.cells import Cell, Spread, cells, claimed, over_widths, spread

if TYPE_CHECKING:
    from anyparty.experiments.one_exchange.suite import Suite

FOLDED = "Mean of {folds} folds; mean ± standard deviation over the repeats."
ACROSS = "Mean over the numbers of columns; ± standard deviation over them, as in the paper's figure."
COSTS = ("Rounds and bytes of the method's own messages as sent, each way on its own; beside them the bytes by the "
         "formulas of appendix E, for the same run.")  # fmt: skip


def page(suite: Suite, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> base.Page:
    """Return a suite's results, from its records by key."""
    found = cells(suite, records)
    return base.Page(cells=found, markdown=markdown(suite, found, about), csv=as_csv(suite, found),
                     draw=partial(plots.plot, suite, found))  # fmt: skip


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return all tables, and what must be known to read them."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in found if cell.dataset == dataset]
        if not here:
            continue
        lines += [f"## {dataset}: {entry.unit}" if suite.shows == "scores" else f"## {dataset}", ""]
        if suite.shows == "scores":
            lines += [*_scores(suite, here, dataset), ""]
        lines += [*_costs(suite, here, dataset), ""]
    lines += _claims(suite, found)
    return "\n".join(lines + base.footer(suite, found, about)) + "\n"


def _scores(suite: Suite, here: Sequence[Cell], dataset: str) -> Iterator[str]:
    entry = suite.datasets[dataset]
    heads = [f"{aligned:,} aligned" for aligned in entry.aligned]
    if len(entry.widths) > 1:
        yield from [ACROSS, ""]
        rows = [[over_widths(suite, here, dataset, method, each) for each in entry.aligned] for method in suite.methods]
        yield from table(heads, [(of.title, row) for of, row in zip(suite.methods.values(), rows, strict=True)])
        yield ""
    yield from [FOLDED.format(folds=suite.folds) if not entry.test else f"{entry.test} rows held out; mean ± standard "
                "deviation over the repeats.", ""]  # fmt: skip
    most = max(len(cell.scores) for cell in here)
    if few := sum(len(cell.scores) < most for cell in here):
        yield from [f"Left out: {few} cells that have not run {most} times yet, as the others have.", ""]
    for width in entry.widths:
        shown: list[tuple[str, Sequence[Spread | None]]] = []
        for method, of in suite.methods.items():
            found = [_at(here, method, width, aligned) for aligned in entry.aligned]
            mine = [cell if cell and len(cell.scores) == most else None for cell in found]
            shown.append((of.title, [None if cell is None else cell.score for cell in mine]))
            if any(cell and cell.paper for cell in mine):
                shown.append(("*paper*", [_percent(cell) for cell in mine]))
        yield from [f"{width} columns at the active party:", ""]
        yield from [*table(heads, shown), ""]


def _percent(cell: Cell | None) -> Spread | None:
    return None if cell is None or cell.paper is None else (100 * cell.paper.score[0], 100 * cell.paper.score[1])


def _at(here: Sequence[Cell], method: str, width: int, aligned: int) -> Cell | None:
    """Return a cell; of a method that learns from nobody, the one for all numbers of aligned rows."""
    return next((cell for cell in here if (cell.method, cell.width) == (method, width)
                 and cell.aligned in {0, aligned}), None)  # fmt: skip


def table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Spread | None]]]) -> list[str]:
    """Return a Markdown table of means and spreads; rows without any number are left out, a column's best is bold."""
    ours = [values for title, values in rows if title != "*paper*"]
    best = [max((round(value[0], 1) for value in column if value), default=None) for column in zip(*ours, strict=True)]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for title, values in rows:
        shown = []
        for value, most in zip(values, best, strict=True):
            number = "" if value is None else f"{value[0]:.1f}" + ("" if math.isnan(value[1]) else f" ± {value[1]:.1f}")
            is_best = value is not None and title != "*paper*" and round(value[0], 1) == most
            shown.append(f"**{number}**" if is_best else number)
        if any(values):
            lines.append(f"| {title} | " + " | ".join(shown) + " |")
    return lines


def _costs(suite: Suite, here: Sequence[Cell], dataset: str) -> list[str]:
    heads = ("aligned", "rounds", "by formula", "*paper*", "MB", "by formula", "*paper*", "CPU s / run")
    lines = [COSTS, "", "| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    width = suite.datasets[dataset].widths[0]
    rows = [f"| {suite.methods[cell.method].title} | " + " | ".join(_cost(cell)) + " |"
            for cell in here if cell.width == width]  # fmt: skip
    return [*lines, *rows, "", f"With {width} columns at the active party."]


def _cost(cell: Cell) -> list[str]:
    """Return what a row of the table of costs says after the method's name."""
    rounds = [f"{spread(each)[0]:,.0f}" if each else "" for each in (cell.rounds, cell.formula_rounds)]
    size = [f"{spread(each)[0] / 1e6:,.2f}" if each else "" for each in (cell.sent, cell.formula)]
    paper = ["", ""]
    if cell.paper is not None:
        (rounds_mean, rounds_std), (mean, std) = cell.paper.rounds, cell.paper.megabytes
        paper = [f"{rounds_mean:,.0f} ± {rounds_std:,.0f}", f"{mean:,.2f} ± {std:,.2f}"]
    aligned = f"{cell.aligned:,}" if cell.aligned else "any"
    return [aligned, *rounds, paper[0], *size, paper[1], f"{cell.cpu_seconds:.0f}"]


def _claims(suite: Suite, found: Sequence[Cell]) -> list[str]:
    if not suite.claims:
        return []
    lines = ["## What the paper's text says", "", "| where | its words | data set | paper | ours |",
             "|---|---|---|---:|---:|"]  # fmt: skip
    for claim in suite.claims:
        ours = claimed(suite, found, claim)
        shown = "" if ours is None else f"{ours:.2f}"
        lines.append(f"| {claim.place} | {claim.says} | {claim.dataset} | {claim.number:g} | {shown} |")
    return [*lines, ""]


def as_csv(suite: Suite, found: Sequence[Cell]) -> str:
    """Return one line a cell."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", "method", "columns", "aligned", "metric", "mean", "std", "repeats", "rounds",
                     "bytes_sent", "bytes_by_formula", "paper_mean", "paper_std", "cpu_seconds"])  # fmt: skip
    for cell in found:
        paper = [f"{value:.1f}" for value in _percent(cell) or ()] or ["", ""]
        formula = f"{spread(cell.formula)[0]:.0f}" if cell.formula else ""
        writer.writerow([
            cell.dataset, cell.method, cell.width, cell.aligned or "any", suite.datasets[cell.dataset].metric,
            *("" if math.isnan(value) else f"{value:.3f}" for value in cell.score), len(cell.scores),
            f"{spread(cell.rounds)[0]:.1f}", f"{spread(cell.sent)[0]:.0f}", formula, *paper, f"{cell.cpu_seconds:.1f}",
        ])  # fmt: skip
    return text.getvalue()
