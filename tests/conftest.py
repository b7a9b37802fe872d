"""Tables of two parties with gaps, as files, and the command line, called in this process."""

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
from anyparty.cli.app import app

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs, and in whatever they start
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tensors here are tiny: threads would wait for each other
# machines are noisy: no example has to be quick; and the same ones are tried each time, whatever else has changed
settings.register_profile("unhurried", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

SETTINGS = """
[federation]
id = "customer"
label = "default"

[parties.bank]
table = "bank.csv"

[parties.shop]
table = "shop.csv"

[encoder]
hidden = [8]

[train]
epochs = 3
seed = 1
"""

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """A test draws the same numbers whichever tests ran before it."""
    torch.manual_seed(0)


def write_tables(folder: Path, rows: int = 120) -> None:
    """Bank.csv has all rows but the last twenty, shop.csv all but the first thirty; the label follows both."""
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
    """A folder with two parties' tables and credit.toml, which is the current one."""
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ``work``, with a finished run in runs/credit-laser-seed1; nobody may change it."""
    folder = tmp_path_factory.mktemp("trained")
    write_tables(folder)
    result = CliRunner().invoke(app, ["train", str(folder / "credit.toml"), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def run(trained: Path) -> Path:
    """The folder of a finished run."""
    return trained / "runs" / "credit-laser-seed1"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command line with words; answers exit_code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """A federation of two tables, each in a CSV file."""
    from tests.api.test_train_tables import tables  # noqa: PLC0415 - after pytest has rewritten its assertions

    files = {}
    for name, frame in tables().items():
        files[name] = tmp_path / f"{name}.csv"
        frame.write_csv(files[name])
    return Federation.from_tables(files, label="bad")
