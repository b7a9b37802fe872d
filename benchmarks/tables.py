"""Sum, Boosting and LASER-VFL on four business tables, beside trees on the active party's own and on all columns.

    python -m benchmarks.tables [--missing 0 0.3 0.5] [--tables credit wine] [--seeds 5] [--validation] [--quick]

Each table is divided among parties in two ways: the active party, which is named first, holds weak or strong columns. A
share of each passive party's rows is missing. A fifth of the rows, drawn once, is the test set. ``--validation`` leaves
these rows out, and scores a fifth of the other rows in their place: settings are chosen with it. The other trees
are LightGBM's, as beside the scores of every run, but 150 of them on all training rows; they get missing rows of a
party as missing values. Seeds draw the missing rows and the networks.

"Gain" is the share of the difference between the trees on own columns and on all columns that a method reaches: what a
federation can bring, if all columns in one place can bring 100 %. No real federation can pool its columns. "Active
party alone" is the score if only the active party answers, for all scored rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, root_mean_squared_error

from anyparty import Federation
from anyparty.core.types import Task
from anyparty.data.datasets import load
from anyparty.metrics.baselines import BoosterBaseline
from benchmarks.page import Page

Parties = Mapping[str, Sequence[str]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with labels, and its divisions among parties; the first party of a division is active.

    Attributes:
        title: the name for readers.
        label: the label's column.
        metric: "auroc", or "rmse" for a regression. With several classes, AUROC is weighted by the classes' rows.
        codes: numeric columns whose numbers are codes of categories.
        divisions: for each division, the columns of each party.
    """

    title: str
    label: str
    metric: str
    codes: Sequence[str] = ()
    divisions: Mapping[str, Parties]


LIMIT, STATUS, BILLS, PAYMENTS = (
    [f"x{k}" for k in range(a, b)] for a, b in ((0, 5), (5, 11), (11, 17), (17, 23))
)  # fmt: skip
SHOP = ["Administrative", "Administrative_Duration", "Informational", "Informational_Duration", "ProductRelated",
        "ProductRelated_Duration"]  # fmt: skip
ANALYTICS = ["BounceRates", "ExitRates", "PageValues", "SpecialDay", "Month", "Weekend"]
NETWORK = ["OperatingSystems", "Browser", "Region", "TrafficType", "VisitorType"]
LABORATORY = ["fixed acidity", "volatile acidity", "citric acid", "pH"]
CELLAR = ["residual sugar", "free sulfur dioxide", "total sulfur dioxide", "sulphates"]
MARKET = ["type", "density", "chlorides", "alcohol"]
PLACE = ["longitude", "latitude", "ocean_proximity"]
BUILDINGS = ["housing_median_age", "total_rooms", "total_bedrooms"]
PEOPLE = ["population", "households", "median_income"]
TABLES = {
    "credit": Table(title="Credit", label="label", metric="auroc", divisions={
        "weak": {"bank": LIMIT, "b": STATUS, "c": BILLS, "d": PAYMENTS},
        "strong": {"bank": [*LIMIT, STATUS[0]], "b": STATUS[1:], "c": BILLS, "d": PAYMENTS},
    }),
    "online_shoppers": Table(title="Online shoppers", label="Revenue", metric="auroc", codes=NETWORK[:4], divisions={
        "weak": {"shop": SHOP, "analytics": ANALYTICS, "network": NETWORK},
        "strong": {"analytics": ANALYTICS, "shop": SHOP, "network": NETWORK},
    }),
    "wine_quality": Table(title="Wine quality, seven classes", label="quality", metric="auroc", divisions={
        "weak": {"laboratory": LABORATORY, "cellar": CELLAR, "market": MARKET},
        "strong": {"market": MARKET, "laboratory": LABORATORY, "cellar": CELLAR},
    }),
    "california_housing": Table(title="California housing", label="median_house_value", metric="rmse", divisions={
        "weak": {"buildings": BUILDINGS, "place": PLACE, "people": PEOPLE},
        "strong": {"place": PLACE, "buildings": BUILDINGS, "people": PEOPLE},
    }),
}  # fmt: skip

