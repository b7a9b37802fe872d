"""One run of a suite: data set to blocks, blocks to a model, the model scored under every test mechanism."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from anyparty import metrics
from anyparty.blocks.missing import Drawn
from anyparty.config import Encoder
from anyparty.experiments.missing_blocks.rows import Rows
from anyparty.experiments.parties import LABELS, federation, tables
from anyparty.nets.optimizer import Optimizer
from anyparty.run.model import Model
from anyparty.run.record import versions
from anyparty.run.watch import Watch
from anyparty.seeds import Seeds
from anyparty.tables import datasets, labels

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Run


def execute(run: Run, data_dir: Path | None) -> dict[str, Any]:
    """Train and score one run; return its record.

    The federation is made as a user would make it: a table for each party, without the rows that it lacks.

    Raises:
        TableError: the data set is not there (the sentence says where to get it).
        AnypartyError: the run failed.
    """
    torch.set_num_threads(1)  # runs are parallel, one thread each
    rows = rows_of(run, data_dir)
    there = rows.draw_train(run.missing)
    began, began_cpu = time.perf_counter(), time.process_time()
    model = train(run, rows, there)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    scores = {}
    for mechanism in run.tests:
        seen = rows.draw_test(mechanism)
        scores[mechanism] = scored(model, rows, seen).to_json() | {"missing": seen.rate}
    return {
        "run": vars(run) | {"key": run.key},
        "scores": scores,
        "missing": there.rate,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "epochs": len(model.history),
        "best_epoch": model.best_epoch + 1,
        "bytes_sent": sum(tally.bytes_sent for tally in model.ledger.flows.values()),
        "data": rows.data.note,
        "versions": versions(),
    }


def rows_of(run: Run, data_dir: Path | None) -> Rows:
    """Return a run's rows.

    Raises:
        TableError: the data set is not there.
    """
    seeds = Seeds(run.seed)
    data = datasets.load(run.dataset, data_dir=data_dir, progress=False).split(seeds)
    return Rows(data, run.parties, run.settings, seeds)


def train(run: Run, rows: Rows, there: Drawn, watch: Watch | None = None) -> Model:
    """Train a run's model on the blocks and labels that are ``there``.

    Raises:
        AnypartyError: the run failed.
    """
    settings, at = run.settings, run.settings.get("labels_at", LABELS)
    frames = tables(*rows.train, there.observed, labeled=there.labeled, at=at)
    made = federation(frames, scale=settings["scale"], at=at, task=rows.data.task)
    return made.train(
        settings["name"],
        parameters={"embedding": settings["embedding"], **settings["parameters"]},
        encoder=Encoder.model_validate(settings["encoder"]).make(),
        optimizer=Optimizer(**settings["optimizer"]),
        seed=run.seed,
        watch=watch,
        **({"validation": 0.0, "test": 0.0, "patience": None, "keep": "last", "score_training": 0} | settings["train"]),
        **{key: settings[key] for key in ("epochs", "batch_size", "balance")},
    )


def scored(model: Model, rows: Rows, seen: Drawn) -> metrics.Evaluation:
    """Score every test row, also those whose label the active party could not know, for it lacks them.

    Rows of a class that training never saw count as wrong.
    """
    blocks, y = rows.test
    given = tables(blocks, y, seen.observed)
    answers = model.predict({name: frame for name, frame in given.items() if name in model.roster.names})
    assert answers.ids is not None
    answers = answers.take(sorted(range(len(answers)), key=answers.ids.__getitem__))  # as records have drawn guesses
    assert answers.ids is not None
    at = [int(name) for name in answers.ids]
    label = pl.Series("label", y[at])
    unseen = labels.unseen(label, model.task)
    task = replace(model.task, classes=(*model.task.classes, *unseen))
    numbers, _ = labels.encode(label, task, LABELS)
    observed = torch.from_numpy(seen.observed[at])
    return metrics.evaluate(answers, numbers, None, observed, Seeds(model.seed), unseen=unseen)
