"""APC-VFL, VFedTrans and local models, as figure 5 of the APC-VFL paper: python -m benchmarks.apc breast-cancer.

The paper's protocol (section 6): all of the active party's rows train the encoders, which see no label; a logistic
regression is cross-validated on the embeddings of those rows, and on the columns themselves for the local model.  Every
setting stands in ``apc.toml``.  What is done is kept in ``runs/apc`` and not done again.

    python -m benchmarks.apc breast-cancer               five repeats of all, an hour or more on two cores
    python -m benchmarks.apc credit --repeats 1
    python -m benchmarks.apc breast-cancer --quick       one repeat, few epochs: that all works
"""

from __future__ import annotations

import argparse
import statistics
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from joblib import Memory, Parallel, delayed
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from anyparty.methods import costs
from anyparty.nets.mlp import MLP
from anyparty.run.federation import Federation
from anyparty.tables import datasets
from benchmarks.page import Page

SETTINGS = tomllib.loads((Path(__file__).parent / "apc.toml").read_text(encoding="utf-8"))
WIDTHS = (5, 4, 3, 2)
PASSIVE_WIDTH = 256
memory = Memory("runs/apc", verbose=0)
LOCAL = {
    "local": (StandardScaler, LogisticRegression),
    "local, columns scaled to [0, 1]": (MinMaxScaler, LogisticRegression),
    "local, columns as they are": (None, LogisticRegression),
    "local, support vector machine": (StandardScaler, SVC),
}
"""Local models; the paper does not say how columns are scaled."""


def names_of(dataset: str) -> list[str]:
    """Return the columns' names: the sources' own, and X1 to X23 for Credit."""
    data = datasets.load(dataset, progress=False)
    if dataset == "credit":
        return [f"X{c + 1}" for c in range(data.X_train.shape[1])]
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    return list(load_breast_cancer().feature_names)


def tables(dataset: str, width: int, aligned: int, repeat: int) -> dict[str, pl.DataFrame]:
    """Return the two parties' tables: the active one has all rows and ``width`` columns, the passive one the rest."""
    data, about, names = datasets.load(dataset, progress=False), SETTINGS[dataset], names_of(dataset)
    rows = np.random.default_rng(repeat).permutation(len(data.y_train))[: about["rows"]]
    mine = [names.index(column) for column in about["columns"][len(about["columns"]) - width :]]
    theirs = [c for c in range(len(names)) if c not in mine]
    ids = np.char.zfill(np.arange(len(rows)).astype(str), 6)

    def table(columns: list[int], n: int) -> pl.DataFrame:
        block = np.ascontiguousarray(data.X_train[rows[:n]][:, columns], dtype=np.float64)
        return pl.from_numpy(block, schema=[names[c] for c in columns]).with_columns(id=pl.Series(ids[:n]))

    active = table(mine, len(rows)).with_columns(label=pl.Series(data.y_train[rows]))
    return {"active": active, "passive": table(theirs, aligned)}


