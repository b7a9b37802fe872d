"""One run of a missing-blocks suite: cut a data set into blocks, train once, and score under each test mechanism.

A block is a party's columns of a row.  A mechanism of missingness draws the blocks that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty import metrics
from anyparty.api.model import Model
from anyparty.artifacts.record import versions
from anyparty.config import Encoder
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.data.datasets.dataset import Dataset
from anyparty.data.missingness import DrawnMask, Mechanism, ScarceLabels, normalised
from anyparty.experiments.party_tables import LABELS, blocks_of, draw, federation, mechanism_of, tables
from anyparty.experiments.suite import SuiteRun
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

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """Train once and score under each test mechanism; return the record.

        The federation is built as a user would build it: one table for each party, without the rows that this party
        lacks.
        """
        torch.set_num_threads(1)  # runs execute in parallel, each with one thread
        rows = load_rows(self, data_dir)
        drawn = rows.draw_train(self.missing)
        began, began_cpu = time.perf_counter(), time.process_time()
        model = train(self, rows, drawn)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
        scores = {}
        for mechanism in self.tests:
            seen = rows.draw_test(mechanism)
            scores[mechanism] = score(model, rows, seen).to_json() | {"missing": seen.rate}
        return {
            "run": vars(self) | {"key": self.key},
            "scores": scores,
            "missing": drawn.rate,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "epochs": len(model.history),
            "best_epoch": model.best_epoch,
            "bytes_sent": sum(tally.bytes_sent for tally in model.ledger.flows.values()),
            "data": rows.data.note,
            "versions": versions(),
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
        """Draw at random which parties hold each training row and, if labels are scarce, which rows are labelled."""
        how, scarce = self._mechanism(mechanism), self.settings.get("labelled")
        if scarce is not None:
            how = ScarceLabels(n=scarce["n"], aligned=scarce["aligned"], rest=how)
        return draw(mechanism, self.seeds, "train", self._values(self.train[0]), how)

    def draw_test(self, mechanism: str) -> DrawnMask:
        """Draw at random which parties hold each test row."""
        return draw(mechanism, self.seeds, "test", self._values(self.test[0]), self._mechanism(mechanism))

    def _mechanism(self, name: str) -> Mechanism:
        return mechanism_of(name, self.settings.get("mechanisms"))

    def _values(self, blocks: Blocks) -> Blocks:
        """Return the blocks that mechanisms read, normalised by the training rows if the suite defines mechanisms."""
        return normalised(blocks, self.train[0]) if "mechanisms" in self.settings else blocks


def load_rows(run: MissingBlocksRun, data_dir: Path | None) -> RunRows:
    """Load a run's data set, and return its training and test rows cut for the run's parties.

    Raises:
        TableError: the data set is not found.
    """
    seeds = Seeds(run.seed)
    data = datasets.load(run.dataset, data_dir=data_dir, progress=False).split(seeds)
    return RunRows(data, run.parties, run.settings, seeds)


def train(run: MissingBlocksRun, rows: RunRows, drawn: DrawnMask, watch: Callback | None = None) -> Model:
    """Train the model of a run on the blocks that ``drawn`` leaves, and return the model.

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
    """Return the metrics of a model on all test rows, including those that the active party does not hold.

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
