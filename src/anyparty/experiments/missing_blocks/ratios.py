"""Ratios of two training mechanisms, as in FALSE-VFL's table 18: how well a method bears more missing blocks.

A ratio is over the seeds that both trainings have; methods of a column are compared over those that all of them have.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from anyparty.experiments import suite as base
from anyparty.experiments.missing_blocks import seeds

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.cells import Cell
    from anyparty.experiments.missing_blocks.suite import Suite

LEGEND = (
    "Ours: the mean over the seeds of the metric trained under {more}, over that trained under {less}, in per cent; "
    "below it the paper's. **Bold**: the highest of our column, compared over the seeds that all its rows have, other "
    "draws left out. Where rows differ in their seeds, a column has how many and which."
)

Place = tuple[str, str, str]
"""Data set, method, test mechanism."""


def pairs(suite: Suite, found: Sequence[Cell]) -> dict[Place, tuple[Cell, Cell]]:
    """Return the cells trained with less and with more missing blocks, where they have a seed in common."""
    less, more = suite.train_missing[0], suite.train_missing[-1]
    at = {(cell.dataset, cell.method, cell.test, cell.missing): cell for cell in found}
    both = {key[:3]: (at.get((*key[:3], less)), at.get((*key[:3], more))) for key in at}
    return {place: (low, high) for place, (low, high) in both.items() if low and high and seeds.shared((low, high))}


def ratios(suite: Suite, found: Sequence[Cell]) -> dict[Place, float]:
    """Return each method's ratio in per cent, over the seeds of its own two trainings."""
    each = {place: _ratio(*pair, seeds.shared(pair)) for place, pair in pairs(suite, found).items()}
    return {place: ratio for place, ratio in each.items() if ratio is not None}


def compared(suite: Suite, found: Sequence[Cell]) -> dict[Place, float]:
    """Return the ratios over the seeds that all methods of a column have; a column without any is left out."""
    of, ratio = pairs(suite, found), dict[Place, float]()
    for (dataset, method, test), pair in of.items():
        column = [cell for place, both in of.items() if (place[0], place[2]) == (dataset, test) for cell in both]
        if (mean := _ratio(*pair, seeds.shared(column))) is not None:
            ratio[dataset, method, test] = mean
    return ratio


def _ratio(less: Cell, more: Cell, over: Sequence[int]) -> float | None:
    """Return the ratio of the means over some seeds; ``None`` without any, or of a mean to 0."""
    return 100 * more.over(over) / less.over(over) if over and less.over(over) else None


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables, one a data set, and in how many columns one of the paper's own methods has the highest."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in found if cell.dataset == dataset]
        if pairs(suite, here):
            lines += [f"## {dataset}: {entry.unit}, ratio in %", "", *_table(suite, dataset, here), ""]
    lines += [LEGEND.format(less=suite.train_missing[0], more=suite.train_missing[-1]), ""]
    lines += [f"The highest of a column is one of the paper's own methods {_summary(suite, found)}.", ""]
    return "\n".join([*lines, *base.footer(suite, found, about)]) + "\n"


def _summary(suite: Suite, found: Sequence[Cell]) -> str:
    """Return in how many columns: of ours, of the paper's with the same methods, and of all of the paper's."""
    theirs = printed(suite)
    ours = {place: ratio for place, ratio in compared(suite, found).items() if not theirs or place in theirs}
    of_paper = f"in the paper in {_leads(suite, theirs)}"
    if not _columns(suite, ours):
        return of_paper
    same = {place: theirs[place] for place in ours if place in theirs}
    of_same = f"; in the paper, of the same methods, in {_leads(suite, same)}, of all {_leads(suite, theirs)}"
    return f"in {_leads(suite, ours)} columns where they and others have run" + (of_same if same else "")


def printed(suite: Suite) -> dict[tuple[str, str, str], float]:
    """Return the paper's ratios."""
    return {
        (dataset, method, test): ratio
        for dataset, methods in suite.published_ratios.items()
        for method, row in methods.items()
        for test, ratio in zip(suite.test_missing, row, strict=True)
    }


def _columns(suite: Suite, of: Mapping[Place, float]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the columns where one of the paper's own methods and another are: ratios by method."""
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for (dataset, method, test), ratio in of.items():
        if not suite.datasets[dataset].methods[method].beyond:
            columns.setdefault((dataset, test), {})[method] = ratio
    sides = {at: {suite.datasets[at[0]].methods[method].own for method in row} for at, row in columns.items()}
    return {at: row for at, row in columns.items() if len(sides[at]) == 2}


def _leads(suite: Suite, of: Mapping[Place, float]) -> str:
    columns = _columns(suite, of)
    tops = [(dataset, max(row, key=lambda method: row[method])) for (dataset, _), row in columns.items()]
    leads = sum(suite.datasets[dataset].methods[method].own for dataset, method in tops)
    return f"{leads} of {len(tops)}"


def _table(suite: Suite, dataset: str, here: Sequence[Cell]) -> list[str]:
    of, own, alike = pairs(suite, here), ratios(suite, here), compared(suite, here)
    best = {test: max(ratio for (*_, t), ratio in alike.items() if t == test) for *_, test in alike}
    uneven = seeds.differ(cell for pair in of.values() for cell in pair)
    heads = ["missing at test", *suite.test_missing, *(["seeds"] if uneven else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---|" * (len(heads) - 1)]
    for method, entry in suite.datasets[dataset].methods.items():
        places = [(dataset, method, test) for test in suite.test_missing]
        if any(place in own for place in places):
            row = [_shown(own.get(at), at in alike and alike[at] >= best[at[2]]) for at in places]
            row += [seeds.words(seeds.shared(of[at]) for at in places if at in of)] if uneven else []
            lines.append(f"| {entry.title} | " + " | ".join(row) + " |")
            if method in suite.published_ratios.get(dataset, {}):
                paper = [f"{ratio:.1f}" for ratio in suite.published_ratios[dataset][method]]
                lines.append("| *paper* | " + " | ".join([*paper, *([""] if uneven else [])]) + " |")
    return lines


def as_csv(suite: Suite, found: Sequence[Cell]) -> str:
    """Return one line a ratio: over the seeds of its own trainings, and over those that its whole column has."""
    text, theirs = StringIO(), printed(suite)
    of, own, alike = pairs(suite, found), ratios(suite, found), compared(suite, found)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", "method", "test_missing", "ratio", "seeds", "ratio_compared", "paper_ratio"])
    for place, ratio in own.items():
        both = f"{alike[place]:.3f}" if place in alike else ""
        writer.writerow([*place, f"{ratio:.3f}", len(seeds.shared(of[place])), both, theirs.get(place, "")])
    return text.getvalue()


def _shown(ratio: float | None, best: bool) -> str:
    if ratio is None:
        return ""
    return f"**{ratio:.1f}**" if best else f"{ratio:.1f}"
