"""One run of a suite: data set to blocks, blocks to a model, the model scored under every test mechanism."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.bench.suite import Run
from anyparty.blocks.missing import MCAR, Drawn, Missing, missing
from anyparty.config import Config, Encoder, OptimizerSettings
from anyparty.run.federation import Federation
from anyparty.run.record import versions
from anyparty.seeds import Seeds
from anyparty.tables import datasets
from anyparty.tables.partition import cut

LABELS = "server"  # holds every row's label and no columns: a row's label does not go missing with a block


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


def blocks_of(X: NDArray[Any], how: str, parties: int) -> list[NDArray[Any]]:
    """Cut rows into the parties' blocks, flat: [n, ...] -> K times [n, d_k]; images are scaled to [0, 1]."""
    if X.dtype == np.uint8:
        X = X.astype(np.float32) / 255
    return [np.ascontiguousarray(block.reshape(len(block), -1)) for block in cut(X, how, parties)]


def mechanism_of(text: str) -> Missing:
    """Return the mechanism that a suite names: a number is MCAR's p, ``beta:2,2`` has its parameters in order.

    >>> mechanism_of("0.1"), mechanism_of("beta")
    (MCAR(p=0.1), BetaMCAR(a=2.0, b=2.0))
    """
    try:
        return MCAR(p=float(text))
    except ValueError:
        return missing(text)


def draw(mechanism: str, seeds: Seeds, name: str, blocks: Sequence[NDArray[Any]]) -> Drawn:
    """Return who observes which row: the same for every method of a seed."""
    how = mechanism_of(mechanism)
    return how.draw(seeds, f"{name} {mechanism}", len(blocks[0]), len(blocks), blocks)


def tables(blocks: Sequence[NDArray[Any]], y: NDArray[Any], observed: NDArray[np.bool_]) -> dict[str, pl.DataFrame]:
    """Return each party's table of the rows that it observes, and the labels' own."""
    ids = np.char.zfill(np.arange(len(y)).astype(str), 7)
    made = {}
    for k, block in enumerate(blocks):
        rows = observed[:, k]
        columns = pl.from_numpy(block[rows], schema=[f"x{c}" for c in range(block.shape[1])])
        made[f"party{k + 1}"] = columns.insert_column(0, pl.Series("id", ids[rows]))
    return made | {LABELS: pl.DataFrame({"id": ids, "label": y})}


def federation(frames: dict[str, pl.DataFrame], *, scale: bool) -> Federation:
    """Return the federation of these tables; the labels' own party leads."""
    parties = {name: {"scale": scale} for name in frames}
    return Federation.from_config(
        Config.of({"federation": {"label": "label", "active": LABELS}, "parties": parties}), frames
    )
