"""A spreadsheet must not execute text in a CSV of anyparty as a formula."""

import csv
import warnings
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from anyparty import Federation
from anyparty.core import display
from anyparty.core.predictions import Predictions
from anyparty.core.types import Task
from anyparty.deployment import coordinator
from anyparty.errors import AnypartyWarning, ConfigError
from tests.conftest import Call, write_tables

FORMULAS = [
    "=cmd|' /C calc'!A1",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "=",
    "＝1+1",
    "-5%",
    "-1,5",
    '="a"',
]
PLAIN = ["-5", "+3.2e4", "-.5", "+49", "-7.", "c1", "a=b", "", " =1", "'=1", "5-1"]
EVIL, WORST = "=HYPERLINK(A1)", "@x"


def cells_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def evil_tables(folder: Path, label: str = "default") -> None:
    """Create the tables of ``write_tables``, with a formula as an id, a class, a level and a column name."""
    write_tables(folder)
    shop = pl.read_csv(folder / "shop.csv").rename({"visits": WORST})
    shop = shop.with_columns(pl.col("customer").replace({"c119": EVIL}), pl.col("town").replace({"Ulm": "+Ulm"}))
    shop.write_csv(folder / "shop.csv")
    bank = pl.read_csv(folder / "bank.csv").with_columns(pl.col("default").replace({"no": "-no"}))
    bank.write_csv(folder / "bank.csv")


def no_formulas(path: Path) -> list[list[str]]:
    found = cells_of(path)
    wrong = [cell for row in found for cell in row if cell and cell[0] in "=+-@\t\r\n" and not number(cell)]
    assert not wrong
    return found


def number(text: str) -> bool:
    try:
        return bool(float(text) or True)
    except ValueError:
        return False


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum([*FORMULAS, *PLAIN])])
def test_formulas_get_a_quote_and_nothing_else_does(tmp_path: Path, dtype) -> None:
    texts = [*FORMULAS, *PLAIN, None]
    frame = pl.DataFrame(
        {"id": pl.Series(texts, dtype=dtype), "x": pl.Series([-1.5] * len(texts)), "n": [-1] * len(texts)}
    )
    safe, count = display.escape_formulas(frame)
    assert safe["id"].to_list() == [*(f"'{text}" for text in FORMULAS), *PLAIN, None]
    assert count == len(FORMULAS)
    assert safe.select("x", "n").equals(frame.select("x", "n"))
    with pytest.warns(AnypartyWarning, match=rf"answers.csv: {len(FORMULAS)} cells begin like a formula"):
        display.write_frame(frame, tmp_path / "answers.csv")
    assert cells_of(tmp_path / "answers.csv")[1:-1] == [[text, "-1.5", "-1"] for text in safe["id"].to_list()[:-1]]


def test_column_names_are_escaped_and_stay_distinct() -> None:
    frame = pl.DataFrame({"=a": [1], "'=a": [2], "-5": [3], "b": [4]})
    safe, count = display.escape_formulas(frame)
    assert safe.columns == ["''=a", "'=a", "-5", "b"]
    assert count == 1


