"""Suites of one-exchange methods as data, and their runs: one training, scored on folds or on held-out rows.

In a one-exchange method, the parties exchange representations once, then train locally. The protocol is described in
section 6 of Irureta et al. (APC-VFL). All rows of the active party train the encoders, which see no labels. A
classifier is then cross-validated on the embeddings of these rows. Some suites score the method's own predictions
instead, on test rows that are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import model_validator

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.config import Encoder, Settings
from anyparty.core.seeds import Seeds
from anyparty.data.datasets import Dataset
from anyparty.errors import ConfigError
from anyparty.experiments.party_tables import by_columns
from anyparty.experiments.results import SCORE, Cell, Record, by_seed
from anyparty.experiments.suite import Selection, Suite, SuiteDataset, SuiteRun, timed
from anyparty.methods.encoder_check import Scale, cross_validated
from anyparty.networks.optimizer import Optimizer

Frames = dict[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class OneExchangeRun(SuiteRun):
    """One training of a method with one seed, and its scores.

    Attributes:
        width: number of columns of the active party.
        aligned: number of the active party's rows that the passive party has, too; 0 if this number does not affect the
            method.

    """

    width: int
    aligned: int

    @property
    def label(self) -> str:
        """A readable name of the run: data set, method, numbers of columns and aligned rows, seed."""
        return f"{self.dataset}-{self.method}-c{self.width}-a{self.aligned}-s{self.seed}"

    def train_and_score(self, data: Dataset, data_dir: Path | None) -> dict[str, Any]:  # noqa: ARG002
        """Train and score the method; return the score, the costs and the duration.

        Raises:
            ConfigError: the data set has too few rows, or it lacks a column of the suite.
        """
        frames, test = party_frames(self, data)
        with timed() as times:
            scores = (
                _score_columns(self, frames)
                if self.settings["reads"] == "columns"
                else _train_and_score(self, frames, test)
            )
        return scores | times


def party_frames(run: OneExchangeRun, data: Dataset) -> tuple[Frames, Frames]:
    """Return each party's table of training rows, and each party's table of held-out rows.

    The held-out rows depend on the seed alone, so they are the same for every number of aligned rows.

    Raises:
        ConfigError: the data set has too few rows, or it lacks a column of the suite.
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


def _score_columns(run: OneExchangeRun, frames: Frames) -> dict[str, Any]:
    """Return the scores of a classifier that is cross-validated on the active party's columns."""
    active = frames["active"]
    return _cross_validate(run, active.drop("id", "label").to_numpy(), active["label"].to_numpy())


def _cross_validate(run: OneExchangeRun, x: Any, y: Any) -> dict[str, Any]:
    of = run.settings
    scores = cross_validated(x, y, classifier=of["classifier"], settings=of["classifier_settings"], scale=of["scale"],
                             metric=of["metric"], folds=of["folds"], seed=run.seed)  # fmt: skip
    return {"score": float(scores.mean()), "folds": scores.tolist()}


def _train_and_score(run: OneExchangeRun, frames: Frames, test: Frames) -> dict[str, Any]:
    """Train a model and return its scores, its numbers of epochs and its costs.

    The model's predictions are scored if rows are held out.  If the suite scores the method's embeddings, a classifier
    is cross-validated on them.
    """
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
        scores["score"] = _score_predictions(run, model, test)
    if of["reads"] == "embeddings":
        scores |= _cross_validate(run, _embed_rows(model, frames["active"]), frames["active"]["label"].to_numpy())
    stages = [str(record["stage"]) for record in model.history]
    return {**scores, "epochs": {stage: stages.count(stage) for stage in stages}, "costs": model.costs}


def _score_predictions(run: OneExchangeRun, model: Model, test: Frames) -> float:
    """Return the score of the model's own predictions for the held-out rows."""
    overall, metric = model.evaluate(test).overall, run.settings["metric"]
    if metric not in overall:
        raise ConfigError(f"suite {run.suite!r}: predictions have no metric {metric!r}; use one of "
                          f"{', '.join(overall)}")  # fmt: skip
    return float(overall[metric])


def _embed_rows(model: Model, active: pl.DataFrame) -> np.ndarray[Any, Any]:
    """Return the embeddings of the active party's n rows, [n, M], in the order of the active party's table."""
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


QUICK = 100  # a quick run divides the number of epochs by this number


