"""How far a paper's own methods are ahead of the strongest it is compared with, as in FALSE-VFL's table 2.

A configuration is a data set, a training mechanism and a test mechanism.  Its gap is the best mean of the paper's own
methods less the best mean of all others, in points; it counts where both are there.  A paper whose means are printed
with one decimal counts an equal one as ahead (FALSE-VFL: 160 of 168, one of them equal), and so do we.

Ours stand beside the paper's in the same configurations and of the same methods: those that have run here and that the
paper prints.  Ours are means over the seeds that all methods compared in a configuration have; one without such a seed
is left out of both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyparty.experiments.missing_blocks import seeds

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.cells import Cell
    from anyparty.experiments.missing_blocks.suite import MethodEntry, Suite

Configuration = tuple[str, str, str]
"""Data set, training mechanism, test mechanism."""

Means = Mapping[tuple[str, str, str, str], float]
"""The mean of a method in a configuration: (data set, method, training mechanism, test mechanism)."""

ALIKE = (
    "Both lines are of the same methods in the same configurations, those that have run here. Ours are over the seeds "
    "that all of these methods have there; a configuration without any is left out."
)
PRINTED = (
    "Mean over configurations, and in how many they are ahead of the best of the paper's own methods as printed, which "
    "were trained and tested on other draws:"
)
RUN = (
    "The same beside the best of the paper's own methods as run here ({titles}), over the seeds that all of them have:"
)


def printed(suite: Suite) -> dict[tuple[str, str, str, str], float]:
    """Return the paper's means."""
    return {
        (dataset, method, missing, test): mean
        for dataset, methods in suite.published.items()
        for method, tables in methods.items()
        for missing, cells in tables.items()
        for test, (mean, _) in zip(suite.test_missing, cells, strict=True)
    }


def best(suite: Suite, means: Means, *, own: bool) -> dict[Configuration, float]:
    """Return the best mean of each configuration among the paper's own methods, or among all others."""
    found: dict[Configuration, float] = {}
    for (dataset, method, missing, test), mean in means.items():
        entry = suite.datasets[dataset].methods[method]
        if entry.own == own and not entry.beyond:
            at = dataset, missing, test
            found[at] = max(mean, found.get(at, mean))
    return found


def gaps(suite: Suite, means: Means) -> dict[Configuration, float]:
    """Return the gap of each configuration that both sides have."""
    ours, others = (best(suite, means, own=own) for own in (True, False))
    return {at: ours[at] - others[at] for at in ours if at in others}


def alike(found: Iterable[Cell], theirs: Means) -> tuple[Means, Means]:
    """Return our means and the paper's, in the same configurations and of the same methods."""
    found = list(found)
    at = seeds_at(found)
    ours = {_place(cell): cell.over(at[_at(cell)]) for cell in found if _at(cell) in at}
    return ours, {place: theirs[place] for place in ours if place in theirs}


def seeds_at(found: Iterable[Cell]) -> dict[Configuration, list[int]]:
    """Return the seeds that all methods of a data set have in a configuration; one without any is left out."""
    groups: dict[Configuration, list[Cell]] = {}
    methods: dict[str, set[str]] = {}
    for cell in found:
        groups.setdefault(_at(cell), []).append(cell)
        methods.setdefault(cell.dataset, set()).add(cell.method)
    return {
        at: common for at, cells in groups.items()
        if {cell.method for cell in cells} == methods[at[0]] and (common := seeds.shared(cells))
    }  # fmt: skip


def summary(suite: Suite, found: Sequence[Cell]) -> list[str]:
    """Return the lines of a page that say it: by data set, training and test mechanism, ours above the paper's.

    A suite without own methods has no such lines.
    """
    theirs = printed(suite)
    cells = [cell for cell in found if not _entry(suite, cell).beyond and (not theirs or _place(cell) in theirs)]
    own, more = [cell for cell in cells if _entry(suite, cell).own], beyond(suite, found, theirs)
    ours, papers = (best(suite, means, own=True) for means in alike(own, theirs))
    if not ours:
        return more
    lines = ["## The paper's own methods", "", ALIKE, ""]
    lines += [f"Mean over configurations of the best of them ({_titles(suite, own)}; {_counts(own, ours)}):", ""]
    lines += [*_rows(list(dict.fromkeys(at[0] for at in ours)), lambda at: at[0], ours, papers), ""]
    ours, papers = (gaps(suite, means) for means in alike(cells, theirs))
    if not ours:
        return [*lines, *more]
    others = _titles(suite, [cell for cell in cells if not _entry(suite, cell).own and _at(cell) in ours])
    heading = "Gap to the strongest of the others, in points, and in how many configurations they are ahead"
    lines += [f"{heading} (others: {others}; {_counts(cells, ours)}):", ""]
    lines += ["| | configurations | mean gap | ahead |", "|---|---|---|---|"]
    lines += [_ahead("ours", ours), *([_ahead("*paper*", papers)] if papers else []), ""]
    for part in range(3):
        names = list(dict.fromkeys(at[part] for at in ours))
        lines += [*_rows(names, lambda at, part=part: at[part], ours, papers), ""]  # type: ignore[misc]
    return [*lines, *more]


