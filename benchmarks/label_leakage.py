"""An attack: the information about labels in the gradients that a passive party receives.

    python -m benchmarks.label_leakage [--data-dir FOLDER]    Credit and Online Shoppers, 5 seeds
    python -m benchmarks.label_leakage --quick                Breast Cancer, one seed; needs no data sets

The active party holds labels and half of the columns, the passive party the other half. The attacker is the passive
party. It runs its code unchanged and reads the messages that it receives:

    G [n, H]   the gradients of one epoch, one row for each training row (messages ``gradient``)
    v [H]      their first singular direction (right singular vector of G, not centred)
    G v [n]    its score of each row: no label is used

The score separates the two classes up to its sign, which one known label or the class shares determine. So the reported
AUROC is the greater of A and 1 - A, where A is the AUROC of the score.  Labels with more than two classes are not
measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.metrics import roc_auc_score

from anyparty.api.federation import Federation
from anyparty.config import Config
from anyparty.config.method_factory import SCHEDULES
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import METHODS, SPLIT
from anyparty.threats.gradients import first_direction
from anyparty.threats.view import GRADIENT, ReceivedView, recording
from benchmarks.page import Page

SHOW_LABELS = ("boosting",)  # methods whose messages are the labels, so that there is nothing to attack
ACTIVE, PASSIVE, LABEL = "active", "passive", "label"
SEEDS, ROWS, UNLABELLED = 5, 6_000, 1 / 3
SHOPPERS = "tables/online_shoppers.csv.gz"
MLP_HEAD = {"head_hidden": [64]}
SHORT = {name: {"pretrain_epochs": 1} for name in ("fedhssl", "false-vfl-1", "false-vfl-2")}


@dataclass(frozen=True)
class Case:
    """One way to train: a method with its parameters, optionally a schedule and unlabelled rows."""

    title: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = ""
    unlabelled: bool = False


def auroc(y: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> float:
    """Return the AUROC A of scores whose sign is unknown: the greater of A and 1 - A."""
    found = float(roc_auc_score(y, scores))
    return max(found, 1 - found)


@dataclass(frozen=True)
class Found:
    """The results of the attack on one training.

    Attributes:
        tags: the messages that the passive party received in training, by tag.
        stages: by stage, the AUROC from gradients, the one from the party's own embeddings, and the number of rows.

    """

    tags: Mapping[str, int]
    stages: Mapping[str, tuple[float, float, int]]


def attack(case: Case, frames: Mapping[str, pl.DataFrame], seed: int) -> Found:
    """Train one epoch of each stage, record the passive party's messages, and attack them."""
    given = dict(frames)
    truth = given[ACTIVE][LABEL].to_numpy()
    if case.unlabelled:
        hidden = Seeds(seed).numpy("hidden").random(len(truth)) < UNLABELLED
        given[ACTIVE] = given[ACTIVE].with_columns(pl.when(~pl.Series(hidden)).then(pl.col(LABEL)).alias(LABEL))
    config = Config.of({
        "federation": {"label": LABEL, "task": "classification"},
        "parties": {name: {} for name in given},
        "method": {"name": case.method, **SHORT.get(case.method, {}), **case.parameters},
        "train": {"epochs": 1, "seed": seed, "validation": 0.0, "test": 0.0, "patience": "none", "keep": "last"},
        **({"schedule": {"name": case.schedule}} if case.schedule else {}),
    })  # fmt: skip
    federation = Federation.from_config(config, given)
    view = ReceivedView(me=PASSIVE, roster=federation.roster)
    model = federation.train(channel=partial(recording, {PASSIVE: view}), execution="protocol")
    assert model.held_out is not None
    view.rows = model.held_out[0][PASSIVE]
    sent = {each.stage: each for each in view.row_values("first", sent=True) if each.tag == "embedding"}
    position, labelled = federation.alignment.position[ACTIVE], given[ACTIVE][LABEL].is_not_null().to_numpy()
    stages = {}
    for received in view.row_values("first"):
        if received.tag == GRADIENT:
            own = position[received.rows]
            known, embedded = labelled[own], sent[received.stage]
            h = embedded.values[np.searchsorted(embedded.rows, received.rows)]
            y = truth[own][known]
            scores = [auroc(y, first_direction(values)[known]) for values in (received.values, h)]
            stages[received.stage] = (scores[0], scores[1], int(known.sum()))
    tags = {flow.tag: tally.messages for flow, tally in view.ledger.flows.items()}
    return Found(tags, stages)