class OneExchangeMethod(Settings):
    """The settings to train and score one method.

    Attributes:
        title: title in tables and figures.
        reads: the data that are scored. "columns": a classifier is cross-validated on the active party's columns.
            "embeddings": a classifier is cross-validated on the active party's embeddings. "answers": the method's own
            predictions for held-out rows are scored.
        name, parameters: the name and the parameters of the method; not used for "columns".
        train: training settings that replace the suite's settings.
        alone: whether only the active party takes part, so that the number of aligned rows has no effect.
        classifier, classifier_settings, scale: the classifier that is cross-validated, its arguments, and the scaling
            of its inputs.

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
    """The way in which one data set is distributed to an active and a passive party.

    Attributes:
        metric, unit: a scorer of scikit-learn, and its name in tables.
        rows: number of rows of the active party, drawn by the seed; 0 if it has only the aligned rows.
        aligned: the suite is run with each of these numbers of aligned rows; both parties have the aligned rows.
        columns: columns of the active party.  Narrower tables drop columns from the start of this list.  The passive
            party has all columns of the data set that the active party does not have.
        widths: the suite is run with each of these numbers of columns of the active party; a width of 3 keeps the last
            three of ``columns``.
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
    """A number in the paper's text, and the way to compute the same number from our runs.

    Attributes:
        place: place of the number in the paper.
        says: the paper's words.
        dataset, method: data set and method of the claim.
        number: the paper's number: a difference of scores in percentage points, or a ratio.
        kind: "gain": the score of ``method`` minus the score of ``over``. "bytes": the bytes of ``over`` by the paper's
            formulas, divided by the bytes of ``method``.  For these two kinds, the number is the greatest over all
            numbers of aligned rows.  "loss": the score of ``method`` with the first number of ``aligned``, minus the
            score of ``method`` with the second number. "rounds": the rounds of ``over`` divided by the rounds of
            ``method``, with the first number of ``aligned``.
        over: the method that ``method`` is compared with.
        aligned: for a "loss", two numbers of aligned rows; for "rounds", twice the same number.

    """

    place: str
    says: str
    dataset: str
    method: str
    number: float
    kind: Literal["gain", "bytes", "loss", "rounds"]
    over: str = ""
    aligned: tuple[int, int] = (0, 0)


class PublishedRow(Settings):
    """A row of the paper's table: the score (from 0 to 1), the rounds and the megabytes, each as (mean, spread)."""

    score: tuple[float, float]
    rounds: tuple[float, float]
    megabytes: tuple[float, float]


class OneExchangeSuite(Suite):
    """A published experiment with one-exchange methods.

    Attributes:
        shows: the subject of the page: scores and costs, or only costs.
        folds: number of folds of the cross-validation.
        published: rows of the paper's table, by data set, method and number of aligned rows.
        claims: numbers in the paper's text.

    """

    condition_names: ClassVar[tuple[str, ...]] = ("width", "aligned")

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
        """The share of the work that a quick run does, as a text for the page."""
        return f"1/{QUICK} of the epochs"

    def conditions(self, dataset: str, method: str) -> Iterator[dict[str, Any]]:
        """Yield each number of the active party's columns with each number of aligned rows."""
        entry = self.datasets[dataset]
        for width in entry.widths:
            for aligned in [0] if self.methods[method].alone else entry.aligned:
                yield {"width": width, "aligned": aligned}

    def run(
        self, dataset: str, method: str, condition: Mapping[str, Any], seed: int, selection: Selection
    ) -> OneExchangeRun:
        """Return the run of a method with a number of columns and a number of aligned rows."""
        entry, of = self.datasets[dataset], self.methods[method]
        device = {"device": selection.device} if selection.device != "cpu" else {}
        train = {**self.train, "batch_size": entry.batch_size, **of.train, **device}
        if selection.quick:
            train["epochs"] = max(1, train["epochs"] // QUICK)
        settings = {
            **of.model_dump(exclude={"title", "alone", "train"}), "train": train, "folds": self.folds,
            "test": entry.test, "metric": entry.metric, "rows": entry.rows,
            "names": entry.columns[len(entry.columns) - condition["width"] :],
            "encoders": {name: each.model_dump() for name, each in self.encoders.items()},
            "optimizer": asdict(self.optimizer),
        }  # fmt: skip
        return OneExchangeRun(suite=self.name, dataset=dataset, method=method, seed=seed, **condition,
                              settings=settings)  # fmt: skip

    def measure(self, place: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Cell]:
        """Yield one cell.

        The measures are the score in per cent; ``rounds`` and ``bytes`` of the method's own messages;
        ``formula_rounds`` and ``formula_bytes`` by the paper's formula, for the runs that the formula covers; and
        ``cpu_seconds`` of the training.
        """
        paper = self.published.get(place["dataset"], {}).get(place["method"], {}).get(place["aligned"])
        costs = [(record, record.get("costs", {"sent": [], "published": []})) for record in records]
        covered = [(record, cost) for record, cost in costs if cost["published"]]
        sums = {prefix + name: by_seed((record, sum(each[key] for each in cost[source])) for record, cost in pairs)
                for prefix, source, pairs in (("", "sent", costs), ("formula_", "published", covered))
                for name, key in (("rounds", "rounds"), ("bytes", "bytes_sent"))}  # fmt: skip
        scores = by_seed((record, 100 * record["score"]) for record in records)
        times = by_seed((record, record["cpu_seconds"]) for record in records)
        yield Cell(facts={**place, "paper": paper}, measures={SCORE: scores, **sums, "cpu_seconds": times})
