"""One run of a suite: the parties' tables, one training, and a score on every fold or on held-out rows.

The paper's protocol (Irureta et al., section 6): all rows of the active party train the encoders, which see no label;
a classifier is cross-validated on the embeddings of those rows.  Where a method's own answers are scored, test rows
are held out of everything.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from anyparty.config import Encoder
from anyparty.errors import ConfigError
from anyparty.experiments.parties import by_columns
from anyparty.nets.cross_validation import cross_validated
from anyparty.nets.optimizer import Optimizer
from anyparty.run.federation import Federation
from anyparty.run.model import Model
from anyparty.run.record import versions
from anyparty.seeds import Seeds
from anyparty.tables import datasets
from anyparty.tables.datasets import Dataset

if TYPE_CHECKING:
    from anyparty.experiments.one_exchange.suite import Run

Frames = dict[str, pl.DataFrame]


def execute(run: Run, data_dir: Path | None) -> dict[str, Any]:
    """Train and score one run; return its record.

    Raises:
        TableError: the data set is not there (the sentence says where to get it).
        ConfigError: it lacks a column that the suite names, or rows.
        AnypartyError: the run failed.
    """
    torch.set_num_threads(1)  # runs are parallel, one thread each
    data = datasets.load(run.dataset, data_dir=data_dir, progress=False)
    frames, test = _frames(run, data)
    began, began_cpu = time.perf_counter(), time.process_time()
    found = _columns(run, frames) if run.settings["reads"] == "columns" else _trained(run, frames, test)
    return {
        "run": vars(run) | {"key": run.key},
        **found,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "data": data.note,
        "versions": versions(),
    }


def _frames(run: Run, data: Dataset) -> tuple[Frames, Frames]:
    """Return the parties' tables, and those of rows that are held out: a seed's are the same for any aligned rows."""
    of, rng = run.settings, Seeds(run.seed).numpy("rows")
    rows = of["rows"] or run.aligned
    if rows > len(data.y_train):
        raise ConfigError(f"data set {run.dataset!r} has {len(data.y_train)} rows, the suite wants {rows}")
    drawn, test = rng.permutation(len(data.y_train)), of["test"]
    places = np.concatenate([drawn[test:rows], drawn[:test]])
    held = {"active": rows} | ({"passive": run.aligned} if run.aligned else {})
    tables, kept = by_columns(data, places, {"active": of["names"]}, held, labels="active"), rows - test
    return (
        {name: frame[:kept] for name, frame in tables.items()},
        {name: frame[kept:] for name, frame in tables.items() if len(frame) > kept},
    )


def _columns(run: Run, frames: Frames) -> dict[str, Any]:
    """Score a classifier of the active party's columns."""
    active = frames["active"]
    return _folds(run, active.drop("id", "label").to_numpy(), active["label"].to_numpy())


def _folds(run: Run, x: Any, y: Any) -> dict[str, Any]:
    of = run.settings
    found = cross_validated(x, y, classifier=of["classifier"], settings=of["classifier_settings"], scale=of["scale"],
                            metric=of["metric"], folds=of["folds"], seed=run.seed)  # fmt: skip
    return {"score": float(found.mean()), "folds": found.tolist()}


def _trained(run: Run, frames: Frames, test: Frames) -> dict[str, Any]:
    """Train; score the embeddings of the active party's rows, and answers for held-out rows, where there are any."""
    of = run.settings
    model = Federation.from_tables(frames, label="label").train(
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
        scores["score"] = _answers(run, model, test)
    if of["reads"] == "embeddings":
        scores |= _folds(run, _embeddings(model, frames["active"]), frames["active"]["label"].to_numpy())
    stages = [str(record["stage"]) for record in model.history]
    return {**scores, "epochs": {stage: stages.count(stage) for stage in stages}, "costs": model.costs}


def _answers(run: Run, model: Model, test: Frames) -> float:
    """Score the model's own answers for rows that nothing was trained on."""
    overall, metric = model.evaluate(test).overall, run.settings["metric"]
    if metric not in overall:
        raise ConfigError(f"suite {run.suite!r}: answers are scored by one of {', '.join(overall)}, not by {metric!r}")
    return float(overall[metric])


def _embeddings(model: Model, active: pl.DataFrame) -> np.ndarray[Any, Any]:
    """Return the embeddings [n, M] of the active party's rows, in the table's order."""
    rows = model.aligned({"active": active.drop("label")}).rows
    lead, state = rows["active"], model.members["active"].state
    assert lead.block is not None
    classified = getattr(model.method, "classified", None)
    if classified is None:
        raise ConfigError(
            f"{model.method.can.title} has no embeddings of the active party's own rows: score its answers"
        )
    u: np.ndarray[Any, Any] = classified(state, lead, lead.block.position.argsort()).u.cpu().numpy()
    return u