def cases() -> list[Case]:
    """Return all cases to attack: methods, variants of methods, and schedules."""
    heads: tuple[tuple[str, dict[str, Any]], ...] = (("linear", {"head_hidden": []}), ("MLP", MLP_HEAD))
    found = [Case(f"{name}, {head} heads", name, shape) for name in SPLIT for head, shape in heads]
    found += [
        Case("laser, pretrain = simsiam", "laser", {"pretrain": "simsiam", "pretrain_epochs": 1}),
        Case("laser, unlabelled = pseudo", "laser", {"unlabelled": "pseudo", "unlabelled_epochs": 1}, unlabelled=True),
    ]
    found += [Case(f"laser, schedule {name}", "laser", schedule=name) for name in SCHEDULES]
    found += [Case(f"fedhssl, {head} head", "fedhssl", shape) for head, shape in heads]
    return found + [Case(name, name) for name in METHODS if name not in {*SPLIT, "fedhssl", *SHOW_LABELS}]


def halves(frame: pl.DataFrame, y: Sequence[int] | np.ndarray[Any, Any]) -> dict[str, pl.DataFrame]:
    """Return both parties' tables: the first half of the columns is the passive party's."""
    ids, half = pl.Series("id", [f"row {n}" for n in range(len(frame))]), frame.width // 2
    own = frame[:, half:].insert_column(0, ids)
    return {
        ACTIVE: own.with_columns(pl.Series(LABEL, np.asarray(y, dtype=np.int64))),
        PASSIVE: frame[:, :half].insert_column(0, ids),
    }


def of_dataset(name: str, data_dir: Path | None) -> dict[str, pl.DataFrame]:
    """Return a data set that anyparty knows by name, cut into halves."""
    data = datasets.load(name, data_dir=data_dir, progress=False)
    frame = pl.DataFrame({feature: data.X_train[:, j] for j, feature in enumerate(data.features)})
    return halves(frame[:ROWS], data.y_train[:ROWS])


def shoppers(data_dir: Path | None) -> dict[str, pl.DataFrame]:
    """Return Online Shoppers Purchasing Intention (UCI 468), cut into halves; the label is Revenue."""
    folder = data_dir or Path(os.environ.get("ANYPARTY_DATA", "."))
    path = folder / SHOPPERS
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; put UCI 468 there as CSV, gzipped, or name the folder with --data-dir"
        )
    frame = pl.read_csv(path, infer_schema_length=None)
    y = frame["Revenue"].cast(pl.String).str.to_lowercase().is_in(["true", "1"]).to_numpy()
    return halves(frame.drop("Revenue")[:ROWS], y[:ROWS])


def main(*, quick: bool, data_dir: Path | None) -> None:
    """Attack every case, and write the page."""
    torch.set_num_threads(1)
    page = Page("label_leakage", "Labels from gradients: what a passive party learns", quick)
    tables = (
        {"Breast Cancer": of_dataset("breast-cancer", None)}
        if quick
        else {"Credit": of_dataset("credit", data_dir), "Online Shoppers": shoppers(data_dir)}
    )
    seeds = range(1 if quick else SEEDS)
    silent: dict[str, list[str]] = {}
    for title, frames in tables.items():
        rows = []
        for case in cases():
            several = [attack(case, frames, seed) for seed in seeds]
            first = several[0]
            if not first.stages:
                silent[case.title] = sorted(first.tags)
            for stage in first.stages:
                by_gradient, by_embedding = ([found.stages[stage][of] for found in several] for of in (0, 1))
                count = f"{first.stages[stage][2]:,}"
                rows.append([case.title, stage, _spread(by_gradient), _spread(by_embedding), count])
            print(case.title, {stage: each[:2] for stage, each in first.stages.items()}, flush=True)
        share = float(frames[ACTIVE][LABEL].to_numpy().mean())
        page.table(
            f"{title}: {len(frames[ACTIVE]):,} rows, {share:.1%} of the positive class",
            ("method", "stage", "AUROC from gradients", "AUROC from its own embeddings", "training rows"),
            rows,
        )
    page.say(
        f"AUROC: median over {len(seeds)} seed(s) (0 to {len(seeds) - 1}), the least and the greatest in brackets. "
        f"Each is the greater one of A and 1 - A. The gradients are those that the passive party received in the first "
        f"epoch of the stage. The next column is the same attack on the embeddings that the party sent of the same "
        f"rows: what the party's own columns tell of labels in the same way. VAFL shows a batch to one party, so the "
        f"passive party receives gradients of some rows alone in an epoch. PlugVFL leaves the party out of some steps: "
        f"the gradients of these rows are zero and separate nothing. At most the first {ROWS:,} rows of a data set, "
        f"all of them at both parties, none held out. Settings are the defaults, but for one epoch of each stage and "
        f"what the table names. 'MLP': head_hidden = {MLP_HEAD['head_hidden']}."
    )
    page.table(
        "No gradient reaches the passive party",
        ("method", "messages that it receives in training"),
        [[name, ", ".join(tags)] for name, tags in silent.items()],
    )
    page.write()


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.3f} ({min(values):.3f}..{max(values):.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Breast Cancer and one seed: a look, not a result")
    parser.add_argument("--data-dir", type=Path, help="the folder of data sets; by default ANYPARTY_DATA")
    asked = parser.parse_args()
    main(quick=asked.quick, data_dir=asked.data_dir)
