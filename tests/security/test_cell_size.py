"""An error rejects a text cell, an id or a column name beyond a limit, before it is used or quoted."""

from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from anyparty import Federation, Model
from anyparty.api.runs import evaluate_run, predict_run
from anyparty.config import FederationSettings
from anyparty.errors import ConfigError, TableError
from anyparty.tables.cells import MAX_BYTES
from anyparty.tables.table import Table, read_table
from tests.conftest import Call

LONG = "x" * (MAX_BYTES + 1)
KINDS = ["csv", "csv.gz", "parquet", "polars", "lazy", "pandas", "categorical", "enum"]


def source(kind: str, folder: Path, frame: pl.DataFrame):
    path = folder / f"bank.{kind}"
    if kind.startswith("csv"):
        frame.write_csv(path, compression="gzip" if kind == "csv.gz" else "uncompressed", check_extension=False)
    elif kind == "parquet":
        frame.write_parquet(path)
    else:
        levels = [pl.col(c).cast(pl.Enum(frame[c].unique())) for c in frame.columns]
        return {
            "polars": frame, "lazy": frame.lazy(), "pandas": pd.DataFrame(frame.to_dict(as_series=False)),
            "categorical": frame.with_columns(pl.all().cast(pl.Categorical)), "enum": frame.with_columns(levels),
        }[kind]  # fmt: skip
    return path


def read(given, **more) -> Table:
    return read_table(given, party="bank", id="id", label="y", **more)


def frame_with(column: str, text: str) -> pl.DataFrame:
    cells = {"id": ["a", "b", "c"], "y": ["no", "yes", "no"], "town": ["Ulm", "Bonn", "Ulm"]}
    cells[column][1] = text
    return pl.DataFrame(cells)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_cell_is_named_by_file_row_and_column(tmp_path: Path, kind: str) -> None:
    for column in ("id", "y", "town"):
        given = source(kind, tmp_path, frame_with(column, LONG))
        with pytest.raises(TableError) as caught:
            read(given)
        file = f"bank.{kind}" if isinstance(given, Path) else "data frame"
        assert str(caught.value) == (
            f"party 'bank', {file}: the cell in row 2 below the column names, column {column!r}, has 65,537 bytes; the "
            "limit for a cell is 65,536; shorten it, leave the column out, or raise federation.max_cell_bytes"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_at_the_limit_is_read(tmp_path: Path, kind: str) -> None:
    for column in ("id", "y", "town"):
        given = source(kind, tmp_path, frame_with(column, LONG[:-1]))
        assert len(read(given)) == 3
        assert len(read(source(kind, tmp_path, frame_with(column, LONG)), max_cell_bytes=MAX_BYTES + 1)) == 3


def test_bytes_are_counted_not_letters() -> None:
    with pytest.raises(TableError, match="has 12 bytes; the limit for a cell is 10"):
        read(frame_with("town", "äöüÄÖÜ"), max_cell_bytes=10)


def test_other_long_cells_are_counted() -> None:
    frame = frame_with("town", LONG).with_columns(pl.lit(LONG).alias("town"))
    with pytest.raises(TableError, match=r"row 1 below .* \(as do 2 other rows\); the limit for a cell is 65,536"):
        read(frame)


def test_a_long_number_in_a_csv_is_a_cell_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"id,y,x\na,no,1\nb,yes,{'9' * 70_000}\n", encoding="utf-8")
    with pytest.raises(TableError, match="row 2 below the column names, column 'x', has 70,000 bytes"):
        read(tmp_path / "t.csv")


def test_repeated_long_ids_are_not_quoted() -> None:
    with pytest.raises(TableError) as caught:
        read(frame_with("id", LONG).with_columns(pl.lit(LONG).alias("id")))
    assert len(str(caught.value)) < 400


def test_a_long_column_name_is_refused_and_not_quoted(tmp_path: Path) -> None:
    frame = frame_with("town", "Ulm").rename({"town": LONG})
    frame.write_csv(tmp_path / "t.csv")
    for given in (frame, tmp_path / "t.csv"):
        with pytest.raises(TableError, match="the name of column 3 has 65,537 bytes; the limit for a cell is 65,536"):
            read(given)


def test_a_column_name_that_looks_like_a_pattern_is_no_pattern() -> None:
    frame = frame_with("town", LONG).rename({"town": "^.*$"})
    with pytest.raises(TableError, match=r"column .\^\.\*\$., has 65,537 bytes"):
        read(frame)


def test_columns_that_are_not_read_may_be_long() -> None:
    frame = frame_with("town", LONG)
    assert len(read(frame, drop=["town"])) == 3
    assert len(read(frame, expect={})) == 3
    unused = frame.with_columns(pl.col("town").cast(pl.Categorical))[::2]
    assert len(read(unused)) == 2


@pytest.mark.filterwarnings("default")
def test_the_limit_is_a_setting(work: Path, call: Call) -> None:
    """Training, prediction and evaluation apply the limit in the settings of the training."""
    bank = pl.read_csv("bank.csv").with_columns(town=pl.Series(["Ulm", LONG] * 50))
    bank.write_csv("bank.csv")
    how = ("--set", "train.epochs=1", "--run", "run", "--quiet")
    refused = call("train", "credit.toml", *how)
    assert refused.exit_code == 2
    assert "bank.csv: the cell in row 2 below the column names, column 'town', has 65,537 bytes" in refused.stderr
    more = ("--set", f"federation.max_cell_bytes={MAX_BYTES + 1}")
    assert call("train", "credit.toml", *how, *more).exit_code == 0
    assert predict_run("run").answered.any()
    tables = {"bank": work / "bank.csv", "shop": work / "shop.csv"}
    assert evaluate_run("run", tables).overall
    assert Model.load("run").members["bank"].max_cell_bytes == MAX_BYTES + 1
    bank.with_columns(town=pl.lit(LONG + "xx")).write_csv("bank.csv")
    with pytest.raises(TableError, match=r"has 65,539 bytes .*; the limit for a cell is 65,537"):
        predict_run("run", tables)


def test_the_limit_is_an_argument_in_python() -> None:
    tables = {"bank": frame_with("town", LONG), "shop": pl.DataFrame({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0]})}
    with pytest.raises(TableError, match="column 'town', has 65,537 bytes"):
        Federation.from_tables(tables, label="y")
    assert Federation.from_tables(tables, label="y", max_cell_bytes=10**6).roster.active == "bank"


@pytest.mark.parametrize("wrong", [0, -1, True, "many"])
def test_the_limit_is_a_whole_number_above_zero(wrong) -> None:
    with pytest.raises(ConfigError, match="max_cell_bytes"):
        FederationSettings.of({"max_cell_bytes": wrong})
