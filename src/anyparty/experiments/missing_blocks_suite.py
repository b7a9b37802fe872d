"""Suites of missing blocks as data, and one run: cut a data set into blocks, train once, score under each mechanism.

A block is a party's columns of a row.  A mechanism of missingness draws the blocks that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty import metrics
from anyparty.api.model import Model
from anyparty.config import Encoder, Settings
from anyparty.core.seeds import Seeds
from anyparty.data.datasets.dataset import Dataset
from anyparty.data.missingness import DrawnMask, Mechanism, ScarceLabels, normalised
from anyparty.experiments.compared_methods import compared_methods
from anyparty.experiments.party_tables import LABELS, blocks_of, draw, federation, mechanism_of, tables
from anyparty.experiments.results import SCORE, Cell, Record, by_seed
from anyparty.experiments.suite import Selection, Suite, SuiteDataset, SuiteRun, timed
from anyparty.networks.optimizer import Optimizer
from anyparty.tables import target
from anyparty.tables.partition import views
from anyparty.training.callbacks import Callback

Blocks = list[NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class MissingBlocksRun(SuiteRun):
    """One training under one mechanism of missingness, scored under all test mechanisms.

    Attributes:
        parties: number of parties, K.
        missing: name of the mechanism that draws the missing blocks of training rows.
        tests: names of the mechanisms that draw the missing blocks of test rows.

    """

    parties: int
    missing: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        """A readable name of the run: data set, method, number of parties, training mechanism, seed."""
        missing = self.missing.lower().replace(" ", "")
        return f"{self.dataset}-{self.method.replace(':', '-')}-k{self.parties}-{missing}-s{self.seed}"

    def is_complete(self, record: Mapping[str, Any]) -> bool:
        """Return True if a stored record has a score for each test mechanism of this run."""
        return set(record.get("scores", ())) == set(self.tests)

    def train_and_score(self, data: Dataset, data_dir: Path | None) -> dict[str, Any]:  # noqa: ARG002
        """Train once and score under each test mechanism.

        The federation is built as a user would build it: one table for each party, without the rows that this party
        lacks.
        """
        rows = split_rows(self, data)
        drawn = rows.draw_train(self.missing)
        with timed() as times:
            model = train(self, rows, drawn)
        scores = {}
        for mechanism in self.tests:
            seen = rows.draw_test(mechanism)
            scores[mechanism] = score(model, rows, seen).to_json() | {"missing": seen.rate}
        return {
            "scores": scores,
            "missing": drawn.rate,
            **times,
            "epochs": len(model.history),
            "best_epoch": model.best_epoch,
            "bytes_sent": sum(tally.bytes_sent for tally in model.ledger.flows.values()),
        }


@dataclass(frozen=True)
class RunRows:
    """The training and test rows of one run, each cut into K arrays [n, d_k], one for each party.

    Attributes:
        data: the data set, with test rows.
        parties: number of parties, K.
        settings: settings of the run, of which ``cut``, ``rows``, ``repeats``, ``labelled`` and ``mechanisms`` are
            used.
        seeds: random streams of the run.

    """

    data: Dataset
    parties: int
    settings: Mapping[str, Any]
    seeds: Seeds

    @cached_property
    def train(self) -> tuple[Blocks, NDArray[Any]]:
        """The K arrays [n, d_k] and the labels [n] of the training rows; the setting ``rows`` limits n."""
        X, y = self.data.X_train, self.data.y_train
        wanted = self.settings.get("rows")
        if wanted is not None and wanted < len(y):
            kept = np.sort(self.seeds.numpy("rows").permutation(len(y))[:wanted])
            X, y = X[kept], y[kept]
        return self._cut(X, y, "train")

    @cached_property
    def test(self) -> tuple[Blocks, NDArray[Any]]:
        """The K arrays [n, d_k] and the labels [n] of the test rows."""
        assert self.data.X_test is not None
        assert self.data.y_test is not None
        return self._cut(self.data.X_test, self.data.y_test, "test")

    def _cut(self, X: NDArray[Any], y: NDArray[Any], part: str) -> tuple[Blocks, NDArray[Any]]:
        if "repeats" not in self.settings:
            return blocks_of(X, self.settings["cut"], self.parties), y
        times, rng = self.settings["repeats"][part == "test"], self.seeds.numpy("views", part)
        each = [views(X, self.parties, pick=rng) for _ in range(times)]
        scaled = [np.concatenate(of_party).astype(np.float32) / 255 for of_party in zip(*each, strict=True)]
        return [block.reshape(len(block), -1) for block in scaled], np.tile(y, times)

    def draw_train(self, mechanism: str) -> DrawnMask:
        """Return a random mask of each party's training rows, and of the labelled rows if not all rows have labels."""
        how, scarce = self._mechanism(mechanism), self.settings.get("labelled")
        if scarce is not None:
            how = ScarceLabels(n=scarce["n"], aligned=scarce["aligned"], rest=how)
        return draw(mechanism, self.seeds, "train", self._values(self.train[0]), how)

    def draw_test(self, mechanism: str) -> DrawnMask:
        """Return a random mask of the test rows that each party holds."""
        return draw(mechanism, self.seeds, "test", self._values(self.test[0]), self._mechanism(mechanism))

    def _mechanism(self, name: str) -> Mechanism:
        return mechanism_of(name, self.settings.get("mechanisms"))

    def _values(self, blocks: Blocks) -> Blocks:
        """Return the blocks, normalised by the training rows if the suite defines its own mechanisms."""
        return normalised(blocks, self.train[0]) if "mechanisms" in self.settings else blocks


