"""A suite's plot: the metric against missingness at test, or the number of parties, with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.bench.missing.compare import Cell

if TYPE_CHECKING:
    from anyparty.bench.missing.suite import Suite


def plot(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set and training mechanism, side by side or a row for each data set; PNG and SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    panels = list(dict.fromkeys((cell.dataset, cell.missing) for cell in found))
    if suite.layout == "columns":
        panels, columns = sorted(panels), len(panels)
    else:
        columns = len(suite.train_missing)
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.6 * rows), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(suite, axis, *panel, found)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=130)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)


def _panel(suite: Suite, axis: Any, dataset: str, missing: str, found: Sequence[Cell]) -> None:
    entry = suite.datasets[dataset]
    by_parties = len(suite.parties_of(dataset)) > 1
    for method, of in entry.methods.items():
        mine = [c for c in found if (c.dataset, c.missing, c.method) == (dataset, missing, method)]
        if mine:
            x = [c.parties for c in mine] if by_parties else [c.test for c in mine]
            mean, spread = ([c.ours[part] for c in mine] for part in (0, 1))
            axis.errorbar(x, mean, spread, label=of.title, marker="o", ms=3, capsize=2)
    axis.set_title(f"{dataset}, missing in training: {missing}", fontsize=9)
    axis.set_xlabel("parties" if by_parties else "missing at test")
    axis.set_ylabel(entry.unit)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(alpha=0.3)