def beyond(suite: Suite, found: Sequence[Cell], theirs: Means) -> list[str]:
    """Return the lines on methods that the paper does not have, beside the best of its own, as printed and as run here.

    The printed ones had other draws, also where a mechanism is the same; what has run here is compared on the same.
    """
    mine: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        if _entry(suite, cell).beyond:
            mine.setdefault((cell.dataset, cell.method), []).append(cell)
    own = [cell for cell in found if _entry(suite, cell).own]
    of_paper, as_printed, as_run = best(suite, theirs, own=True), list[str](), list[str]()
    for (dataset, method), cells in mine.items():
        title = f"{suite.datasets[dataset].methods[method].title}, {dataset}"
        as_printed += _beside(title, {_at(cell): cell.ours[0] for cell in cells}, of_paper, seeds_at(cells))
        compared = [*cells, *(cell for cell in own if cell.dataset == dataset)]
        means, _ = alike(compared, {})
        its = {(dataset, *place[2:]): mean for place, mean in means.items() if place[1] == method}
        as_run += _beside(title, its, best(suite, means, own=True), seeds_at(compared))
    run, lines = RUN.format(titles=_titles(suite, own)), list[str]()
    for said, other, rows in ((PRINTED, "*paper*", as_printed), (run, "paper's own, run here", as_run)):
        if rows:
            lines += [said, "", f"| | configurations | seeds | ours | {other} | ahead |", "|---|---|---|---|---|---|"]
            lines += [*rows, ""]
    return ["## Beyond the paper", "", *lines] if lines else []


def _beside(
    title: str, mine: Mapping[Configuration, float], other: Mapping[Configuration, float],
    at: Mapping[Configuration, Iterable[int]],
) -> list[str]:  # fmt: skip
    """Return a row of means where both are there, if they are anywhere."""
    both = [place for place in mine if place in other]
    if not both:
        return []
    ahead = sum(mine[place] >= other[place] for place in both)
    means = [f"{statistics.fmean(each[place] for place in both):.1f}" for each in (mine, other)]
    cells = [title, f"{len(both)}", seeds.words(at[place] for place in both), *means, f"{ahead} of {len(both)}"]
    return [f"| {' | '.join(cells)} |"]


def _entry(suite: Suite, cell: Cell) -> MethodEntry:
    return suite.datasets[cell.dataset].methods[cell.method]


def _place(cell: Cell) -> tuple[str, str, str, str]:
    return cell.dataset, cell.method, cell.missing, cell.test


def _at(cell: Cell) -> Configuration:
    return cell.dataset, cell.missing, cell.test


def _titles(suite: Suite, cells: Iterable[Cell]) -> str:
    return "; ".join(dict.fromkeys(_entry(suite, cell).title for cell in cells))


def _counts(compared: Iterable[Cell], at: Iterable[Configuration]) -> str:
    """Return how many configurations there are, and how many seeds each has."""
    of = seeds_at(compared)
    each = [of[place] for place in at]
    return f"configurations: {len(each)}, seeds of each: {seeds.words(each)}"


def _ahead(title: str, of: Mapping[Configuration, float]) -> str:
    ahead = sum(gap >= 0 for gap in of.values())
    return f"| {title} | {len(of)} | {statistics.fmean(of.values()):z.1f} | {ahead} of {len(of)} |"


def _rows(
    names: Iterable[str], by: Callable[[Configuration], Any], ours: Mapping[Configuration, float],
    papers: Mapping[Configuration, float],
) -> list[str]:  # fmt: skip
    """Return a table of means: a column for each name, ours above the paper's."""
    names = list(names)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for title, of in (("ours", ours), ("*paper*", papers)):
        if of:
            each = [[value for at, value in of.items() if by(at) == name] for name in names]
            lines.append(f"| {title} | " + " | ".join(f"{statistics.fmean(e):z.1f}" if e else "" for e in each) + " |")
    return lines
