"""One run of a suite: data set to blocks, blocks to a model, the model scored under every test mechanism."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from anyparty.bench.parties import blocks_of, draw, federation, tables
from anyparty.config import Encoder, OptimizerSettings
from anyparty.run.record import versions
from anyparty.seeds import Seeds
from anyparty.tables import datasets

if TYPE_CHECKING:
    from anyparty.bench.missing.suite import Run


def execute(run: Run, data_dir: Path | None) -> dict[str, Any]:
    """Train and score one run; return its record.

    The federation is made as a user would make it: a table for each party, without the rows that it lacks.

    Raises:
        TableError: the data set is not there (the sentence says where to get it).
        AnypartyError: the run failed.
    """
    torch.set_num_threads(1)  # runs are parallel, one thread each
    seeds, settings = Seeds(run.seed), run.settings
    data = datasets.load(run.dataset, data_dir=data_dir, progress=False).split(seeds)
    assert data.X_test is not None
    assert data.y_test is not None
    train, test = (blocks_of(X, settings["cut"], run.parties) for X in (data.X_train, data.X_test))
    there = draw(run.missing, seeds, "train", train)
    made = federation(tables(train, data.y_train, there.observed), scale=settings["scale"])
    began, began_cpu = time.perf_counter(), time.process_time()
    model = made.train(
        settings["name"],
        parameters={**settings["parameters"], "embedding": settings["embedding"]},
        encoder=Encoder.model_validate(settings["encoder"]).make(),
        optimizer=OptimizerSettings.model_validate(settings["optimizer"]).make(),
        seed=run.seed,
        **({"validation": 0.0, "test": 0.0, "patience": None, "keep": "last"} | settings["train"]),
        **{key: settings[key] for key in ("epochs", "batch_size", "balance")},
    )
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    scores = {}
    for mechanism in run.tests:
        seen = draw(mechanism, seeds, "test", test)
        scores[mechanism] = model.evaluate(tables(test, data.y_test, seen.observed)).to_json() | {"missing": seen.rate}
    return {
        "run": vars(run) | {"key": run.key},
        "scores": scores,
        "missing": there.rate,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "epochs": len(model.history),
        "best_epoch": model.best_epoch + 1,
        "bytes_sent": sum(tally.bytes_sent for tally in model.ledger.flows.values()),
        "data": data.note,
        "versions": versions(),
    }
