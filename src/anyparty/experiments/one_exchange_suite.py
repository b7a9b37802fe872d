"""Suites of one-exchange methods as data, and one run: tables, one training, scores on folds or held-out rows.

This is the protocol of Irureta et al., section 6. All rows of the active party train the encoders, which see no labels.
A classifier is cross-validated on the embeddings of these rows. If a method's own predictions are scored, the test rows
are used for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from pydantic import model_validator

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.artifacts.record import versions
from anyparty.config import Encoder, Settings
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.data.datasets import Dataset
from anyparty.errors import ConfigError
from anyparty.experiments.party_tables import by_columns
from anyparty.experiments.suite import ALL, Selection, Suite, SuiteDataset, SuiteRun, select
from anyparty.methods.encoder_check import Scale, cross_validated
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


QUICK = 100  # divisor of the epochs in a quick run


class OneExchangeMethod(Settings):
    """Training and scoring of one method.

    Attributes:
        title: title in tables and figures.
        reads: what is scored: a classifier of the active party's "columns" or of its "embeddings", cross-validated on
            its rows; or the method's own "answers" for held-out rows.
        name, parameters: the method in the registry; not used for "columns".
        train: training settings that replace the suite's.
        alone: whether the method uses no other party, so that the number of aligned rows has no effect.
        classifier, classifier_settings, scale: the cross-validated classifier.

    """

    title: str
    reads: Literal["columns", "embeddings", "answers"] = "embeddings"
    name: str = ""
    parameters: dict[str, Any] = {}
    train: dict[str, Any] = {}
    alone: bool = False
    classifier: str = "logistic"
    classifier_settings: dict[str, Any] = {}
    scale: Scale = "none"


class OneExchangeDataset(SuiteDataset):
    """Distribution of one data set to an active and a passive party.

    Attributes:
        metric, unit: a scorer of scikit-learn, and its name in tables.
        rows: number of rows of the active party, drawn by the seed; 0 stands for the aligned rows only.
        aligned: numbers of these rows that the passive party has, too; it has the first ones.
        columns: columns of the active party in the order in which narrower widths drop them; the passive party has all
            other columns.
        widths: numbers of columns of the active party: the last ones of ``columns``.
        test: number of the active party's rows that are held out and used only as test rows.

    """

    metric: str
    unit: str
    rows: int = 0
    aligned: list[int]
    columns: list[str]
    widths: list[int]
    batch_size: int
    test: int = 0


class Claim(Settings):
    """A number in the paper's text, with the way to compute ours.

    Attributes:
        place: place in the paper.
        says: the paper's words.
        dataset, method: data set and method of the claim.
        number: the paper's number, in points of the metric or as a ratio.
        kind: "gain", the gain of the method over ``over``, or "bytes", the ratio of the bytes of ``over`` to the
            method's bytes by the formulas, both as the maximum over the numbers of aligned rows; or "loss", the loss
            between two numbers of aligned rows.
        over: the other method.
        aligned: two numbers of aligned rows.

    """

    place: str
    says: str
    dataset: str
    method: str
    number: float
    kind: Literal["gain", "bytes", "loss"]
    over: str = ""
    aligned: tuple[int, int] = (0, 0)


class PublishedRow(Settings):
    """A row of the paper's table: (mean, spread) of the score, the rounds and the megabytes."""

    score: tuple[float, float]
    rounds: tuple[float, float]
    megabytes: tuple[float, float]


class OneExchangeSuite(Suite):
    """A published experiment with one-exchange methods.

    Attributes:
        shows: the experiment's subject, scores or costs.
        folds: number of folds of the cross-validation.
        published: rows of the paper's table, by data set, method and number of aligned rows.
        claims: numbers in the paper's text.

    """

    kind: Literal["one_exchange"] = "one_exchange"
    shows: Literal["scores", "costs"] = "scores"
    folds: int = 10
    train: dict[str, Any]
    optimizer: Optimizer = Optimizer()
    encoders: dict[str, Encoder]
    datasets: dict[str, OneExchangeDataset]
    methods: dict[str, OneExchangeMethod]
    published: dict[str, dict[str, dict[int, PublishedRow]]] = {}
    claims: list[Claim] = []

    @model_validator(mode="after")
    def _check_sizes(self) -> OneExchangeSuite:
        for name, entry in self.datasets.items():
            fewest = min(entry.aligned) - (0 if entry.rows else entry.test)
            if fewest < self.folds:
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: {fewest} aligned training rows are "
                                  f"fewer than {self.folds} folds")  # fmt: skip
            if entry.rows and max(entry.aligned) > entry.rows:
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: {max(entry.aligned)} aligned rows are "
                                  f"more than the active party's {entry.rows} rows")  # fmt: skip
            if not all(0 < width <= len(entry.columns) for width in entry.widths):
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: widths {entry.widths} must be "
                                  f"between 1 and {len(entry.columns)}, the number of columns")  # fmt: skip
        return self

    @property
    def quick_cuts(self) -> str:
        """See the base class."""
        return f"1/{QUICK} of the epochs"

    def runs(self, selection: Selection = ALL) -> Iterator[OneExchangeRun]:
        """See the base class; a seed is one repeat of the cross-validation."""
        wanted = select("method", selection.methods, self.methods)
        for seed in range(selection.seeds):
            for dataset in self.selected_datasets(selection):
                entry = self.datasets[dataset]
                for width in entry.widths:
                    for method in wanted:
                        for aligned in [0] if self.methods[method].alone else entry.aligned:
                            yield self._run(dataset, method, width, aligned, seed, selection)

    def _run(
        self, dataset: str, method: str, width: int, aligned: int, seed: int, selection: Selection
    ) -> OneExchangeRun:
        entry, of = self.datasets[dataset], self.methods[method]
        device = {"device": selection.device} if selection.device != "cpu" else {}
        train = {**self.train, "batch_size": entry.batch_size, **of.train, **device}
        if selection.quick:
            train["epochs"] = max(1, train["epochs"] // QUICK)
        settings = {
            **of.model_dump(exclude={"title", "alone", "train"}), "train": train, "folds": self.folds,
            "test": entry.test, "metric": entry.metric, "rows": entry.rows,
            "names": entry.columns[len(entry.columns) - width :],
            "encoders": {name: each.model_dump() for name, each in self.encoders.items()},
            "optimizer": asdict(self.optimizer),
        }  # fmt: skip
        return OneExchangeRun(suite=self.name, dataset=dataset, method=method, seed=seed, width=width, aligned=aligned,
                   settings=settings)  # fmt: skip
