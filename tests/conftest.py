"""Fixtures: CSV files of two parties with gaps, and the command line, called in this process."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, settings
from typer.testing import CliRunner

from anyparty.api.federation import Federation
from anyparty.artifacts.record import place_of
from anyparty.cli.app import app
from tests.sentences.snapshots import Sentences

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # also for background jobs of a shell and their child processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tensors are tiny: several threads would only wait for each other
# no deadline, because machines are noisy; the same examples on every run
settings.register_profile("no deadline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no deadline")

SETTINGS = """
[federation]
id = "customer"
label = "default"

[parties.bank]
table = "bank.csv"

[parties.shop]
table = "shop.csv"

[method]
name = "laser"

[encoder]
hidden = [8]

[train]
epochs = 3
seed = 1
"""

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Seed torch, so that a test draws the same numbers whichever tests ran before it."""
    torch.manual_seed(0)


def write_tables(folder: Path, rows: int = 120) -> None:
    """Write bank.csv without the last twenty rows and shop.csv without the first thirty; the label depends on both."""
    random = np.random.default_rng(0)
    income, visits = random.normal(size=(2, rows))
    label = np.where(income + visits + random.normal(scale=0.3, size=rows) > 0, "yes", "no")
    ids = [f"c{i:03d}" for i in range(rows)]
    bank = pl.DataFrame({"customer": ids, "income": income, "age": random.integers(18, 90, rows), "default": label})
    shop = pl.DataFrame({"customer": ids, "visits": visits, "town": random.choice(["Ulm", "Bonn"], rows)})
    folder.mkdir(parents=True, exist_ok=True)
    bank[: rows - 20].write_csv(folder / "bank.csv")
    shop[30:].sample(fraction=1, shuffle=True, seed=0).write_csv(folder / "shop.csv")
    (folder / "credit.toml").write_text(SETTINGS, encoding="utf-8")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with two parties' tables and credit.toml, and make it the current folder."""
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder as in ``work`` with a finished run in runs/credit-laser-seed1; tests must not change it."""
    folder = tmp_path_factory.mktemp("trained")
    write_tables(folder)
    result = CliRunner().invoke(app, ["train", str(folder / "credit.toml"), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def run(trained: Path) -> Path:
    """Return the folder of a finished run."""
    return trained / "runs" / "credit-laser-seed1"


def adopt(folder: Path) -> Path:
    """Let the record of a copied run say that the run was trained in this folder, so that it may name its tables."""
    path = folder / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"place": place_of(folder)}))
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that calls the command line and returns the exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-sentences", action="store_true", help="write the files of tests/sentences again")


@pytest.fixture
def sentences(request: pytest.FixtureRequest, tmp_path: Path) -> Sentences:
    """Compare the sentences of errors with the files in tests/sentences."""
    places = {str(tmp_path): "FOLDER", str(Path(__file__).parents[1]): "REPOSITORY"}
    return Sentences(places, renew=request.config.getoption("--renew-sentences"))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Create a federation of two tables, each in a CSV file."""
    from tests.api.test_train_tables import tables  # noqa: PLC0415 - after pytest has rewritten its assertions

    files = {}
    for name, frame in tables().items():
        files[name] = tmp_path / f"{name}.csv"
        frame.write_csv(files[name])
    return Federation.from_tables(files, label="bad")
