"""The plot of a suite of one exchange: scores, or bytes, by the number of aligned rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.bench.folds.cells import Cell, over_widths, spread

if TYPE_CHECKING:
    from anyparty.bench.folds.suite import Suite


def plot(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set: bars of scores (spread over numbers of columns), or lines of bytes."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    datasets = [name for name in suite.datasets if any(cell.dataset == name for cell in found)]
    figure, axes = plt.subplots(1, len(datasets), figsize=(6 * len(datasets), 3.8), squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        here = [cell for cell in found if cell.dataset == dataset]
        (_bars if suite.shows == "scores" else _bytes)(axis, suite, here, dataset)
        axis.set_title(dataset, fontsize=9)
        axis.set_xlabel("aligned rows")
        axis.grid(alpha=0.3, axis="y")
        axis.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=130)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)


def _bars(axis: Any, suite: Suite, here: Sequence[Cell], dataset: str) -> None:
    entry = suite.datasets[dataset]
    methods = [name for name in suite.methods if any(cell.method == name for cell in here)]
    bar, low = 0.8 / len(methods), []
    for place, method in enumerate(methods):
        at = [(x, value) for x, rows in enumerate(entry.aligned)
              if (value := over_widths(here, dataset, method, rows)) is not None]  # fmt: skip
        axis.bar([x + (place + 0.5) * bar - 0.4 for x, _ in at], [value[0] for _, value in at], bar,
                 yerr=[value[1] for _, value in at], label=suite.methods[method].title, capsize=2)  # fmt: skip
        low += [value[0] - value[1] for _, value in at]
    axis.set_xticks(range(len(entry.aligned)), [f"{rows:,}" for rows in entry.aligned])
    axis.set_ylim(bottom=max(0, min(low) - 2))
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
