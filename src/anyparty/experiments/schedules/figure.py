"""Curves of a suite: the score against time units, a row of panels for each data set and case, a column a latency."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyparty.experiments.figure import panels
from anyparty.experiments.schedules import choice
from anyparty.experiments.schedules.curve import Record, along, scores, time_of, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from anyparty.experiments.schedules.suite import Suite

LETTERS = 50  # of a title that fit over a panel
BEYOND = 1.02  # of the time at which the last one is at the target, so that it is seen there

Records = Mapping[str, Mapping[str, Any]]


def plot(suite: Suite, records: Records, targets: Mapping[tuple[str, int], float], path: Path) -> None:
    """Draw the mean over seeds, with a band of one standard deviation, and the target; PNG and SVG.

    Runs that diverged are in no mean: a panel's own legend says how many of the seeds are, where not all.
    """
    rates = choice.rates(suite, records)
    rows = [(dataset, case) for dataset in suite.datasets for case in suite.cases
            if any(place[:2] == (dataset, case) for place in rates)]  # fmt: skip
    wide = len(suite.latencies)
    with panels(wide * len(rows), path, across=wide, size=(4.2, 3.2), same_y="row") as axes:
        for place, axis in enumerate(axes):
            (dataset, case), latency = rows[place // wide], suite.latencies[place % wide]
            runs = {name: list(along(suite, records, dataset, case, name, rates[dataset, case, name].rate, latency))
                    for name in suite.algorithms if (dataset, case, name) in rates}  # fmt: skip
            _panel(suite, axis, runs, latency, targets.get((dataset, suite.cases[case].parties)))
            axis.set_xlabel(f"time units, latency {latency:g}")
            if place % wide == 0:  # over the whole row
                axis.set_title(textwrap.fill(f"{dataset}, {suite.cases[case].title}", LETTERS * wide))
                axis.set_ylabel("accuracy on held-out rows, %")


def _panel(
    suite: Suite, axis: Axes, runs: Mapping[str, Sequence[Record]], latency: float, target: float | None
) -> None:
    """Draw the curves of runs by algorithm and the target: so far that every algorithm is seen to reach it."""
    whole = {name: [record for record in of if not record["diverged"]] for name, of in runs.items()}
    curves = [_curve(suite, axis, name, of, latency) for name, of in whole.items() if of]
    shown = [float(np.median([x[-1] for x, _ in curves]))] if curves else []
    if target is not None:
        axis.axhline(100 * target, color="grey", linewidth=0.8, linestyle="--")
        reached = [_reached(suite, of, target, latency) for of in runs.values()]
        reached += [x[np.argmax(mean >= 100 * target)] for x, mean in curves if (mean >= 100 * target).any()]
        shown += [BEYOND * time for time in reached if time is not None]
    if shown:
        axis.set_xlim(0, max(shown))
    fewer = {f"{suite.algorithms[name].title}: {len(of)} of {len(runs[name])} seeds, the others diverged": name
             for name, of in whole.items() if len(of) < len(runs[name])}  # fmt: skip
    if fewer:
        lines = [axis.plot([], [], color=_color(suite, name))[0] for name in fewer.values()]
        axis.legend(lines, list(fewer), loc="lower right", fontsize=7)


def _reached(suite: Suite, runs: Sequence[Record], target: float, latency: float) -> float | None:
    """Return the mean time to the target over the seeds that reach it, as the table has it."""
    times = [time for record in runs if (time := time_of(suite, record, target, latency)) is not None]
    return statistics.fmean(times) if times else None


def _curve(
    suite: Suite, axis: Axes, name: str, runs: Sequence[Record], latency: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw one algorithm's mean over seeds; return its times and per cents."""
    x = np.mean([times(suite, record, latency) for record in runs], axis=0)
    y = 100 * np.array([scores(record) for record in runs])
    mean, spread = y.mean(axis=0), y.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(x))
    color, (low, high) = _color(suite, name), np.clip([mean - spread, mean + spread], 0, 100)
    axis.plot(x, mean, label=suite.algorithms[name].title, linewidth=1.2, marker="o", markersize=2, color=color)
    axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    return x, mean


def _color(suite: Suite, name: str) -> str:
    """Return an algorithm's colour: the same in every panel, whoever is missing there."""
    return f"C{list(suite.algorithms).index(name)}"
