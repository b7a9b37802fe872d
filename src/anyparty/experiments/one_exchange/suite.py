"""Suites of one exchange as data: which columns the active party has, how many rows are aligned, how methods train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from anyparty.config import Encoder, Settings
from anyparty.errors import ConfigError
from anyparty.experiments import suite as base
from anyparty.experiments.one_exchange import tables
from anyparty.experiments.one_exchange.one import execute
from anyparty.nets.cross_validation import Scale
from anyparty.nets.optimizer import Optimizer

ACTIVE, PASSIVE = "active", "passive"
QUICK = 100  # a quick run has a hundredth of the epochs


class MethodEntry(Settings):
    """How a suite scores one method.

    Attributes:
        title: in tables.
        reads: what is scored: a classifier of the active party's "columns", or of its "embeddings", both by
            cross-validation on its rows; or the method's own "answers" for rows that it was not trained on.
        name, parameters: the method that trains; none for "columns".
        train: settings of training in which it departs from the suite's.
        alone: whether it learns from nobody, so that the number of aligned rows does not matter.
        classifier, classifier_settings, scale: the classifier that is cross-validated.

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


class DatasetEntry(base.Entry):
    """How a suite cuts one data set between two parties.

    Attributes:
        metric, unit: a scorer of scikit-learn's, and what to call it.
        rows: how many of its rows the active party has, drawn by the seed; all that are aligned, where it is 0.
        aligned: how many of them the passive party has too: the first ones.
        columns: the active party's, in the order in which it gives them up; the passive party has all that remain.
        widths: how many of them it has, the last ones of ``columns``.
        test: rows of the active party that are held out of everything, for methods' own answers.

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
    """A number that the paper's text gives, and what of ours stands beside it.

    Attributes:
        place: in the paper.
        says: its words.
        dataset, method: of what.
        number: the paper's, in points of the metric or as a ratio.
        kind: "gain" of the method over ``over``, the greatest among the numbers of aligned rows; "bytes" of ``over``
            for each of the method's, by the formulas, likewise; "loss" between two numbers of aligned rows.
        over: another method.
        aligned: from, to.

    """

    place: str
    says: str
    dataset: str
    method: str
    number: float
    kind: Literal["gain", "bytes", "loss"]
    over: str = ""
    aligned: tuple[int, int] = (0, 0)


class Printed(Settings):
    """A row of the paper's table: mean and spread of the score, of the rounds, and of the megabytes."""

    score: tuple[float, float]
    rounds: tuple[float, float]
    megabytes: tuple[float, float]


class Suite(base.Suite):
    """A published experiment with one exchange.

    ``shows`` says what it is about: scores or costs.  ``published`` holds, by data set, method and number of aligned
    rows, what the paper prints in a table; ``claims`` what its text says.
    """

    shows: Literal["scores", "costs"] = "scores"
    folds: int = 10
    train: dict[str, Any]
    optimizer: Optimizer = Optimizer()
    encoders: dict[str, Encoder]
    datasets: dict[str, DatasetEntry]
    methods: dict[str, MethodEntry]
    published: dict[str, dict[str, dict[int, Printed]]] = {}
    claims: list[Claim] = []

    @model_validator(mode="after")
    def _fits(self) -> Suite:
        for name, entry in self.datasets.items():
            fewest = min(entry.aligned) - (0 if entry.rows else entry.test)
            if fewest < self.folds:
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: {fewest} aligned rows to train on are "
                                  f"fewer than {self.folds} folds")  # fmt: skip
            if entry.rows and max(entry.aligned) > entry.rows:
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: {max(entry.aligned)} aligned rows of the "
                                  f"active party's {entry.rows}")  # fmt: skip
            if not all(0 < width <= len(entry.columns) for width in entry.widths):
                raise ConfigError(f"suite {self.name!r}, data set {name!r}: widths {entry.widths} of "
                                  f"{len(entry.columns)} columns")  # fmt: skip
        return self

    def runs(self, asked: base.Asked = base.ALL) -> Iterator[Run]:
        """See the base; a seed is one repeat of cross-validation."""
        wanted = base.chosen("method", asked.methods, self.methods)
        for seed in range(asked.seeds):
            for dataset in self.asked_for(asked):
                entry = self.datasets[dataset]
                for width in entry.widths:
                    for method in wanted:
                        for aligned in [0] if self.methods[method].alone else entry.aligned:
                            yield self._run(dataset, method, width, aligned, seed, asked)

    def _run(self, dataset: str, method: str, width: int, aligned: int, seed: int, asked: base.Asked) -> Run:
        entry, of = self.datasets[dataset], self.methods[method]
        device = {"device": asked.device} if asked.device != "cpu" else {}
        train = {**self.train, "batch_size": entry.batch_size, **of.train, **device}
        if asked.quick:
            train["epochs"] = max(1, train["epochs"] // QUICK)
        settings = {
            **of.model_dump(exclude={"title", "alone", "train"}), "train": train, "folds": self.folds,
            "test": entry.test, "metric": entry.metric, "rows": entry.rows,
            "names": entry.columns[len(entry.columns) - width :],
            "encoders": {name: each.model_dump() for name, each in self.encoders.items()},
            "optimizer": asdict(self.optimizer),
        }  # fmt: skip
        return Run(suite=self.name, dataset=dataset, method=method, seed=seed, width=width, aligned=aligned,
                   settings=settings)  # fmt: skip

    def page(self, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> base.Page:
        """See the base."""
        return tables.page(self, records, about)


@dataclass(frozen=True, kw_only=True)
class Run(base.Run):
    """One repeat of one cell: one training, and its scores on all folds.

    Attributes:
        width: how many columns the active party has.
        aligned: how many of its rows the passive party has too; 0 where that does not matter.

    """

    width: int
    aligned: int

    @property
    def label(self) -> str:
        """See the base."""
        return f"{self.dataset}-{self.method}-c{self.width}-a{self.aligned}-s{self.seed}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base."""
        return execute(self, data_dir)

    def whole(self, record: Mapping[str, Any]) -> bool:
        """See the base."""
        return "score" in record
