"""The plot of a suite of one exchange: scores, or bytes, by the number of aligned rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.experiments.figure import panels
from anyparty.experiments.one_exchange.cells import Cell, over_widths, spread

if TYPE_CHECKING:
    from anyparty.experiments.one_exchange.suite import Suite


def plot(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set: scores with their spread over the numbers of columns, or bytes; PNG and SVG."""
    datasets = [name for name in suite.datasets if any(cell.dataset == name for cell in found)]
    with panels(len(datasets), path, size=(6, 3.8), along="y") as axes:
        for axis, dataset in zip(axes, datasets, strict=True):
            here = [cell for cell in found if cell.dataset == dataset]
            (_scores if suite.shows == "scores" else _bytes)(axis, suite, here, dataset)
            axis.set_title(dataset)
            axis.set_xlabel("aligned rows")


def _scores(axis: Any, suite: Suite, here: Sequence[Cell], dataset: str) -> None:
    entry = suite.datasets[dataset]
    for place, (method, of) in enumerate(suite.methods.items()):
        at = [(x, value) for x, rows in enumerate(entry.aligned)
              if (value := over_widths(suite, here, dataset, method, rows)) is not None]  # fmt: skip
        aside = 0.7 * ((place + 0.5) / len(suite.methods) - 0.5)
        axis.errorbar([x + aside for x, _ in at], [mean for _, (mean, _) in at], [off for _, (_, off) in at], fmt="o",
                      ms=4, capsize=2, color=f"C{place}", label=of.title)  # fmt: skip
    axis.set_xticks(range(len(entry.aligned)), [f"{rows:,}" for rows in entry.aligned])
    axis.set_ylabel(entry.unit)


def _bytes(axis: Any, suite: Suite, here: Sequence[Cell], dataset: str) -> None:
    width = suite.datasets[dataset].widths[0]
    for place, (method, of) in enumerate(suite.methods.items()):
        mine = sorted((cell for cell in here if (cell.method, cell.width) == (method, width)), key=lambda c: c.aligned)
        for values, style, said in (([cell.sent for cell in mine], "-o", "sent"),
                                    ([cell.formula for cell in mine], "--", "by formula")):  # fmt: skip
            at = [(cell.aligned, spread(each)[0] / 1e6) for cell, each in zip(mine, values, strict=True) if each]
            if at:
                axis.plot(*zip(*at, strict=True), style, ms=4, color=f"C{place}", label=f"{of.title}, {said}")
    axis.set_yscale("log")
    axis.set_ylabel("MB")
