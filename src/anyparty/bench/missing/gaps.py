"""How far a paper's own methods are ahead of the strongest it is compared with, as in FALSE-VFL's table 2.

A configuration is a data set, a training mechanism and a test mechanism.  Its gap is the best mean of the paper's own
methods less the best mean of all others, in points; it counts where both are there.  A paper whose means are printed
with one decimal counts an equal one as ahead (FALSE-VFL: 160 of 168, one of them equal), and so do we.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.bench.missing.cells import Cell
    from anyparty.bench.missing.suite import Suite

Configuration = tuple[str, str, str]
"""Data set, training mechanism, test mechanism."""

Means = Mapping[tuple[str, str, str, str], float]
"""The mean of a method in a configuration: (data set, method, training mechanism, test mechanism)."""


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


def summary(suite: Suite, found: Sequence[Cell]) -> list[str]:
    """Return the lines of a page that say it: by data set, training and test mechanism, ours above the paper's.

    The paper's are over the same configurations as ours.  A suite without own methods has no such lines.
    """
    means = {(cell.dataset, cell.method, cell.missing, cell.test): cell.ours[0] for cell in found}
    own, theirs = best(suite, means, own=True), printed(suite)
    if not own:
        return beyond(suite, means, theirs)
    ours, papers = gaps(suite, means), {at: gap for at, gap in gaps(suite, theirs).items() if at in own}
    lines = ["## The paper's own methods", "", "Mean over configurations of the best of them:", ""]
    of_paper = {at: mean for at, mean in best(suite, theirs, own=True).items() if at in own}
    lines += _rows(list(dict.fromkeys(at[0] for at in own)), lambda at: at[0], own, of_paper)
    more = beyond(suite, means, theirs)
    if not ours:
        return [*lines, "", *more]
    lines += ["", "Gap to the strongest of the others, in points, and in how many configurations they are ahead:", ""]
    lines += ["| | configurations | mean gap | ahead |", "|---|---|---|---|"]
    lines += [_ahead("ours", ours), *([_ahead("*paper*", papers)] if papers else []), ""]
    for part in range(3):
        names = list(dict.fromkeys(at[part] for at in ours))
        lines += [*_rows(names, lambda at, part=part: at[part], ours, papers), ""]  # type: ignore[misc]
    return [*lines, *more]


def beyond(suite: Suite, means: Means, theirs: Means) -> list[str]:
    """Return the lines on methods that the paper does not have, beside the best of its own as it printed them.

    Its masks are not ours: where a mechanism is described in prose alone, both stand for it.
    """
    of_paper, found = best(suite, theirs, own=True), dict[tuple[str, str], dict[Configuration, float]]()
    for (dataset, method, missing, test), mean in means.items():
        if suite.datasets[dataset].methods[method].beyond and (dataset, missing, test) in of_paper:
            found.setdefault((method, dataset), {})[dataset, missing, test] = mean
    if not found:
        return []
    said = "Mean over configurations, and in how many they are ahead of the best of the paper's own methods as printed:"
    lines = ["## Beyond the paper", "", said, ""]
    lines += ["| | configurations | ours | *paper* | ahead |", "|---|---|---|---|---|"]
    for (method, dataset), at in found.items():
        printed_best = {place: of_paper[place] for place in at}
        ahead = sum(at[place] >= mean for place, mean in printed_best.items())
        means_of = (statistics.fmean(each.values()) for each in (at, printed_best))
        title = suite.datasets[dataset].methods[method].title
        lines.append(f"| {title}, {dataset} | {len(at)} | {' | '.join(f'{each:.1f}' for each in means_of)} | "
                     f"{ahead} of {len(at)} |")  # fmt: skip
    return [*lines, ""]


def _ahead(title: str, of: Mapping[Configuration, float]) -> str:
    ahead = sum(gap >= 0 for gap in of.values())
    return f"| {title} | {len(of)} | {statistics.fmean(of.values()):.1f} | {ahead} of {len(of)} |"


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
            lines.append(f"| {title} | " + " | ".join(f"{statistics.fmean(e):.1f}" if e else "" for e in each) + " |")
    return lines
