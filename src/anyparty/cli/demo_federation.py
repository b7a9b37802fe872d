"""The demo of a federation: four organisations in separate processes on one machine, with mutual TLS, on real data.

The columns of the data set are split into four parties' tables.  Each table lacks a quarter of the rows, and has them
in an order of its own.  Rows are aligned privately, then LASER-VFL trains and predicts over NVIDIA FLARE.  Finally, one
process repeats the run from the same tables, alignment and secrets, and the weights are compared bit for bit.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import tomli_w
import torch
from rich.console import Console
from rich.text import Text

from anyparty import config as settings
from anyparty.artifacts.model_files import WEIGHTS
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.site.alignment_cache import ALIGNMENT
from anyparty.deployment.site.policy import SECRET
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import ConfigError, RunError
from anyparty.tables.partition import cut
from anyparty.transport import memory

NAMES, LABEL = ("bank", "insurer", "phone", "shop"), "label"
ABSENT = 0.25
ROWS_SEEN = 72_000  # the number of rows times the number of epochs, for a demo of about a minute


@dataclass(frozen=True, kw_only=True)
class FederationDemoResult:
    """The results of the demo of a federation.

    Attributes:
        folder: the folder of all files.
        accuracy: accuracy on held-out rows, each predicted with all parties that have the row.
        most_frequent: share of the most frequent class among all labels, for comparison with ``accuracy``.
        answers: the file of predictions.
        equal: for each party, whether its weights equal those of the run in one process, bit for bit.
    """

    folder: Path
    accuracy: float
    most_frequent: float
    answers: Path
    equal: dict[str, bool]


def run(
    folder: Path | str, *, dataset: str = "credit", data_dir: Path | None = None, epochs: int | None = None,
    console: Console | None = None,
) -> FederationDemoResult:  # fmt: skip
    """Train and predict with four parties in separate processes, and compare the weights with a run in one process.

    Args:
        folder: a new or empty folder.
        dataset: name of the data set.
        data_dir: folder of data sets.
        epochs: number of epochs; by default 3 to 12, with more epochs for smaller data sets.
        console: where to print; by default nowhere.

    Raises:
        ConfigError: the folder is not empty, FLARE is not installed, or the data set has no classes.
        TableError: the data set is not found; the message says where to get it.
        RunError: the federation did not start, or a party's run ended with an error.
    """
    folder, log = Path(folder).expanduser(), (console or Console(quiet=True)).print
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a new folder")
    path, federation = write(folder, dataset, data_dir, epochs), folder / "house"
    log(Text(f"{dataset}: four parties' tables, each without a quarter of its rows, are in {folder}"), soft_wrap=True)
    coordinator.init(path, federation, port=_free_port(), site={"threads": 1})
    log("start: one process for each party, connected by mutual TLS")
    with _started(federation):
        log("train: rows are aligned privately, then LASER-VFL trains")
        trained = coordinator.train(federation, path)
        log("predict: all rows of the bank")
        _, answers = coordinator.predict(federation, path)
    if answers is None:
        raise RunError(f"the bank has no predictions; see {federation}")
    log("compare: one process repeats the run from the same tables, alignment and secrets")
    result = trained.outcomes[NAMES[0]]["result"]
    return FederationDemoResult(
        folder=folder, accuracy=result["evaluation"]["overall"]["accuracy"], answers=answers,
        most_frequent=most_frequent_share(folder / NAMES[0] / "table.csv"),
        equal=weights_equal_one_process(federation, path, folder / "one-process"),
    )  # fmt: skip


def write(folder: Path, dataset: str, data_dir: Path | None, epochs: int | None) -> Path:
    """Write each party's table and the settings; return the path of the settings file."""
    data = datasets.load(dataset, data_dir=data_dir).split(Seeds(0))
    if data.task != "classification":
        raise ConfigError(f"data set {dataset!r} has numbers as labels, but the demo predicts classes; name another, "
                          f"such as credit or breast-cancer")  # fmt: skip
    X, y = np.asarray(data.X_train, np.float32).reshape(len(data.y_train), -1), data.y_train
    ids, draw = pl.Series("id", [f"person {n:06d}" for n in range(len(y))]), np.random.default_rng(0)
    parties = {}
    for name, block in zip(NAMES, cut(X, "columns", len(NAMES)), strict=True):
        table = pl.from_numpy(block, schema=[f"{name}_{c}" for c in range(block.shape[1])]).insert_column(0, ids)
        if name == NAMES[0]:
            table = table.with_columns(pl.Series(LABEL, y))
        rows = draw.permutation(len(y))[: round(len(y) * (1 - ABSENT))]
        (folder / name).mkdir(parents=True)
        table[rows].write_csv(folder / name / "table.csv")
        parties[name] = {"table": f"{name}/table.csv"}
    toml = {
        "federation": {"label": LABEL, "active": NAMES[0]}, "parties": parties,
        "method": {"name": "laser", "embedding": 16},
        "optimizer": {"lr": 0.003}, "train": training_settings(len(y), epochs),
    }  # fmt: skip
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(toml), encoding="utf-8")
    return path


def training_settings(rows: int, epochs: int | None = None) -> dict[str, int]:
    """Return the number of epochs and the batch size for a table of ``rows`` rows.

    A small table needs small batches and more epochs. If ``epochs`` is given, it replaces the number of epochs.

    >>> training_settings(24_000), training_settings(455)
    ({'epochs': 3, 'batch_size': 512}, {'epochs': 12, 'batch_size': 16})
    """
    enough = min(max(ROWS_SEEN // rows, 3), 12)
    return {"epochs": epochs or enough, "batch_size": min(max(rows // 46, 16), 512)}


def most_frequent_share(table: Path) -> float:
    """Return the share of the most frequent class among a table's labels."""
    labels = pl.read_csv(table)[LABEL].drop_nulls()
    return float(labels.value_counts()["count"].to_numpy().max() / len(labels))


def weights_equal_one_process(federation: Path, config: Path, folder: Path) -> dict[str, bool]:
    """Repeat a federation's last run in this process; return, for each party, whether both runs give equal weights."""
    copies = {}
    sites = {name: SiteConfig.read((federation / "kits" / name).resolve()) for name in NAMES}
    for name, site in sites.items():
        copies[name] = site.model_copy(update={"folder": folder / name})
        copies[name].folder.mkdir(parents=True)
        for file in (ALIGNMENT, SECRET):
            (folder / name / file).write_bytes((site.folder / file).read_bytes())
    resolved, threads = settings.load(config).with_method_defaults(), torch.get_num_threads()
    torch.set_num_threads(1)  # as the parties do, because the number of threads affects rounding
    try:
        memory.play({name: partial(train_at_site, site, resolved) for name, site in copies.items()})
    finally:
        torch.set_num_threads(threads)
    return {
        name: (folder / name / "parties" / name / WEIGHTS).read_bytes()
        == (site.folder / "parties" / name / WEIGHTS).read_bytes()
        for name, site in sites.items()
    }


@contextmanager
def _started(federation: Path) -> Iterator[None]:
    try:
        flare.start(federation, 240.0)  # time-out in seconds, long because the machine may be busy
        yield
    finally:
        flare.stop(federation)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
