"""Results of a missing-blocks suite: table cells, gaps between methods, and ratios of two trainings.

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
from anyparty.experiments.output import Cell, by_condition, by_seed, shared_seeds
from anyparty.experiments.suite import Records

SCORE = "score"

Configuration = tuple[str, str, str]
"""The names of a data set, a training mechanism and a test mechanism."""

MethodMeans = Mapping[tuple[str, str, str, str], float]
"""The mean of the metric for each (data set, method, training mechanism, test mechanism)."""

RatioPlace = tuple[str, str, str]
"""The data set, the method and the test mechanism of a ratio."""


def aggregate(suite: MissingBlocksSuite, records: Records) -> list[Cell]:
    """Return one cell for each data set, method, number of parties, training mechanism and test mechanism with runs.

    The measures of a cell are ``score`` in per cent; ``seconds``, the duration of the training; ``epoch_seconds``, the
    CPU time of an epoch; ``missing_in_training`` and ``missing_at_test``, the shares of blocks that are missing.
    """
    groups = by_condition(records, ["dataset", "method", "parties", "missing"])
    cells = []
    for dataset, entry in suite.datasets.items():
        for method in entry.methods:
            for parties in suite.parties_of(dataset):
                for missing in suite.train_missing:
                    found = groups.get((dataset, method, parties, missing), [])
                    paper = suite.published.get(dataset, {}).get(method, {}).get(missing)
                    for place, test in enumerate(suite.test_missing if found else ()):
                        cells.append(Cell(
                            facts={"dataset": dataset, "method": method, "parties": parties, "missing": missing,
                                   "test": test, "paper": paper[place] if paper else None},
                            measures={
                                SCORE: by_seed((r, 100 * _metric(r["scores"][test], entry.metric)) for r in found),
                                "seconds": by_seed((r, r["seconds"]) for r in found),
                                "epoch_seconds": by_seed((r, r["cpu_seconds"] / r["epochs"]) for r in found),
                                "missing_in_training": by_seed((r, r["missing"]) for r in found),
                                "missing_at_test": by_seed((r, r["scores"][test]["missing"]) for r in found),
                            },
                        ))  # fmt: skip
    return cells


def _metric(scores: Mapping[str, Mapping[str, float | None]], metric: str) -> float:
    value = scores["clients"].get(metric, scores["overall"].get(metric))
    return math.nan if value is None else float(value)


def difference(cell: Cell) -> float | None:
    """Return our mean minus the paper's; ``None`` if the paper has no number."""
    return None if cell["paper"] is None else cell.mean(SCORE) - cell["paper"][0]


def is_outside(cell: Cell) -> bool | None:
    """Return True if our mean differs from the paper's by more than the sum of both spreads.

    Return ``None`` if the paper has no number, or our number has no spread.
    """
    apart, (_, spread) = difference(cell), cell.mean_spread(SCORE)
    return None if apart is None or math.isnan(spread) else abs(apart) > spread + cell["paper"][1]


def best_methods(column: Sequence[Cell]) -> set[str]:
    """Return the methods with the highest mean in a column, over the seeds that all cells of the column have."""
    seeds = shared_seeds(column, SCORE)
    means = {cell["method"]: cell.mean(SCORE, seeds) for cell in column} if seeds else {}
    most = max(means.values(), default=math.nan)
    return {method for method, mean in means.items() if mean >= most}


def method_entry(suite: MissingBlocksSuite, cell: Cell) -> MissingBlocksMethod:
    """Return the suite's entry for the method of a cell."""
    return suite.datasets[cell["dataset"]].methods[cell["method"]]


def configuration(cell: Cell) -> Configuration:
    """Return the configuration of a cell: data set, training mechanism and test mechanism."""
    return cell["dataset"], cell["missing"], cell["test"]


def mean_place(cell: Cell) -> tuple[str, str, str, str]:
    """Return a cell's key in ``MethodMeans``: its data set, method, training mechanism and test mechanism."""
    return cell["dataset"], cell["method"], cell["missing"], cell["test"]


def published_means(suite: MissingBlocksSuite) -> dict[tuple[str, str, str, str], float]:
    """Return the means that the paper prints, by (data set, method, training mechanism, test mechanism)."""
    return {
        (dataset, method, missing, test): mean
        for dataset, methods in suite.published.items()
        for method, tables in methods.items()
        for missing, cells in tables.items()
        for test, (mean, _) in zip(suite.test_missing, cells, strict=True)
    }