METHODS: Mapping[str, tuple[str | None, dict[str, Any]]] = {
    "Sum, the default": (None, {}),
    "LASER-VFL, the former default": ("laser", {}),
    "Boosting, scores": ("boosting", {"validation": 0.0}),
    "Boosting, scores, one round": ("boosting", {"validation": 0.0, "parameters": {"rounds": 1}}),
    "Boosting, bins": ("boosting", {"validation": 0.0, "parameters": {"exchange": "bins"}}),
}
OWN, POOLED = "trees, own columns", "trees, all columns in one place"


@dataclass(frozen=True, kw_only=True)
class Line:
    """The result of one method for one seed: the score, the score of the active party alone, and the CPU seconds."""

    score: float
    alone: float
    seconds: float


def rows_of(name: str) -> pl.DataFrame:
    """Return a table with its label; codes of categories are text."""
    if name == "credit":
        data = load("credit")
        x = pl.DataFrame({f"x{k}": column for k, column in enumerate(np.asarray(data.X_train, dtype=np.float64).T)})
        return x.with_columns(label=pl.Series(np.asarray(data.y_train)))
    frame = pl.read_csv(Path(os.environ["ANYPARTY_DATA"]) / "tables" / f"{name}.csv.gz", infer_schema_length=None)
    codes = [pl.concat_str(pl.lit("code "), pl.col(column).cast(pl.String)) for column in TABLES[name].codes]
    return frame.with_columns(code.alias(column) for code, column in zip(codes, TABLES[name].codes, strict=True))


def parts_of(frame: pl.DataFrame, *, validation: bool) -> tuple[pl.DataFrame, Bools]:
    """Return the rows to use and a mask of the rows to score: the test rows, or validation rows without test rows."""
    test = np.random.default_rng(12345).random(len(frame)) < 0.2
    if validation:
        frame = frame.filter(pl.Series(~test))
        test = np.random.default_rng(54321).random(len(frame)) < 0.2
    return frame, test


def score_of(table: Table, y: NDArray[Any], answer: NDArray[np.float64], classes: Sequence[str]) -> float:
    """Return the table's metric of answers [n, C] for labels [n]."""
    if table.metric == "rmse":
        return float(root_mean_squared_error(y, answer[:, 0]))
    if len(classes) == 2:
        return float(roc_auc_score(y == classes[1], answer[:, 1]))
    present = [c for c, name in enumerate(classes) if (y == name).any()]
    weights = [(y == classes[c]).mean() for c in present]
    return float(np.average([roc_auc_score(y == classes[c], answer[:, c]) for c in present], weights=weights))


def trees(
    table: Table, frame: pl.DataFrame, columns: Sequence[str], test: Bools, absent: Mapping[str, Bools]
) -> tuple[float, float]:
    """Return the score of boosted trees on the columns, and the CPU seconds; ``absent`` marks a column's lost rows."""
    x = np.empty((len(frame), len(columns)))
    for k, column in enumerate(columns):
        values = frame[column]
        if values.dtype == pl.String:
            values = values.cast(pl.Categorical).to_physical()
        x[:, k] = values.cast(pl.Float64).to_numpy()
        x[absent.get(column, np.zeros(len(frame), dtype=bool)), k] = np.nan
    y, classes = frame[table.label].to_numpy(), tuple(frame[table.label].cast(pl.String).unique().sort())
    if table.metric == "rmse":
        task = Task(kind="regression", mean=float(y[~test].mean()), scale=float(y[~test].std()))
        target = (y - task.mean) / task.scale
    else:
        task, y = Task(kind="classification", classes=classes), y.astype(str)
        target = np.searchsorted(classes, y).astype(np.float64)
    began = time.process_time()
    made = BoosterBaseline.fit(x[~test], target[~test], task)
    answer = made.predict(x[test])
    seconds = time.process_time() - began
    return score_of(table, y[test], answer, task.classes), seconds


