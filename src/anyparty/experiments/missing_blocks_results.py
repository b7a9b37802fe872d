"""Results of a missing-blocks suite as data frames: gaps between methods, and ratios of two trainings.

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

import polars as pl

from anyparty.experiments.missing_blocks_suite import MissingBlocksMethod, MissingBlocksSuite
from anyparty.experiments.results import SCORE, Cell

CONFIGURATION = ["dataset", "missing", "test"]
COLUMN = ["dataset", "test"]  # a column of a table of ratios
METHOD = ["method", "title", "own", "beyond"]  # columns with facts about a method
TYPES = {"dataset": pl.String, "missing": pl.String, "test": pl.String, "method": pl.String, "title": pl.String,
         "own": pl.Boolean, "beyond": pl.Boolean, "seed": pl.Int64, "score": pl.Float64}  # fmt: skip


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


def _frame(suite: MissingBlocksSuite, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows with a data set and a method as a frame with facts about the methods."""
    entries = {
        (dataset, name): method for dataset, entry in suite.datasets.items() for name, method in entry.methods.items()
    }
    facts = [{**row, **{name: getattr(entries[row["dataset"], row["method"]], name) for name in METHOD[1:]}}  # type: ignore[index]
             for row in rows]  # fmt: skip
    return pl.DataFrame(facts, schema=TYPES)


def measured_scores(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> pl.DataFrame:
    """Return our scores: one row for each cell and seed."""
    return _frame(suite, ({**{name: cell[name] for name in (*CONFIGURATION, "method")}, "seed": seed, "score": score}
                          for cell in cells for seed, score in cell.measures[SCORE].items()))  # fmt: skip


def published_scores(suite: MissingBlocksSuite) -> pl.DataFrame:
    """Return the means that the paper prints."""
    return _frame(suite, (
        {"dataset": dataset, "method": method, "missing": missing, "test": test, "score": mean}
        for dataset, methods in suite.published.items()
        for method, tables in methods.items()
        for missing, cells in tables.items()
        for test, (mean, _) in zip(suite.test_missing, cells, strict=True)
    ))  # fmt: skip


def published_ratios(suite: MissingBlocksSuite) -> pl.DataFrame:
    """Return the ratios that the paper prints, in per cent."""
    return _frame(suite, (
        {"dataset": dataset, "method": method, "test": test, "score": ratio}
        for dataset, methods in suite.published_ratios.items()
        for method, values in methods.items()
        for test, ratio in zip(suite.test_missing, values, strict=True)
    )).rename({"score": "ratio"})  # fmt: skip


def comparable(
    scores: pl.DataFrame, column: Sequence[str] = CONFIGURATION, scope: Sequence[str] = ("dataset",)
) -> pl.DataFrame:
    """Return the scores with seeds that, in a column, all methods of the ``scope`` have."""
    methods = pl.col("method").n_unique()
    return scores.filter(methods.over([*column, "seed"]) == methods.over(scope))


def best_scores(scores: pl.DataFrame, column: Sequence[str] = CONFIGURATION, score: str = "score") -> pl.DataFrame:
    """Return, for each column, the best mean of the paper's ``own`` methods, of its ``others``, and their ``gap``."""
    means = scores.filter(~pl.col("beyond")).group_by([*column, *METHOD], maintain_order=True).agg(pl.col(score).mean())
    own, value = pl.col("own"), pl.col(score)
    best = means.group_by(column, maintain_order=True).agg(
        value.filter(own).max().alias("own"), value.filter(~own).max().alias("others"))  # fmt: skip
    return best.with_columns(gap=pl.col("own") - pl.col("others"))


def training_pairs(suite: MissingBlocksSuite, scores: pl.DataFrame) -> pl.DataFrame:
    """Return the scores after training under the suite's first mechanism, beside those ``more`` under the last one."""
    less, more = (scores.filter(pl.col("missing") == suite.train_missing[end]) for end in (0, -1))
    keys = ["dataset", "method", "test", "seed"]
    return less.join(more.select(*keys, more="score"), on=keys, maintain_order="left")


def ratios(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return each method's ratio in per cent over the seeds of its pairs; ratios to a mean of 0 are left out."""
    means = pairs.group_by([*COLUMN, *METHOD], maintain_order=True).agg(pl.col("score", "more").mean(), "seed")
    return means.filter(pl.col("score") != 0).with_columns(ratio=100 * pl.col("more") / pl.col("score"))


def led_columns(found: pl.DataFrame) -> tuple[int, int]:
    """Return in how many columns a method that the paper introduces has the highest ratio, and how many there are.

    Only columns with a method of the paper and a baseline are counted.
    """
    gaps = best_scores(found, COLUMN, "ratio")["gap"].drop_nulls()
    return int((gaps > 0).sum()), len(gaps)
