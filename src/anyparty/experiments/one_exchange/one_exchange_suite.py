"""Suites of one-exchange methods as data: the active party's columns, the numbers of aligned rows, the trainings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

from pydantic import model_validator

from anyparty.config import Encoder, Settings
from anyparty.errors import ConfigError
from anyparty.experiments.one_exchange.one_exchange_run import OneExchangeRun
from anyparty.experiments.suite import ALL, Selection, Suite, SuiteDataset, select
from anyparty.methods.encoder_check import Scale
from anyparty.networks.optimizer import Optimizer

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
