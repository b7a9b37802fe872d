"""Possible mistakes in labels and in tables to predict are reported once, in Python and on the command line alike."""

from __future__ import annotations

import io
import warnings

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from anyparty import Federation
from anyparty.cli.app import app
from anyparty.errors import AnypartyWarning
from anyparty.tables.summary import label_remark

N = 120
IDS = [f"c{row:03d}" for row in range(N)]
X = np.random.default_rng(0).normal(size=(N, 3))
LABELS = X[:, 0] + 0.1 * X[:, 1]


def tables(y=LABELS, **shop):
    bank = pl.DataFrame({"id": IDS, "a": X[:, 0], "b": X[:, 1], "y": y})
    return {"bank": bank, "shop": pl.DataFrame({"id": IDS, "c": X[:, 2], "d": X[:, 1]} | shop)}


def with_outlier(value, n=1):
    return [value] * n + LABELS[n:].tolist()


def heard(call):
    """Return the warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in found if issubclass(each.category, AnypartyWarning)]


def shown(table):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(table)
    return " ".join(console.export_text().split())


FAR = "1 label far from all others (1e+06): if they stand for missing values, leave them empty"


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (pl.Series(with_outlier(1e6)), "auto", FAR),
        (pl.Series(with_outlier(1e6)).cast(pl.String), "auto", FAR),
        (pl.Series(with_outlier(-999.0, 4)), "auto", "4 labels far from all others (-999)"),
        (pl.Series([*range(1, 101), 99999]), "auto", "1 label far from all others (99999)"),
        (pl.Series([1, 2, 3, 4, 5] * 20 + [999]), "regression", "1 label far from all others (999)"),
        (pl.Series([0, 1] * 50 + [999]), "auto", ""),
        (pl.Series(["a", "b"] * 50), "auto", ""),
        (pl.Series([True, False] * 50), "auto", ""),
        (pl.Series(LABELS), "auto", ""),
        (pl.Series(with_outlier(1e6)), "classification", ""),
    ],
)
def test_an_outlier_among_labels_is_described(labels, kind, said):
    found = label_remark(labels, kind)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.filterwarnings("default")
def test_python_and_the_command_line_report_an_outlier_among_labels(tmp_path):
    federation = Federation.from_tables(tables(with_outlier(1e6)), label="y")
    assert FAR in shown(federation.remarks)
    assert any(FAR in note for note in federation.overlap.notes)
    assert [FAR in each for each in heard(lambda: federation.train(epochs=1))].count(True) == 1
    for name, frame in tables(with_outlier(1e6)).items():
        frame.write_csv(tmp_path / f"{name}.csv")
    files = [str(tmp_path / "bank.csv"), str(tmp_path / "shop.csv")]
    aligned = CliRunner().invoke(app, ["align", *files, "--label", "y", "--id", "id"])
    assert FAR in " ".join(aligned.output.split())
    trained = CliRunner().invoke(
        app, ["train", *files, "--label", "y", "--id", "id", "--set", "train.epochs=1", "--run", str(tmp_path / "run")]
    )
    assert trained.exit_code == 0, trained.output
    assert " ".join(trained.output.split()).count("1 label far from all others") == 1


def test_training_warns_about_remarks_on_columns():
    ages = [20.0 + row % 50 for row in range(N - 1)]
    federation = Federation.from_tables(tables(c=[*ages, 9999.0]), label="y")
    found = heard(lambda: federation.train(epochs=1))
    assert (
        sum("party 'shop', data frame: column 'c' has 1 cell far from all others (9999)" in each for each in found) == 1
    )
    assert heard(lambda: Federation.from_tables(tables(), label="y").train(epochs=1)) == []


@pytest.fixture(scope="module")
def model():
    return Federation.from_tables(tables(), label="y").train("laser", epochs=2, seed=1)


def new(**shop):
    return {name: frame.with_columns(**shop) if name == "shop" else frame for name, frame in tables().items()}


EMPTY = pl.lit(None, dtype=pl.Float64)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"c": EMPTY}, "empty than in training: column 'c' in 120 of 120 rows (in training in 0.0%): the model uses"),
        ({"c": pl.when(pl.col("id") > "c040").then(None).otherwise(pl.col("c"))},
         "more cells are empty than in training: column 'c' in 79 of 120 rows (in training in 0.0%)"),
        ({"c": EMPTY, "d": EMPTY}, "120 of 120 rows are empty except for the id"),
        ({"c": pl.when(pl.col("id") == "c007").then(1e6).otherwise(pl.col("c"))},
         "1 of 120 numbers of column 'c' lie more than 50 standard deviations from their mean in training"),
        ({"c": pl.col("c") * 1000}, "most numbers of column 'c' lie more than 10 standard deviations"),
    ],
)  # fmt: skip
def test_cells_that_differ_from_training_cause_a_warning(model, changes, said):
    for call in (model.predict, model.evaluate, model.aligned):
        remarks = heard(lambda call=call: call(new(**changes)))
        found = [each for each in remarks if "was trained on" not in each]
        assert len(found) == 1, found
        assert said in found[0]
        assert "party 'shop'" in found[0]


def test_usual_tables_cause_no_remark(model):
    assert heard(lambda: model.predict(tables())) == []
    few = {name: frame.head(2) for name, frame in new(c=EMPTY).items()}
    assert heard(lambda: model.predict(few)) == [], "in one or two rows, an empty column is usual"
