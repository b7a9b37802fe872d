"""Ratios of two training mechanisms, as in FALSE-VFL's table 18: how well a method bears more missing blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anyparty.bench import suite as base

if TYPE_CHECKING:
    from anyparty.bench.missing.cells import Cell
    from anyparty.bench.missing.suite import Suite

LEGEND = (
    "Ours: the mean over the seeds of the metric trained under {more}, over that trained under {less}, in per cent; "
    "below it the paper's. **Bold**: the highest of our column."
)


def ratios(suite: Suite, found: Sequence[Cell]) -> dict[tuple[str, str, str], float]:
    """Return the ratio in per cent by data set, method and test mechanism, where both trainings are there."""
    less, more = suite.train_missing[0], suite.train_missing[-1]
    means = {(cell.dataset, cell.method, cell.test, cell.missing): cell.ours[0] for cell in found}
    pairs = {at[:3]: (means.get((*at[:3], less)), means.get((*at[:3], more))) for at in means}
    return {at: 100 * high / low for at, (low, high) in pairs.items() if low and high is not None}


def markdown(suite: Suite, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables, one a data set, and in how many columns one of the paper's own methods has the highest."""
    ours = ratios(suite, found)
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset, entry in suite.datasets.items():
        here = {at[1:]: ratio for at, ratio in ours.items() if at[0] == dataset}
        if here:
            lines += [f"## {dataset}: {entry.unit}, ratio in %", "", *_table(suite, dataset, here), ""]
    lines += [LEGEND.format(less=suite.train_missing[0], more=suite.train_missing[-1]), ""]
    leads = f"{_leads(suite, ours)} columns; in the paper in {_leads(suite, printed(suite))}"
    lines += [f"The highest of a column is one of the paper's own methods in {leads}.", ""]
    return "\n".join([*lines, *base.footer(suite, about)]) + "\n"


def printed(suite: Suite) -> dict[tuple[str, str, str], float]:
    """Return the paper's ratios."""
    return {
        (dataset, method, test): ratio
        for dataset, methods in suite.published_ratios.items()
        for method, row in methods.items()
        for test, ratio in zip(suite.test_missing, row, strict=True)
    }


def _leads(suite: Suite, of: Mapping[tuple[str, str, str], float]) -> str:
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for (dataset, method, test), ratio in of.items():
        if suite.datasets[dataset].methods[method].beyond:
            continue
        columns.setdefault((dataset, test), {})[method] = ratio
    tops = [(dataset, max(row, key=lambda method: row[method])) for (dataset, _), row in columns.items()]
    leads = sum(suite.datasets[dataset].methods[method].own for dataset, method in tops)
    return f"{leads} of {len(tops)}"


def _table(suite: Suite, dataset: str, here: Mapping[tuple[str, str], float]) -> list[str]:
    lines = ["| missing at test | " + " | ".join(suite.test_missing) + " |", "|---|" + "---|" * len(suite.test_missing)]
    best = {test: max(ratio for (_, t), ratio in here.items() if t == test) for _, test in here}
    for method, entry in suite.datasets[dataset].methods.items():
        mine = {test: here[method, test] for test in suite.test_missing if (method, test) in here}
        if mine:
            shown = [_shown(mine.get(test), best.get(test)) for test in suite.test_missing]
            lines.append(f"| {entry.title} | " + " | ".join(shown) + " |")
            if method in suite.published_ratios.get(dataset, {}):
                row = suite.published_ratios[dataset][method]
                lines.append("| *paper* | " + " | ".join(f"{ratio:.1f}" for ratio in row) + " |")
    return lines


def _shown(ratio: float | None, best: float | None) -> str:
    if ratio is None:
        return ""
    return f"**{ratio:.1f}**" if ratio == best else f"{ratio:.1f}"
