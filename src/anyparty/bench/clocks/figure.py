"""Curves of a suite: the score against time units, a row of panels for each data set and case, a column a latency."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyparty.bench.clocks import choice
from anyparty.bench.clocks.curve import along, scores, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anyparty.bench.clocks.suite import Suite

Records = Mapping[str, Mapping[str, Any]]


def plot(suite: Suite, records: Records, targets: Mapping[tuple[str, int], float], path: Path) -> None:
    """Draw the mean over seeds, with a band of one standard deviation, and the target; PNG and SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    rates = choice.rates(suite, records)
    rows = [(dataset, case) for dataset in suite.datasets for case in suite.cases
            if any(place[:2] == (dataset, case) for place in rates)]  # fmt: skip
    wide = len(suite.latencies)
    figure, axes = plt.subplots(len(rows), wide, figsize=(4.2 * wide, 3.2 * len(rows)), squeeze=False, sharey="row")
    for (dataset, case), across in zip(rows, axes, strict=True):
        for latency, axis in zip(suite.latencies, across, strict=True):
            ends = [_curve(suite, records, rates, axis, (dataset, case, name), latency) for name in suite.algorithms]
            target = targets.get((dataset, suite.cases[case].parties))
            if target is not None:
                axis.axhline(100 * target, color="grey", linewidth=0.8, linestyle="--")
            if any(ends):
                axis.set_xlim(0, np.median([end for end in ends if end]))
            axis.set_title(f"{dataset}, {suite.cases[case].title}, latency {latency:g}", fontsize=8)
            axis.set_xlabel("time units", fontsize=8)
            axis.grid(alpha=0.3)
        across[0].set_ylabel("accuracy on held-out rows, %", fontsize=8)
    known = {label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0][0].legend(list(known.values()), list(known), fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=110)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)


def _curve(
    suite: Suite, records: Records, rates: Mapping[choice.Place, choice.Choice], axis: Axes, place: choice.Place,
    latency: float,
) -> float:  # fmt: skip
    """Draw one algorithm; return where its curve ends, 0 if there is none."""
    dataset, case, name = place
    if place not in rates:
        return 0.0
    runs = [record for record in along(suite, records, dataset, case, name, rates[place].rate, latency)
            if not record["diverged"]]  # fmt: skip
    if not runs:
        return 0.0
    x = np.mean([times(suite, record, latency) for record in runs], axis=0)
    y = 100 * np.array([scores(record) for record in runs])
    mean, spread = y.mean(axis=0), y.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(x))
    color = f"C{list(suite.algorithms).index(name)}"  # the same in every panel, whoever is missing there
    axis.plot(x, mean, label=suite.algorithms[name].title, linewidth=1.2, marker="o", markersize=2, color=color)
    axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
    return float(x[-1])
