"""A suite's plot: the metric against missingness at test; or, where K varies, the metric and the time against K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.bench.missing.compare import Cell
    from anyparty.bench.missing.suite import Suite


def plot(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set and training mechanism, two where K varies; PNG and SVG beside ``path``."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    by_parties = len(suite.parties) > 1
    places = sorted({(cell.dataset, cell.missing) for cell in found})
    panels = [(*place, time) for place in places for time in ((False, True) if by_parties else (False,))]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False, sharey=False)
    for axis, (dataset, missing, time) in zip(axes[0], panels, strict=True):
        here = [cell for cell in found if (cell.dataset, cell.missing) == (dataset, missing)]
        x: Callable[[Cell], Any] = (lambda cell: cell.parties) if by_parties else (lambda cell: cell.test)
        for method, of in suite.datasets[dataset].methods.items():
            mine = [cell for cell in here if cell.method == method]
            if not mine:
                continue
            if time:
                axis.plot([x(c) for c in mine], [c.epoch for c in mine], label=of.title, marker="o", ms=3)
            else:
                means, spreads = zip(*(c.ours for c in mine), strict=True)
                axis.errorbar([x(c) for c in mine], means, spreads, label=of.title, marker="o", ms=3, capsize=2)
        axis.set_title(f"{dataset}, missing in training: {missing}", fontsize=9)
        axis.set_xlabel("parties" if by_parties else "missing at test")
        axis.set_ylabel("seconds of an epoch" if time else suite.datasets[dataset].unit)
        if by_parties:
            axis.set_xscale("log", base=2)
            axis.set_xticks(suite.parties, [str(k) for k in suite.parties], minor=False)
        if time:
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=130)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)