def split_rows(run: MissingBlocksRun, data: Dataset) -> RunRows:
    """Return the training and test rows of a data set, cut for the parties of a run."""
    seeds = Seeds(run.seed)
    return RunRows(data.split(seeds), run.parties, run.settings, seeds)


def train(run: MissingBlocksRun, rows: RunRows, drawn: DrawnMask, watch: Callback | None = None) -> Model:
    """Train the model of a run on the blocks that are present in the mask ``drawn``, and return the model.

    Raises:
        AnypartyError: the run failed.
    """
    settings, at = run.settings, run.settings.get("labels_at", LABELS)
    frames = tables(*rows.train, drawn.observed, labeled=drawn.labeled, at=at)
    return federation(frames, scale=settings["scale"], at=at, task=rows.data.task).train(
        settings["name"],
        parameters={"embedding": settings["embedding"], **settings["parameters"]},
        encoder=Encoder.model_validate(settings["encoder"]).make(),
        optimizer=Optimizer(**settings["optimizer"]),
        seed=run.seed,
        watch=watch,
        **({"validation": 0.0, "test": 0.0, "patience": None, "keep": "last", "score_training": 0} | settings["train"]),
        **{key: settings[key] for key in ("epochs", "batch_size", "balance")},
    )


def score(model: Model, rows: RunRows, seen: DrawnMask) -> metrics.Evaluation:
    """Return the metrics of a model on all test rows, including the rows that the active party does not hold.

    ``seen`` is the drawn mask of the blocks that parties hold. A row whose class does not occur in training is scored
    as wrong.
    """
    blocks, y = rows.test
    frames = tables(blocks, y, seen.observed)
    answers = model.predict({name: frame for name, frame in frames.items() if name in model.roster.names})
    assert answers.ids is not None
    # Random guesses are drawn one row after the other, so the rows need a fixed order.
    answers = answers.take(sorted(range(len(answers)), key=answers.ids.__getitem__))
    assert answers.ids is not None
    at = [int(name) for name in answers.ids]
    label = pl.Series("label", y[at])
    unseen = target.unseen(label, model.task)
    task = replace(model.task, classes=(*model.task.classes, *unseen))
    numbers, _ = target.encode(label, task, LABELS)
    observed = torch.from_numpy(seen.observed[at])
    return metrics.evaluate(answers, numbers, None, observed, Seeds(model.seed), unseen=unseen)