def lines(
    table: Table, frame: pl.DataFrame, test: Bools, parties: Parties, missing: float, seed: int,
    methods: Mapping[str, tuple[str | None, dict[str, Any]]],
) -> dict[str, Line]:  # fmt: skip
    """Return the result of every line of the table, for one seed."""
    draw, active = np.random.default_rng(seed), next(iter(parties))
    frame = frame.with_row_index("id")
    there = {name: np.ones(len(frame), dtype=bool) if name == active else draw.random(len(frame)) >= missing
             for name in parties}  # fmt: skip
    absent = {column: ~there[name] for name, columns in parties.items() for column in columns}
    tables = {name: frame.filter(pl.Series(there[name])).select("id", *columns) for name, columns in parties.items()}
    regression = table.metric == "rmse"
    y = frame[table.label] if regression else frame[table.label].cast(pl.String)
    new = {name: each.filter(pl.col("id").is_in(frame["id"].filter(pl.Series(test)).implode()))
           for name, each in tables.items()}  # fmt: skip
    tables[active] = tables[active].with_columns(pl.when(pl.Series(~test)).then(y).alias("label"))
    federation = Federation.from_tables(
        tables, id="id", label="label", active=active, task="regression" if regression else "classification"
    )
    everything = [column for columns in parties.values() for column in columns]
    (own, own_seconds), (pooled, seconds) = (
        trees(table, frame, columns, test, absent) for columns in (parties[active], everything)
    )
    found = {OWN: Line(score=own, alone=own, seconds=own_seconds),
             POOLED: Line(score=pooled, alone=np.nan, seconds=seconds)}  # fmt: skip
    for title, (method, settings) in methods.items():
        began = time.process_time()
        model = federation.train(method, seed=seed, test=0.0, **settings)
        scores = []
        for parts in (new, {active: new[active]}):
            answer = model.predict(parts)
            assert answer.ids is not None
            order = np.argsort(np.array(answer.ids, dtype=np.int64))
            found_scores = answer.scores.double().numpy()[order]
            scores.append(score_of(table, y.to_numpy()[test], found_scores, model.task.classes))
        found[title] = Line(score=scores[0], alone=scores[1], seconds=time.process_time() - began)
    return found


def rows_of_page(table: Table, seeds: Sequence[Mapping[str, Line]]) -> list[list[str]]:
    """Return the page's rows: mean and spread of the score over seeds, gain, the active party alone, CPU seconds."""
    rows, digits = [], 0 if table.metric == "rmse" else 4
    for title in seeds[0]:
        values = [each[title].score for each in seeds]
        gains = [(each[title].score - each[OWN].score) / (each[POOLED].score - each[OWN].score) for each in seeds]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        alone = statistics.mean(each[title].alone for each in seeds)
        times = statistics.median(each[title].seconds / each[POOLED].seconds for each in seeds)
        seconds = statistics.median(each[title].seconds for each in seeds)
        rows.append([title, f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}",
                     f"{statistics.mean(gains):.0%}", "" if np.isnan(alone) else f"{alone:.{digits}f}",
                     f"{seconds:.1f}", f"{times:.1f}"])  # fmt: skip
    return rows


def main() -> None:
    """Compute all lines and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", nargs="+", type=float, default=[0.3], help="shares of missing rows")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--validation", action="store_true", help="score validation rows, to choose settings")
    parser.add_argument("--quick", action="store_true", help="one seed: a look, not a result")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    whole = asked.tables == list(TABLES) and not asked.validation
    page = Page("tables", "Business tables: networks beside boosted trees", asked.quick or not whole,
                words=" ".join(["tables", *(word for word in sys.argv[1:] if word != "--quick")]))  # fmt: skip
    page.say("AUROC (California housing: RMSE) on 20 % of the rows, mean ± standard deviation over seeds of the "
             "missing rows and of training; 'alone': the same rows, answered by the active party alone.")  # fmt: skip
    for name in asked.tables:
        frame, test = parts_of(rows_of(name), validation=asked.validation)
        for division, parties in TABLES[name].divisions.items():
            for missing in asked.missing:
                seeds = [
                    lines(TABLES[name], frame, test, parties, missing, seed, METHODS)
                    for seed in range(1 if asked.quick else asked.seeds)
                ]
                page.table(
                    f"{TABLES[name].title}, {division} active party, {missing:.0%} of passive parties' rows missing",
                    ["method", TABLES[name].metric.upper(), "gain", "alone", "CPU seconds", "times pooled trees"],
                    rows_of_page(TABLES[name], seeds),
                )
                page.write()  # after every table, because all of them take long


if __name__ == "__main__":
    main()
