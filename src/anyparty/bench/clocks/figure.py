"""Curves of a suite: the score against time units, a row of panels for each data set and case, a column a latency."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyparty.bench.clocks import choice
from anyparty.bench.clocks.curve import along, scores, times
from anyparty.bench.figure import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anyparty.bench.clocks.suite import Suite

LETTERS = 50  # of a title that fit over a panel

Records = Mapping[str, Mapping[str, Any]]


def plot(suite: Suite, records: Records, targets: Mapping[tuple[str, int], float], path: Path) -> None:
    """Draw the mean over seeds, with a band of one standard deviation, and the target; PNG and SVG."""
    rates = choice.rates(suite, records)
    rows = [(dataset, case) for dataset in suite.datasets for case in suite.cases
            if any(place[:2] == (dataset, case) for place in rates)]  # fmt: skip
    wide = len(suite.latencies)
    with panels(wide * len(rows), path, across=wide, size=(4.2, 3.2), same_y="row") as axes:
        for place, axis in enumerate(axes):
            (dataset, case), latency = rows[place // wide], suite.latencies[place % wide]
            ends = [_curve(suite, records, rates, axis, (dataset, case, name), latency) for name in suite.algorithms]
            target = targets.get((dataset, suite.cases[case].parties))
            if target is not None:
                axis.axhline(100 * target, color="grey", linewidth=0.8, linestyle="--")
            if any(ends):
                axis.set_xlim(0, np.median([end for end in ends if end]))
            axis.set_xlabel(f"time units, latency {latency:g}")
            if place % wide == 0:  # over the whole row
                axis.set_title(textwrap.fill(f"{dataset}, {suite.cases[case].title}", LETTERS * wide))
                axis.set_ylabel("accuracy on held-out rows, %")


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