class MissingBlocksMethod(Settings):
    """The settings to train one method on one data set.

    Attributes:
        title: title in tables and figures.
        name: the method's name in the registry of methods.
        when: for each training mechanism, changes of these settings for runs with this mechanism.
        batch_size: number of rows of a batch, in place of the data set's batch size.
        labels_at: name of the party that is active and has the labels of its rows; by default the active party is a
            further party with all labels and no columns.
        own: whether the paper introduces this method.
        beyond: whether the method is not in the paper; summaries of the paper's comparison exclude such a method.
        most_parties: the greatest number of parties with which the method is run.
        described: a user-defined method as data, with a hash of its source, so that runs are repeated after an edit;
            ``None`` for a built-in method.

    """

    title: str
    name: str
    epochs: int
    optimizer: Optimizer
    parameters: dict[str, Any] = {}
    when: dict[str, dict[str, Any]] = {}
    encoder: dict[str, Any] = {}
    train: dict[str, Any] = {}
    batch_size: int | None = None
    labels_at: str | None = None
    own: bool = False
    beyond: bool = False
    most_parties: int | None = None
    described: dict[str, Any] | None = None


class LabelledRows(Settings):
    """The number ``n`` of labelled training rows; all parties hold ``aligned`` of these rows."""

    n: int
    aligned: int


class MissingBlocksDataset(SuiteDataset):
    """Settings of one data set.

    Attributes:
        parties: number of parties, in place of the suite's numbers of parties.
        labelled: numbers of labelled rows; by default all training rows are labelled.
        rows: number of training rows to draw; by default all rows.
        repeats: for objects with several views, two numbers: how often each training object, and how often each test
            object, becomes a row. Each party has some of the views, and gets one of them at random in each row.

    """

    metric: str
    unit: str
    batch_size: int
    embedding: int
    encoder: Encoder
    cut: str = "columns"
    scale: bool = True
    balance: bool = False
    in_place_of: str = ""
    parties: int | None = None
    labelled: LabelledRows | None = None
    rows: int | None = None
    repeats: tuple[int, int] | None = None
    methods: dict[str, MissingBlocksMethod]


