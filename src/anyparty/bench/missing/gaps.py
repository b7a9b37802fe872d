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
        if suite.datasets[dataset].methods[method].own == own:
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
    own = best(suite, means, own=True)
    if not own:
        return []
    theirs = printed(suite)
    ours, papers = gaps(suite, means), {at: gap for at, gap in gaps(suite, theirs).items() if at in own}
    lines = ["## The paper's own methods", "", "Mean over configurations of the best of them:", ""]
    of_paper = {at: mean for at, mean in best(suite, theirs, own=True).items() if at in own}
    lines += _rows(list(dict.fromkeys(at[0] for at in own)), lambda at: at[0], own, of_paper)
    if not ours:
        return [*lines, ""]
    lines += ["", "Gap to the strongest of the others, in points, and in how many configurations they are ahead:", ""]
    lines += ["| | configurations | mean gap | ahead |", "|---|---|---|---|"]
    lines += [_ahead("ours", ours), *([_ahead("*paper*", papers)] if papers else []), ""]
    for part in range(3):
        names = list(dict.fromkeys(at[part] for at in ours))
        lines += [*_rows(names, lambda at, part=part: at[part], ours, papers), ""]  # type: ignore[misc]
    return lines


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