def test_nothing_is_said_if_nothing_is_escaped(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": ["-5", "c1"], "x": [-1.0, 2.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.write_frame(frame, tmp_path / "a.csv")
    assert pl.read_csv(tmp_path / "a.csv", infer_schema=False)["id"].to_list() == ["-5", "c1"]


def test_parquet_and_raw_csv_keep_every_cell(tmp_path: Path) -> None:
    frame = pl.DataFrame({"=id": FORMULAS})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.write_frame(frame, tmp_path / "a.parquet")
        display.write_frame(frame, tmp_path / "a.csv", raw_csv=True)
    assert pl.read_parquet(tmp_path / "a.parquet").equals(frame)
    assert cells_of(tmp_path / "a.csv") == [["=id"], *([text] for text in FORMULAS)]


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a.xlsx: name a file that ends in \.parquet or \.csv"):
        display.write_frame(pl.DataFrame({"id": [1]}), tmp_path / "a.xlsx")


def answers() -> Predictions:
    return Predictions(
        task=Task(kind="classification", classes=("=no", "yes")), blocks=("bank",),
        id_columns=pl.DataFrame({"id": ["=1+1", "c2"]}),
        scores=torch.tensor([[0.9, 0.1], [0.2, 0.8]]), took_part=torch.ones(2, 1, dtype=torch.bool),
        asked=torch.ones(1, dtype=torch.bool),
    )  # fmt: skip


def test_predictions_write_themselves(tmp_path: Path) -> None:
    with pytest.warns(AnypartyWarning, match="2 cells begin"):
        answers().write(tmp_path / "a.csv")
    assert cells_of(tmp_path / "a.csv")[1][:2] == ["'=1+1", "'=no"]
    answers().write(tmp_path / "raw.csv", raw_csv=True)
    assert cells_of(tmp_path / "raw.csv")[1][:2] == ["=1+1", "=no"]


@pytest.mark.filterwarnings("default")
def test_predict_writes_no_formula(work: Path, call: Call) -> None:
    evil_tables(work)
    assert call("train", "credit.toml", "--set", "train.epochs=1", "--run", "run", "--quiet").exit_code == 0
    shown = call("predict", "run", "--out", "a.csv")
    assert shown.exit_code == 0, shown.output
    assert f"'{EVIL}" in {row[0] for row in no_formulas(work / "a.csv")}
    assert "begin like a formula" in shown.stderr
    assert call("predict", "run", "--out", "raw.csv", "--raw-csv").exit_code == 0
    assert {EVIL, "-no"} <= {cell for row in cells_of(work / "raw.csv") for cell in row}
    assert call("predict", "run", "--out", "a.parquet").exit_code == 0
    assert EVIL in set(pl.read_parquet(work / "a.parquet")["id"])


@pytest.mark.filterwarnings("default")
def test_impute_and_likelihood_write_no_formula(work: Path, call: Call) -> None:
    evil_tables(work)
    how = ("--set", "train.epochs=1", "--set", "method.name=false-vfl-1")
    trained = call("train", "credit.toml", *how, "--run", "run", "--quiet")
    assert trained.exit_code == 0, trained.output
    shown = call("impute", "run", "--party", "shop", "--cells", "--out", "filled.csv")
    assert shown.exit_code == 0, shown.output
    found = no_formulas(work / "filled.csv")
    assert found[0] == ["customer", f"'{WORST}", "town"]
    assert {f"'{EVIL}", "'+Ulm"} <= {cell for row in found for cell in row}
    assert "begin like a formula" in shown.stderr
    assert call("impute", "run", "--party", "shop", "--cells", "--out", "raw.csv", "--raw-csv").exit_code == 0
    assert cells_of(work / "raw.csv")[0][1] == WORST
    assert call("likelihood", "run", "--out", "scores.csv").exit_code == 0
    assert f"'{EVIL}" in {row[0] for row in no_formulas(work / "scores.csv")}
    assert call("likelihood", "run", "--out", "raw.csv", "--raw-csv").exit_code == 0
    assert EVIL in {row[0] for row in cells_of(work / "raw.csv")}


@pytest.mark.filterwarnings("default")
def test_federate_predict_writes_no_formula(work: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    answers().frame().write_parquet(work / "kept.parquet")
    ended = SimpleNamespace(outcomes={})
    monkeypatch.setattr(coordinator, "predict", lambda *_, **__: (ended, work / "kept.parquet"))
    shown = call("federate", "predict", "house", "credit.toml", "--out", "a.csv")
    assert shown.exit_code == 0, shown.output
    assert no_formulas(work / "a.csv")[1][:2] == ["'=1+1", "'=no"]
    assert call("federate", "predict", "house", "credit.toml", "--out", "raw.csv", "--raw-csv").exit_code == 0
    assert cells_of(work / "raw.csv")[1][:2] == ["=1+1", "=no"]


@pytest.mark.parametrize("out", [[], ["--out", "a.parquet"]])
@pytest.mark.parametrize("command", ["predict", "likelihood", "federate predict"])
def test_raw_csv_without_a_csv_is_refused(run: Path, work: Path, call: Call, command: str, out: list[str]) -> None:
    where = ["house", "credit.toml"] if " " in command else [run]
    refused = call(*command.split(), *where, *out, "--raw-csv")
    assert refused.exit_code == 2
    assert "--raw-csv only applies to a .csv file" in refused.stderr


def test_escaped_ids_are_those_of_the_frame(work: Path) -> None:
    """Only the file is escaped; in Python, ids and classes are those of the tables."""
    evil_tables(work)
    federation = Federation.from_config("credit.toml")
    assert EVIL in federation.tables["shop"].ids.to_list()