def best_means(suite: MissingBlocksSuite, means: MethodMeans, *, own: bool) -> dict[Configuration, float]:
    """Return the best mean of each configuration.

    If ``own`` is true, only methods that the paper introduces are included. If ``own`` is false, only methods that the
    paper runs as baselines are included.
    """
    best: dict[Configuration, float] = {}
    for (dataset, method, missing, test), mean in means.items():
        entry = suite.datasets[dataset].methods[method]
        if entry.own == own and not entry.beyond:
            at = dataset, missing, test
            best[at] = max(mean, best.get(at, mean))
    return best


def gaps(suite: MissingBlocksSuite, means: MethodMeans) -> dict[Configuration, float]:
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
        if {cell["method"] for cell in group} == methods[at[0]] and (seeds := shared_seeds(group, SCORE))
    }  # fmt: skip


def comparable_means(cells: Sequence[Cell], published: MethodMeans) -> tuple[MethodMeans, MethodMeans]:
    """Return our means, and the paper's means for the same keys; ``published`` has all means of the paper.

    Each of our means is over the seeds that all methods with the same configuration have.
    """
    seeds = comparable_seeds(cells)
    measured = {mean_place(cell): cell.mean(SCORE, seeds[configuration(cell)])
            for cell in cells if configuration(cell) in seeds}  # fmt: skip
    return measured, {place: published[place] for place in measured if place in published}


def training_pairs(suite: MissingBlocksSuite, cells: Iterable[Cell]) -> dict[RatioPlace, tuple[Cell, Cell]]:
    """Return pairs of cells that differ only in the training mechanism: the suite's first mechanism and its last one.

    The keys are the data set, the method and the test mechanism. Pairs that share no seed are left out.
    """
    less, more = suite.train_missing[0], suite.train_missing[-1]
    at = {(cell["dataset"], cell["method"], cell["test"], cell["missing"]): cell for cell in cells}
    both = {key[:3]: (at.get((*key[:3], less)), at.get((*key[:3], more))) for key in at}
    return {place: (low, high) for place, (low, high) in both.items()
            if low and high and shared_seeds((low, high), SCORE)}  # fmt: skip


def ratios(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> dict[RatioPlace, float]:
    """Return each method's ratio in per cent, over the seeds that its two trainings share.

    A ratio is the score after training under the suite's last mechanism, divided by the score after training under the
    suite's first mechanism.
    """
    each = {place: _ratio(*pair, shared_seeds(pair, SCORE)) for place, pair in training_pairs(suite, cells).items()}
    return {place: ratio for place, ratio in each.items() if ratio is not None}


def comparable_ratios(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> dict[RatioPlace, float]:
    """Return each method's ratio in per cent, over the seeds that all methods of a column have.

    A column is a data set and a test mechanism.  Columns without a common seed are left out.
    """
    pairs, found = training_pairs(suite, cells), dict[RatioPlace, float]()
    for (dataset, method, test), pair in pairs.items():
        column = [cell for place, both in pairs.items() if (place[0], place[2]) == (dataset, test) for cell in both]
        if (ratio := _ratio(*pair, shared_seeds(column, SCORE))) is not None:
            found[dataset, method, test] = ratio
    return found


def _ratio(less: Cell, more: Cell, seeds: Sequence[int]) -> float | None:
    """Return the mean score of ``more`` in per cent of the mean score of ``less``, over ``seeds``.

    ``less`` and ``more`` are a method's cells after training under the suite's first and last mechanism. Return
    ``None`` if there are no seeds, or if the mean of ``less`` is 0.
    """
    return 100 * more.mean(SCORE, seeds) / less.mean(SCORE, seeds) if seeds and less.mean(SCORE, seeds) else None


def published_ratios(suite: MissingBlocksSuite) -> dict[RatioPlace, float]:
    """Return the ratios that the paper prints, in per cent; a ratio compares a method's scores after two trainings."""
    return {
        (dataset, method, test): ratio
        for dataset, methods in suite.published_ratios.items()
        for method, values in methods.items()
        for test, ratio in zip(suite.test_missing, values, strict=True)
    }


def led_columns(suite: MissingBlocksSuite, of: Mapping[RatioPlace, float]) -> tuple[int, int]:
    """Return the number of columns in which a method of the paper has the highest ratio, and the number of all columns.

    A column is a data set and a test mechanism. A method of the paper is a method that the paper introduces. Only
    columns with a method of the paper and with a baseline are counted.
    """
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for (dataset, method, test), ratio in of.items():
        if not suite.datasets[dataset].methods[method].beyond:
            columns.setdefault((dataset, test), {})[method] = ratio
    led, counted = 0, 0
    for (dataset, _), ratio_of in columns.items():
        own = {method: suite.datasets[dataset].methods[method].own for method in ratio_of}
        if len(set(own.values())) == 2:
            led, counted = led + own[max(ratio_of, key=ratio_of.__getitem__)], counted + 1
    return led, counted
