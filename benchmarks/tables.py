"""Sum, Boosting and LASER-VFL on a business table, beside trees on the active party's own columns and on all columns.

    python -m benchmarks.tables [--quick]

Credit (30,000 rows, two classes), divided among four parties in two ways: with and without the last payment's status at
the active party. 30 % of each passive party's rows are missing. A fifth of the rows, drawn once, is the test set; the
settings of Sum and Boosting were chosen with the other rows alone. The other trees are those beside the scores of every
run: LightGBM's, stopped by a fifth of the training rows; they get missing rows of a party as missing values. Seeds draw
the missing rows and the networks.

"Gain" is the share of the difference between the trees on own columns and on all columns that a method reaches: what a
federation can bring, if all columns in one place can bring 100 %. No real federation can pool its columns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from anyparty import Federation
from anyparty.core.types import Task
from anyparty.data.datasets import load
from anyparty.metrics.baselines import BoosterBaseline
from anyparty.networks.optimizer import Optimizer
from anyparty.networks.table_encoder import TableEncoder
from benchmarks.page import Page, quick_asked

LIMIT, STATUS, BILLS, PAYMENTS = list(range(5)), list(range(5, 11)), list(range(11, 17)), list(range(17, 23))
DIVISIONS = {
    "weak active party": {"bank": LIMIT, "b": STATUS, "c": BILLS, "d": PAYMENTS},
    "strong active party": {"bank": [*LIMIT, STATUS[0]], "b": STATUS[1:], "c": BILLS, "d": PAYMENTS},
}
TABLES = {"encoder": TableEncoder(), "metric": "auroc", "epochs": 10, "batch_size": 512, "keep": "last",
          "patience": None, "parameters": {"embedding": 16},
          "optimizer": Optimizer(name="adamw", lr=4e-3, weight_decay=0.05, schedule="cosine")}  # fmt: skip
SMALL = {"columns": 0.5, "leaves": 15}  # smaller trees of half of the columns each
METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Sum, settings for tables": ("sum", TABLES),
    "LASER-VFL, settings for tables": ("laser", TABLES),
    "LASER-VFL, default settings": ("laser", {"metric": "auroc"}),
    "Boosting, scores": ("boosting", {"validation": 0.0, "parameters": SMALL}),
    "Boosting, scores, one round": ("boosting", {"validation": 0.0, "parameters": SMALL | {"rounds": 1}}),
    "Boosting, bins": ("boosting", {"validation": 0.0, "parameters": SMALL | {"exchange": "bins"}}),
    "Boosting, scores, default settings": ("boosting", {"validation": 0.0}),
    "Boosting, bins, default settings": ("boosting", {"validation": 0.0, "parameters": {"exchange": "bins"}}),
}


def trees(x: NDArray[np.float64], y: NDArray[np.int64], test: NDArray[np.bool_]) -> float:
    """Return the AUROC of boosted trees on test rows."""
    held = ~test & (np.random.default_rng(0).random(len(y)) < 0.2)
    made = BoosterBaseline.fit(x[~test & ~held], y[~test & ~held], Task(kind="classification", classes=("no", "yes")),
                               validation=(x[held], y[held]))  # fmt: skip
    return float(roc_auc_score(y[test], made.predict(x[test])[:, 1]))


def timed(call: Callable[[], float]) -> tuple[float, float]:
    """Return a score and the CPU seconds of its computation."""
    began = time.process_time()
    return call(), time.process_time() - began


def scores(
    x: NDArray[np.float64], y: NDArray[np.int64], test: NDArray[np.bool_], parties: Mapping[str, list[int]], seed: int
) -> dict[str, tuple[float, float]]:
    """Return AUROC and CPU seconds of every line of the table, for one seed."""
    draw, ids, seen, tables = np.random.default_rng(seed), np.arange(len(y)), x.copy(), {}
    for name, columns in parties.items():
        there = np.ones(len(y), dtype=bool) if name == "bank" else draw.random(len(y)) >= 0.3
        seen[np.ix_(np.flatnonzero(~there), np.array(columns))] = np.nan
        tables[name] = pl.DataFrame({"id": ids[there], **{f"x{k}": x[there, k] for k in columns}})
    labels = pl.Series("label", [None if hidden else int(each) for hidden, each in zip(test, y, strict=True)])
    new = {name: table.filter(pl.col("id").is_in(ids[test])) for name, table in tables.items()}
    tables["bank"] = tables["bank"].with_columns(labels)
    federation = Federation.from_tables(tables, id="id", label="label", active="bank", task="classification")

    def trained(method: str, settings: dict[str, Any]) -> float:
        model = federation.train(method, seed=seed, test=0.0, **settings)
        frame = model.predict(new).frame().sort("id")
        (column,) = (name for name in frame.columns if name.startswith("p") and "1" in name)
        return float(roc_auc_score(y[test], frame[column].to_numpy()))

    found = {
        "trees, own columns": timed(lambda: trees(seen[:, parties["bank"]], y, test)),
        "trees, all columns in one place": timed(lambda: trees(seen, y, test)),
    }
    for title, (method, settings) in METHODS.items():
        found[title] = timed(lambda method=method, settings=settings: trained(method, settings))  # type: ignore[misc]
    return found


def main(*, quick: bool) -> None:
    """Compute all lines and write the page."""
    torch.set_num_threads(1)
    data, page = load("credit"), Page("tables", "Business tables: networks beside boosted trees", quick)
    x, y = np.asarray(data.X_train, dtype=np.float64), np.asarray(data.y_train)
    test = np.random.default_rng(12345).random(len(y)) < 0.2
    page.say(
        "AUROC on 20 % of Credit's rows, mean ± standard deviation over seeds of the missing rows and of training."
    )
    for division, parties in DIVISIONS.items():
        seeds = [scores(x, y, test, parties, seed) for seed in range(1 if quick else 5)]
        rows = []
        for title in seeds[0]:
            values, seconds = [each[title][0] for each in seeds], [each[title][1] for each in seeds]
            gains = [
                (each[title][0] - each["trees, own columns"][0])
                / (each["trees, all columns in one place"][0] - each["trees, own columns"][0])
                for each in seeds
            ]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append([title, f"{statistics.mean(values):.4f} ± {spread:.4f}", f"{statistics.mean(gains):.0%}",
                         f"{statistics.median(seconds):.1f}"])  # fmt: skip
        page.table(f"Credit, {division}", ["method", "AUROC", "gain", "CPU seconds"], rows)
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