class MissingBlocksSuite(Suite):
    """A published table of scores with missing blocks.

    Attributes:
        parties: numbers of parties, for data sets that do not set their own.
        train_missing, test_missing: names of the mechanisms that draw missing blocks in training and at test; a number
            p means MCAR(p).
        mechanisms: mechanisms that this suite defines, by name; a suite with such mechanisms normalises features for
            all mechanisms.
        layout: "columns": one table for each data set. "training": one table for each data set and training mechanism.
            "ratios": the metric after training under the last of ``train_missing``, in per cent of the metric after
            training under the first.
        quick: number by which a quick run divides the epochs.
        runs_of: name of the suite whose runs this suite shows; empty if it has its own runs.
        published: the paper's (mean, spread) for each test mechanism, by data set, method and training mechanism.
        published_ratios: the paper's ratio for each test mechanism, by data set and method.

    """

    condition_names: ClassVar[tuple[str, ...]] = ("parties", "missing")

    kind: Literal["missing_blocks"] = "missing_blocks"
    parties: list[int] = []
    train_missing: list[str]
    test_missing: list[str]
    mechanisms: dict[str, dict[str, Any]] = {}
    layout: Literal["columns", "training", "ratios"] = "columns"
    quick: int = 10
    runs_of: str = ""
    datasets: dict[str, MissingBlocksDataset]
    published: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    published_ratios: dict[str, dict[str, list[float]]] = {}

    @property
    def folder_name(self) -> str:
        """The folder in runs/bench that has the runs: ``runs_of`` or, if this is empty, the suite's own name."""
        return self.runs_of or self.name

    @property
    def quick_cuts(self) -> str:
        """The share of the work that a quick run does, as a text for the page."""
        return f"1/{self.quick} of the epochs"

    def with_own_methods(self, names: Sequence[str]) -> Self:
        """Return the suite with additional methods of the user, which ``names`` lists as "module:name".

        On each data set, the additional methods are trained with the settings of LASER-VFL.  If the suite does not
        train LASER-VFL on the data set, the settings of the first method are used.
        """
        if not names:
            return self
        own = compared_methods({name: name for name in names})
        datasets = {}
        for dataset, entry in self.datasets.items():
            like = next((each for each in entry.methods.values() if each.name == "laser"), None)
            like = like or next(iter(entry.methods.values()))
            when = {missing: {key: value for key, value in changes.items() if key != "parameters"}
                    for missing, changes in like.when.items()}  # fmt: skip
            same = {"parameters": {}, "when": when, "own": False, "beyond": True, "most_parties": None}
            more = {
                each.label: like.model_copy(
                    update={**same, "title": each.label, "name": each.label, "described": each.described}
                )
                for each in own
            }
            datasets[dataset] = entry.model_copy(update={"methods": entry.methods | more})
        sentence = f"{', '.join(names)}: not in the paper; trained as the suite's LASER-VFL, or as its first method."
        return self.model_copy(update={"datasets": datasets, "differs": [*self.differs, sentence]})

    def parties_of(self, dataset: str) -> list[int]:
        """Return the numbers of parties with which a data set is run."""
        own = self.datasets[dataset].parties
        return self.parties if own is None else [own]

    def methods_of(self, dataset: str) -> Mapping[str, MissingBlocksMethod]:
        """Return the entries of a data set's methods, by name."""
        return self.datasets[dataset].methods

    def conditions(self, dataset: str, method: str) -> Iterator[dict[str, Any]]:
        """Yield each number of parties with which a method is run, with each training mechanism."""
        for parties in self.parties_of(dataset):
            if parties <= (self.datasets[dataset].methods[method].most_parties or parties):
                for missing in self.train_missing:
                    yield {"parties": parties, "missing": missing}

    def run(
        self, dataset: str, method: str, condition: Mapping[str, Any], seed: int, selection: Selection
    ) -> MissingBlocksRun:
        """Return the run of a method with a number of parties and a training mechanism."""
        missing = condition["missing"]
        entry = self.datasets[dataset]
        of = entry.methods[method]
        values = of.model_dump(exclude={"when", "title", "own", "beyond", "most_parties"}, exclude_none=True)
        for change, value in of.when.get(missing, {}).items():
            values[change] = values[change] | value if isinstance(value, dict) else value
        if selection.quick:
            values["epochs"] = max(1, values["epochs"] // self.quick)
            stages = values["parameters"].keys() & {"pretrain_epochs", "unlabelled_epochs"}
            fewer = {stage: max(1, values["parameters"][stage] // self.quick) for stage in stages}
            values["parameters"] = {**values["parameters"], **fewer}
        if selection.device != "cpu":
            values["train"] = {**values["train"], "device": selection.device}
        not_settings = {"methods", "metric", "unit", "in_place_of", "heavy", "parties", "encoder", "differs"}
        shared = entry.model_dump(exclude=not_settings, exclude_none=True)
        if self.mechanisms:
            shared["mechanisms"] = {name: self.mechanisms[name] for name in (missing, *self.test_missing)}
        encoder = entry.encoder.model_dump() | values.pop("encoder")
        return MissingBlocksRun(
            suite=self.folder_name, dataset=dataset, method=method, **condition, tests=tuple(self.test_missing),
            seed=seed, settings={**shared, **values, "encoder": encoder},
        )  # fmt: skip

    def measure(self, place: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Cell]:
        """Yield a cell for each test mechanism.

        The measures are the score in per cent; ``seconds``, the duration of the training; ``epoch_seconds``, the CPU
        time of an epoch; ``missing_in_training`` and ``missing_at_test``, the shares of blocks that are missing.
        """
        metric = self.datasets[place["dataset"]].metric
        paper = self.published.get(place["dataset"], {}).get(place["method"], {}).get(place["missing"])
        for column, test in enumerate(self.test_missing):
            yield Cell(facts={**place, "test": test, "paper": paper[column] if paper else None}, measures={
                SCORE: by_seed((r, 100 * _metric(r["scores"][test], metric)) for r in records),
                "seconds": by_seed((r, r["seconds"]) for r in records),
                "epoch_seconds": by_seed((r, r["cpu_seconds"] / r["epochs"]) for r in records),
                "missing_in_training": by_seed((r, r["missing"]) for r in records),
                "missing_at_test": by_seed((r, r["scores"][test]["missing"]) for r in records),
            })  # fmt: skip


def _metric(scores: Mapping[str, Mapping[str, float | None]], metric: str) -> float:
    value = scores["clients"].get(metric, scores["overall"].get(metric))
    return math.nan if value is None else float(value)