def cross_validated(x: np.ndarray, y: np.ndarray, metric: str, repeat: int, steps: tuple[Any, ...]) -> float:
    """Return the mean over ten folds of a model's score."""
    model = make_pipeline(*(step() for step in steps if step is not None))
    folds = StratifiedKFold(SETTINGS["train"]["folds"], shuffle=True, random_state=repeat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # columns as they are do not converge: that is what is measured
        return float(cross_val_score(model, x, y, cv=folds, scoring=metric).mean())


@memory.cache
def score(dataset: str, method: str, width: int, aligned: int, repeat: int, epochs: int) -> dict[str, float]:
    """Return the cross-validated score, the bytes that crossed and the processor's seconds."""
    torch.set_num_threads(1)
    about, how = SETTINGS[dataset], SETTINGS["train"]
    given = tables(dataset, width, aligned, repeat)
    y = given["active"]["label"].to_numpy()
    if method in LOCAL:
        x = given["active"].drop("id", "label").to_numpy()
        return {"score": cross_validated(x, y, about["metric"], repeat, LOCAL[method])}
    began, of = time.process_time(), SETTINGS["methods"][method]
    model = Federation.from_tables(given, label="label").train(
        of["name"], parameters=of["parameters"], seed=repeat, epochs=epochs, batch_size=about["batch_size"],
        encoder={name: MLP(hidden=tuple(widths), activation="selu") for name, widths in how["encoder"].items()},
        patience=how["patience"], validation=how["validation"], test=0.0,
    )  # fmt: skip
    member = model.members["active"]
    x = torch.from_numpy(member.prepare.apply(Federation.from_tables(given, label="label").tables["active"]))
    u = model.method.features(member.state, x).numpy()
    seconds = time.process_time() - began
    found = cross_validated(u, y, about["metric"], repeat, (LogisticRegression,))
    sent = sum(
        row["bytes_sent"] for row in model.ledger.rows() if row["tag"] not in {"hello", "setup", "start", "plan"}
    )
    return {"score": found, "bytes": sent, "seconds": seconds}


def work(dataset: str, repeats: int, epochs: int) -> Iterator[tuple[str, str, int, int, int, int]]:
    """Yield what ``score`` is asked; what does not depend on the number of aligned rows once."""
    for repeat in range(repeats):
        for aligned in SETTINGS[dataset]["aligned"]:
            for width in WIDTHS:
                for method in (*LOCAL, *SETTINGS["methods"]):
                    always = method in LOCAL or method == "ablation"
                    yield dataset, method, width, SETTINGS[dataset]["aligned"][0] if always else aligned, repeat, epochs


def main(dataset: str, *, repeats: int, quick: bool, jobs: int) -> None:
    """Score everything, and write the page."""
    page = Page(f"apc_{dataset}", f"APC-VFL, figure 5: {dataset}", quick)
    page.say(f"In full: `python -m benchmarks.apc {dataset} --repeats {repeats}`; runs done before are not done again.")
    asked = list(dict.fromkeys(work(dataset, repeats, 5 if quick else SETTINGS["train"]["epochs"])))
    found = dict(zip(asked, Parallel(n_jobs=jobs)(delayed(score)(*each) for each in asked), strict=True))
    _scores(page, dataset, found, repeats)
    _costs(page, dataset, found)
    page.write()


def _scores(page: Page, dataset: str, found: dict[Any, dict[str, float]], repeats: int) -> None:
    about = SETTINGS[dataset]
    titles = {name: name for name in LOCAL} | {name: of["title"] for name, of in SETTINGS["methods"].items()}
    page.say(f"{about['metric']} x 100, mean of {SETTINGS['train']['folds']} folds, mean ± standard deviation over "
             f"{repeats} repeats; {about['rows']} rows of the active party, which has 5 to 2 columns.")  # fmt: skip
    for aligned in about["aligned"]:
        rows = []
        for method, title in titles.items():
            cells = []
            for width in WIDTHS:
                values = [
                    100 * each["score"] for key, each in found.items()
                    if key[1:3] == (method, width) and key[3] in {aligned, about["aligned"][0]}
                    and (key[3] == aligned or method in LOCAL or method == "ablation")
                ]  # fmt: skip
                cells.append((statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
            mean = statistics.fmean(cell[0] for cell in cells)
            rows.append([title, *(f"{m:.1f} ± {s:.1f}" for m, s in cells), f"{mean:.2f}"])
        page.table(f"{aligned} aligned rows", ("", *(f"{width} columns" for width in WIDTHS), "mean"), rows)


def _costs(page: Page, dataset: str, found: dict[Any, dict[str, float]]) -> None:
    """Set what crossed beside the paper's formulas (6) and (10)."""
    total, rows = len(names_of(dataset)), []
    for aligned in SETTINGS[dataset]["aligned"]:
        for method, formula in (
            ("apc-mse", costs.apc(aligned, PASSIVE_WIDTH)), ("vfedtrans", costs.vfedtrans(aligned, 5, total - 5)),
        ):  # fmt: skip
            runs = [each for key, each in found.items() if key[1:4] == (method, 5, aligned)]
            sent, seconds = (statistics.fmean(run[what] for run in runs) for what in ("bytes", "seconds"))
            title = SETTINGS["methods"][method]["title"]
            rows.append([f"{title}, {aligned} aligned", f"{sent / 1e6:.2f}", f"{formula.bytes_sent / 1e6:.2f}",
                         f"{seconds:.0f}"])  # fmt: skip
    page.table("Bytes, five columns", ("", "sent, MB", "by the paper's formula, MB", "processor, s"), rows)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset", choices=[name for name in SETTINGS if "rows" in SETTINGS[name]])
    words.add_argument("--repeats", type=int, default=SETTINGS["train"]["repeats"])
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--quick", action="store_true", help="one repeat, five epochs: its numbers mean nothing")
    chosen = words.parse_args()
    main(chosen.dataset, repeats=1 if chosen.quick else chosen.repeats, quick=chosen.quick, jobs=chosen.jobs)
