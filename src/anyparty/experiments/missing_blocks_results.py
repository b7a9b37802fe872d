"""Results of a missing-blocks suite: gaps between methods, and ratios of two trainings.

A *mechanism* draws the blocks that are missing, in training or at test. A *configuration* is a data set, a training
mechanism and a test mechanism. The paper's *own methods* are the methods that the paper introduces. The *gap* of a
configuration is the best mean of the paper's own methods minus the best mean of all other methods, in percentage
points. The paper's own methods are ahead if the gap is at least 0. Ties count, because papers print one decimal:
according to its paper, FALSE-VFL is ahead in 160 of 168 configurations, and one of the 160 is a tie.

A *ratio* is the metric after training under the suite's last mechanism, in per cent of the metric after training under
the suite's first mechanism.

Our numbers and the paper's numbers are over the same configurations and methods: all that were run here and that the
paper prints. Our means are over the seeds that all compared methods have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from anyparty.experiments.missing_blocks_suite import MissingBlocksMethod, MissingBlocksSuite
from anyparty.experiments.results import Cell, shared_seeds

Configuration = tuple[str, str, str]
"""The names of a data set, a training mechanism and a test mechanism."""

Place = tuple[str, str, str, str]
"""The names of a data set, a method, a training mechanism and a test mechanism."""

RatioPlace = tuple[str, str, str]
"""The names of a data set, a method and a test mechanism."""


def difference(cell: Cell) -> float | None:
    """Return our mean minus the paper's; ``None`` if the paper has no number."""
    return None if cell["paper"] is None else cell.mean() - cell["paper"][0]


def is_outside(cell: Cell) -> bool | None:
    """Return True if our mean differs from the paper's by more than the sum of both spreads.

    Return ``None`` if the paper has no number, or our number has no spread.
    """
    off, (_, spread) = difference(cell), cell.mean_spread()
    return None if off is None or math.isnan(spread) else abs(off) > spread + cell["paper"][1]


def method_entry(suite: MissingBlocksSuite, cell: Cell) -> MissingBlocksMethod:
    """Return the suite's entry for the method of a cell."""
    return suite.datasets[cell["dataset"]].methods[cell["method"]]


def configuration(cell: Cell) -> Configuration:
    """Return the configuration of a cell."""
    return cell["dataset"], cell["missing"], cell["test"]


def place_of(cell: Cell) -> Place:
    """Return the data set, the method, the training mechanism and the test mechanism of a cell."""
    return cell["dataset"], cell["method"], cell["missing"], cell["test"]


def published_means(suite: MissingBlocksSuite) -> dict[Place, float]:
    """Return the means that the paper prints."""
    return {
        (dataset, method, missing, test): mean
        for dataset, methods in suite.published.items()
        for method, tables in methods.items()
        for missing, cells in tables.items()
        for test, (mean, _) in zip(suite.test_missing, cells, strict=True)
    }


def best_means(suite: MissingBlocksSuite, means: Mapping[Place, float], *, own: bool) -> dict[Configuration, float]:
    """Return the best mean of each configuration: of methods that the paper introduces, or else of its baselines."""
    best: dict[Configuration, float] = {}
    for (dataset, method, *mechanisms), mean in means.items():
        entry, at = suite.datasets[dataset].methods[method], (dataset, *mechanisms)
        if entry.own == own and not entry.beyond:
            best[at] = max(mean, best.get(at, mean))  # type: ignore[index, arg-type]
    return best


def gaps(suite: MissingBlocksSuite, means: Mapping[Place, float]) -> dict[Configuration, float]:
    """Return, by configuration, the best mean of the paper's own methods minus the best mean of all other methods."""
    own, others = (best_means(suite, means, own=own) for own in (True, False))
    return {at: own[at] - others[at] for at in own if at in others}


def comparable_seeds(cells: Iterable[Cell]) -> dict[Configuration, list[int]]:
    """Return, for each configuration, the seeds that all methods of its data set have.

    Configurations without a common seed are omitted.
    """
    groups: dict[Configuration, list[Cell]] = {}
    methods: dict[str, set[str]] = {}
    for cell in cells:
        groups.setdefault(configuration(cell), []).append(cell)
        methods.setdefault(cell["dataset"], set()).add(cell["method"])
    return {
        at: seeds for at, group in groups.items()
        if {cell["method"] for cell in group} == methods[at[0]] and (seeds := shared_seeds(group))
    }  # fmt: skip


def comparable_means(
    cells: Sequence[Cell], published: Mapping[Place, float]
) -> tuple[dict[Place, float], dict[Place, float]]:
    """Return our means over comparable seeds, and for the same places the paper's means among ``published``."""
    seeds = comparable_seeds(cells)
    measured = {place_of(cell): cell.mean(seeds=seeds[configuration(cell)])
                for cell in cells if configuration(cell) in seeds}  # fmt: skip
    return measured, {place: published[place] for place in measured if place in published}


def training_pairs(suite: MissingBlocksSuite, cells: Iterable[Cell]) -> dict[RatioPlace, tuple[Cell, Cell]]:
    """Return pairs of cells that differ only in the training mechanism: the suite's first mechanism and its last one.

    Pairs that share no seed are left out.
    """
    at = {(cell["dataset"], cell["method"], cell["test"], cell["missing"]): cell for cell in cells}
    both = {key[:3]: [at.get((*key[:3], suite.train_missing[end])) for end in (0, -1)] for key in at}
    return {place: (low, high) for place, (low, high) in both.items() if low and high and shared_seeds((low, high))}


def ratios(
    suite: MissingBlocksSuite, cells: Sequence[Cell], *, comparable: bool = False
) -> dict[RatioPlace, float]:  # fmt: skip
    """Return each method's ratio in per cent, over the seeds that its two trainings share.

    With ``comparable``, it is over the seeds that all methods with the same data set and test mechanism share.  Ratios
    without such seeds, and those to a mean of 0, are left out.
    """
    pairs, found = training_pairs(suite, cells), dict[RatioPlace, float]()
    for (dataset, method, test), (less, more) in pairs.items():
        column = [cell for place, both in pairs.items() if (place[0], place[2]) == (dataset, test) for cell in both]
        seeds = shared_seeds(column if comparable else (less, more))
        if seeds and less.mean(seeds=seeds):
            found[dataset, method, test] = 100 * more.mean(seeds=seeds) / less.mean(seeds=seeds)
    return found


def published_ratios(suite: MissingBlocksSuite) -> dict[RatioPlace, float]:
    """Return the ratios that the paper prints, in per cent."""
    return {
        (dataset, method, test): ratio
        for dataset, methods in suite.published_ratios.items()
        for method, values in methods.items()
        for test, ratio in zip(suite.test_missing, values, strict=True)
    }


def led_columns(suite: MissingBlocksSuite, found: Mapping[RatioPlace, float]) -> tuple[int, int]:
    """Return in how many columns a method that the paper introduces has the highest ratio, and how many there are.

    A column is a data set and a test mechanism. Only columns with a method of the paper and a baseline are counted.
    """
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for (dataset, method, test), ratio in found.items():
        if not suite.datasets[dataset].methods[method].beyond:
            columns.setdefault((dataset, test), {})[method] = ratio
    led, counted = 0, 0
    for (dataset, _), ratio_of in columns.items():
        own = {method: suite.datasets[dataset].methods[method].own for method in ratio_of}
        if len(set(own.values())) == 2:
            led, counted = led + own[max(ratio_of, key=ratio_of.__getitem__)], counted + 1
    return led, counted
