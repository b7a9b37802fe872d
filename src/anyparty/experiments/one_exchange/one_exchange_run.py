"""One run of a one-exchange suite: the parties' tables, one training, and scores on folds or on held-out rows.

This is the protocol of Irureta et al., section 6. All rows of the active party train the encoders, which see no labels.
A classifier is cross-validated on the embeddings of these rows. If a method's own predictions are scored, the test rows
are used for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.artifacts.record import versions
from anyparty.config import Encoder
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.data.datasets import Dataset
from anyparty.errors import ConfigError
from anyparty.experiments.party_tables import by_columns
from anyparty.experiments.suite import SuiteRun
from anyparty.methods.encoder_check import cross_validated
from anyparty.networks.optimizer import Optimizer

Frames = dict[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class OneExchangeRun(SuiteRun):
    """One repeat of one cell: one training, and its scores on all folds.

    Attributes:
        width: number of columns of the active party.
        aligned: number of the active party's rows that the passive party has, too; 0 if the method does not depend on
            this number.

    """

    width: int
    aligned: int

    @property
    def label(self) -> str:
        """See the base class."""
        return f"{self.dataset}-{self.method}-c{self.width}-a{self.aligned}-s{self.seed}"

    def is_complete(self, record: Mapping[str, Any]) -> bool:
        """See the base class."""
        return "score" in record

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base class.

        Raises:
            ConfigError: the data set has too few rows, or it lacks a column that the suite names.
        """
        torch.set_num_threads(1)  # runs are parallel, one thread each
        data = datasets.load(self.dataset, data_dir=data_dir, progress=False)
        frames, test = party_frames(self, data)
        began, began_cpu = time.perf_counter(), time.process_time()
        scores = _columns(self, frames) if self.settings["reads"] == "columns" else _trained(self, frames, test)
        return {
            "run": vars(self) | {"key": self.key},
            **scores,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - began_cpu,
            "data": data.note,
            "versions": versions(),
        }


def party_frames(run: OneExchangeRun, data: Dataset) -> tuple[Frames, Frames]:
    """Return the parties' training tables and held-out tables.

    A seed holds out the same rows for every number of aligned rows.

    Raises:
        ConfigError: the data set has too few rows, or it lacks a column that the suite names.
    """
    settings, rng = run.settings, Seeds(run.seed).numpy("rows")
    rows = settings["rows"] or run.aligned
    if rows > len(data.y_train):
        raise ConfigError(f"data set {run.dataset!r} has {len(data.y_train)} rows, the suite needs {rows}")
    drawn, test = rng.permutation(len(data.y_train)), settings["test"]
    places = np.concatenate([drawn[test:rows], drawn[:test]])
    held = {"active": rows} | ({"passive": run.aligned} if run.aligned else {})
    tables, kept = by_columns(data, places, {"active": settings["names"]}, held, labels="active"), rows - test
    return (
        {name: frame[:kept] for name, frame in tables.items()},
        {name: frame[kept:] for name, frame in tables.items() if len(frame) > kept},
    )


def _columns(run: OneExchangeRun, frames: Frames) -> dict[str, Any]:
    """Score a classifier of the active party's columns."""
    active = frames["active"]
    return _folds(run, active.drop("id", "label").to_numpy(), active["label"].to_numpy())


def _folds(run: OneExchangeRun, x: Any, y: Any) -> dict[str, Any]:
    of = run.settings
    scores = cross_validated(x, y, classifier=of["classifier"], settings=of["classifier_settings"], scale=of["scale"],
                             metric=of["metric"], folds=of["folds"], seed=run.seed)  # fmt: skip
    return {"score": float(scores.mean()), "folds": scores.tolist()}


def _trained(run: OneExchangeRun, frames: Frames, test: Frames) -> dict[str, Any]:
    """Train a model; score its predictions if rows are held out, and its embeddings if the method reads embeddings."""
    of = run.settings
    model = Federation.from_tables(frames, label="label", split="random").train(
        of["name"],
        parameters=of["parameters"],
        encoder={name: Encoder.model_validate(of["encoders"][name]).make() for name in frames},
        optimizer=Optimizer(**of["optimizer"]),
        seed=run.seed,
        test=0.0,
        score_training=0,
        **of["train"],
    )
    scores: dict[str, Any] = {}
    if test:
        scores["score"] = _predictions(run, model, test)
    if of["reads"] == "embeddings":
        scores |= _folds(run, _embeddings(model, frames["active"]), frames["active"]["label"].to_numpy())
    stages = [str(record["stage"]) for record in model.history]
    return {**scores, "epochs": {stage: stages.count(stage) for stage in stages}, "costs": model.costs}


def _predictions(run: OneExchangeRun, model: Model, test: Frames) -> float:
    """Score the model's own predictions for rows that were held out."""
    overall, metric = model.evaluate(test).overall, run.settings["metric"]
    if metric not in overall:
        raise ConfigError(f"suite {run.suite!r}: predictions have no metric {metric!r}; use one of "
                          f"{', '.join(overall)}")  # fmt: skip
    return float(overall[metric])


def _embeddings(model: Model, active: pl.DataFrame) -> np.ndarray[Any, Any]:
    """Return the embeddings [n, M] of the active party's rows, in the table's order."""
    rows = model.aligned({"active": active.drop("label")}).rows
    lead, state = rows["active"], model.members["active"].state
    assert lead.block is not None
    classified = getattr(model.method, "classified", None)
    if classified is None:
        raise ConfigError(
            f'{model.method.can.title} has no embeddings of the active party\'s own rows; set reads = "answers"'
        )
    u: np.ndarray[Any, Any] = classified(state, lead, lead.block.position.argsort()).u.cpu().numpy()
    return u
