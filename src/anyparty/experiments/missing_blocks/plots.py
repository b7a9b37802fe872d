"""A suite's plot: the metric against missingness at test, with error bars; where K varies, it and time against K.

Of a table of ratios the plot is of ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.experiments.figure import MOST, panels
from anyparty.experiments.missing_blocks import ratios, seeds
from anyparty.experiments.missing_blocks.cells import Cell

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Suite


def plot(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set and training mechanism; PNG and SVG.

    Where K varies there are two: the metric, and the CPU seconds of an epoch.  Panels of one data set have one scale.
    """
    places = [
        (*place, time) for place in dict.fromkeys((cell.dataset, cell.missing) for cell in found)
        for time in ((False, True) if len(suite.parties_of(place[0])) > 1 else (False,))
    ]  # fmt: skip
    timed = any(time for *_, time in places)
    one = len({dataset for dataset, *_ in places}) == 1 and not timed
    with panels(len(places), path, across=2 if timed else MOST, same_y="all" if one else "none") as axes:
        for at, (axis, place) in enumerate(zip(axes, places, strict=True)):
            _panel(suite, axis, *place, found)
            if one and at % MOST:
                axis.set_ylabel("")


def _panel(suite: Suite, axis: Any, dataset: str, missing: str, time: bool, found: Sequence[Cell]) -> None:
    entry = suite.datasets[dataset]
    by_parties = len(suite.parties_of(dataset)) > 1
    for place, (method, of) in enumerate(entry.methods.items()):
        mine = [c for c in found if (c.dataset, c.missing, c.method) == (dataset, missing, method)]
        if mine:
            x = [c.parties for c in mine] if by_parties else [c.test for c in mine]
            mean, spread = ([c.epoch for c in mine], None) if time else zip(*(c.ours for c in mine), strict=True)
            axis.errorbar(x, mean, spread, label=_label(of.title, method, found), marker="o", ms=3, capsize=2,
                          color=f"C{place}")  # fmt: skip
    axis.set_title(f"{dataset}, missing in training: {missing}")
    axis.set_xlabel("parties" if by_parties else "missing at test")
    axis.set_ylabel("CPU seconds of an epoch" if time else entry.unit)
    if by_parties:
        axis.set_xscale("log", base=2)
        axis.set_xticks(suite.parties_of(dataset), [str(k) for k in suite.parties_of(dataset)])
    if time:
        axis.set_yscale("log")
    axis.tick_params(axis="x", labelsize=7)


def plot_ratios(suite: Suite, found: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set: each method's ratio of its two trainings against missingness at test.

    Where no method has both trainings there is nothing to draw.
    """
    own, of = ratios.ratios(suite, found), ratios.pairs(suite, found)
    datasets = [dataset for dataset in suite.datasets if any(place[0] == dataset for place in own)]
    if not datasets:
        return
    less, more = suite.train_missing[0], suite.train_missing[-1]
    with panels(len(datasets), path, size=(6.2, 4.4), across=2) as axes:
        for axis, dataset in zip(axes, datasets, strict=True):
            here = [cell for place, pair in of.items() if place[0] == dataset for cell in pair]
            for place, (method, entry) in enumerate(suite.datasets[dataset].methods.items()):
                x = [test for test in suite.test_missing if (dataset, method, test) in own]
                if x:
                    y = [own[dataset, method, test] for test in x]
                    label = _label(entry.title, method, here)
                    axis.plot(x, y, label=label, marker="o", ms=3, color=f"C{place}")
            axis.axhline(100, color="grey", linewidth=0.8, linestyle="--")  # no worse for the blocks that are missing
            axis.set_title(f"{dataset}, trained under {more} over trained under {less}")
            axis.set_xlabel("missing at test")
            axis.set_ylabel("ratio, %")
            axis.tick_params(axis="x", labelsize=7)


def _label(title: str, method: str, found: Sequence[Cell]) -> str:
    """Return a method's name; where methods differ in their seeds, with how many it has and which."""
    mine = [cell for cell in found if cell.method == method]
    return f"{title}; seeds: {seeds.words(cell.by_seed for cell in mine)}" if seeds.differ(found) else title
