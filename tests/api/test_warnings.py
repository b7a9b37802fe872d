"""Warnings in Python: ids in two notations, classes that are not learnt, and a few others."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.core.storage import read_json, write_json
from anyparty.errors import AnypartyWarning, ConfigError, TableError
from anyparty.problem.splits import TRAIN


def tables(rows=60):
    draw = np.random.default_rng(0)
    ids, x = [f"{n:04d}" for n in range(rows)], draw.normal(size=(rows, 2))
    bank = pl.DataFrame({"id": ids, "x": x[:, 0], "y": np.where(x[:, 0] > 0, "yes", "no")})
    return {"bank": bank, "shop": pl.DataFrame({"id": ids, "w": x[:, 1]})}


def without_zeros(frame):
    return frame.with_columns(pl.col("id").cast(pl.Int64))


@pytest.fixture(scope="module")
def model():
    return Federation.from_tables(tables(), label="y").train("laser", epochs=1)


@pytest.mark.filterwarnings("ignore:the model was trained on")
def test_prediction_warns_about_ids_that_differ_in_leading_zeros(model):
    given = tables()
    other = given | {"shop": without_zeros(given["shop"])}
    for ask in (model.predict, model.evaluate):
        with pytest.warns(AnypartyWarning, match="would share 60 rows more but for leading zeros"):
            ask(other)
    assert len(model.predict({"shop": other["shop"]})) == 60, "with one table there is nothing to compare"


def test_training_warns_about_ids_that_partly_differ_in_leading_zeros():
    given = tables()
    shop = pl.concat([given["shop"][:20], without_zeros(given["shop"][20:]).with_columns(pl.col("id").cast(pl.String))])
    with pytest.warns(AnypartyWarning, match="would share 40 rows more but for leading zeros"):
        Federation.from_tables(given | {"shop": shop}, label="y").train("laser", epochs=1)


def test_a_class_without_training_rows_causes_a_warning():
    given = tables()
    federation = Federation.from_tables(given, label="y", split="random")
    held_out = np.flatnonzero(federation.split(federation.config.train) != TRAIN)
    y = given["bank"]["y"].to_list()
    y[int(held_out[0])] = "fraud"
    told = given | {"bank": given["bank"].with_columns(y=pl.Series(y))}
    with pytest.warns(AnypartyWarning, match=r"no training row is of class 'fraud', but held-out rows are \(1\)"):
        Federation.from_tables(told, label="y", split="random").train("laser", epochs=1)


@pytest.mark.parametrize("made", [pd.Categorical, lambda y: pl.Series(y).cast(pl.Categorical)])
def test_categorical_labels_are_classes(made):
    given, y = tables(), [str(n % 30) for n in range(60)]
    bank = given["bank"].with_columns(y=made(y)) if isinstance(made(y), pl.Series) else (
        given["bank"].to_pandas().assign(y=made([int(each) for each in y])))  # fmt: skip
    federation = Federation.from_tables(given | {"bank": bank}, label="y")
    assert federation.task(np.zeros(60, dtype=np.int8)).kind == "classification"
    assert len(federation.task(np.zeros(60, dtype=np.int8)).classes) == 30


@pytest.mark.parametrize(("positive", "classes"), [(False, ("true", "false")), (np.bool_(False), ("true", "false"))])
def test_the_positive_class_may_be_given_by_its_value(positive, classes):
    given = tables()
    bank = given["bank"].with_columns(y=pl.col("y") == "yes")
    found = Federation.from_tables(given | {"bank": bank}, label="y", positive=positive)
    assert found.task(np.zeros(60, dtype=np.int8)).classes == classes
    numbered = given["bank"].with_columns(y=(pl.col("y") == "yes").cast(pl.Int64))
    for zero in (0, 0.0, np.int64(0), "0"):
        found = Federation.from_tables(given | {"bank": numbered}, label="y", positive=zero)
        assert found.task(np.zeros(60, dtype=np.int8)).classes == ("1", "0")


def test_nan_is_stored_as_null_in_json(tmp_path):
    write_json(tmp_path / "record.json", {"history": [{"validation": {"auroc": float("nan")}}, {"loss": (1.0,)}]})
    text = (tmp_path / "record.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert read_json(tmp_path / "record.json") == json.loads(text)
    assert json.loads(text)["history"][0]["validation"]["auroc"] is None


def test_a_federation_without_columns_is_refused():
    labels = tables()["bank"].drop("x")
    with pytest.raises(ConfigError, match="no party holds columns: there is nothing to learn from"):
        Federation.from_tables({"bank": labels, "shop": labels.drop("y")}, label="y")


@pytest.mark.filterwarnings("ignore:.*rows are empty except for the id:anyparty.errors.AnypartyWarning")
def test_an_error_names_its_cause_before_remarks_on_the_table():
    """The error names the misspelt class first; empty rows are only a remark."""
    bank, shop = tables().values()
    x = [name for name in bank.columns if name not in {"id", "y"}]
    bank = bank.with_columns(pl.when(pl.int_range(pl.len()) > 1).then(pl.col(name)).alias(name) for name in x)
    with pytest.raises(TableError) as caught:
        Federation.from_tables({"bank": bank, "shop": shop}, label="y", positive="yess").train(epochs=1)
    assert "yess" in str(caught.value).partition(" (by the way, ")[0]
    assert str(caught.value).partition(" (by the way, ")[2].endswith("there the party counts as absent)")
