"""The commands on real data: Default of Credit Card Clients at four parties, each without a quarter of the rows.

Reads the folder ANYPARTY_DATA, where credit_default/UCI_Credit_Card.csv.gz must be.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.conftest import Call

PARTIES = ("profile", "status", "bills", "payments")
LABEL = "default.payment.next.month"
SETTINGS = """
[federation]
id = "ID"
label = "default.payment.next.month"

[parties.profile]
table = "profile.csv"
types = { SEX = "categorical", EDUCATION = "categorical", MARRIAGE = "categorical" }

[parties.status]
table = "status.csv"

[parties.bills]
table = "bills.csv"

[parties.payments]
table = "payments.csv"

[optimizer]
lr = 0.003

[train]
epochs = 2
batch_size = 512
"""

pytestmark = pytest.mark.slow


def anyparty(*words: object) -> str:
    """Run the command line in a separate process, and return its output."""
    command = [sys.executable, "-m", "anyparty", *map(str, words)]
    quick = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env=quick)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with four parties' CSV files, and a trained run in run/."""
    file = Path(os.environ.get("ANYPARTY_DATA", "")) / "credit_default" / "UCI_Credit_Card.csv.gz"
    if "ANYPARTY_DATA" not in os.environ or not file.exists():
        pytest.skip("the environment variable ANYPARTY_DATA names no folder with credit_default in it")
    folder, random = tmp_path_factory.mktemp("credit"), np.random.default_rng(0)
    whole = pl.read_csv(file, infer_schema=False)
    features = [name for name in whole.columns if name not in {"ID", LABEL}]
    blocks = {"profile": features[:5], "status": features[5:11], "bills": features[11:17], "payments": features[17:]}
    for name, columns in blocks.items():
        label = [LABEL] if name == "profile" else []
        rows = random.permutation(len(whole))[len(whole) // 4 :]
        whole[rows].select("ID", *columns, *label).write_csv(folder / f"{name}.csv")
    (folder / "credit.toml").write_text(SETTINGS, encoding="utf-8")
    shown = anyparty("train", folder / "credit.toml", "--run", folder / "run")
    assert "all 4" in shown
    assert "auroc" in shown
    return folder


def test_commands_train_and_predict_on_credit_data(credit: Path) -> None:
    assert "22,500 rows, asked: bills" in anyparty(
        "predict", credit / "run", "--table", f"bills={credit / 'bills.csv'}"
    )
    shown = anyparty("evaluate", credit / "run")
    (line,) = [line for line in shown.splitlines() if line.startswith("│ auroc")]
    assert float(line.split()[3]) > 0.7  # 0.5 is a guess


@pytest.mark.filterwarnings("ignore:.* standard deviations from their mean")  # one payment is far above all others
@pytest.mark.parametrize(
    "parties",
    [
        ("profile",),
        ("payments",),
        ("profile", "bills"),
        ("status", "payments"),
        ("status", "bills", "payments"),
        PARTIES,
    ],
    ids="-".join,
)
def test_any_set_of_parties_can_predict(credit: Path, call: Call, parties: tuple[str, ...]) -> None:
    out = credit / f"{'-'.join(parties)}.parquet"
    shown = call("predict", credit / "run", "--parties", ",".join(parties), "--out", out)
    assert shown.exit_code == 0, shown.output
    answers = pl.read_parquet(out)
    known = set().union(*(pl.read_csv(credit / f"{name}.csv", infer_schema=False)["ID"] for name in parties))
    answered = answers.filter(pl.col("prediction").is_not_null())
    assert set(answered["id"]) == known
    assert set(" ".join(answered["parties"].unique()).split()) == set(parties)
    assert answers.filter(pl.col("prediction").is_null())["reason"].null_count() == 0
