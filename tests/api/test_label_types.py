"""Predicted labels have the type that the labels had in the active party's table."""

import math

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.errors import AnypartyWarning
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer

QUICK = {"epochs": 3, "batch_size": 16, "validation": 0.0, "patience": None, "seed": 1}
N = 60
FAST = Optimizer(lr=0.1)


def tables(label):
    x = np.random.default_rng(0).normal(size=(N, 2)) + np.arange(N)[:, None] % 2 * 6
    return {
        "a": pl.DataFrame({"id": np.arange(N), "u": x[:, 0]}).with_columns(label.alias("y")),
        "b": pl.DataFrame({"id": np.arange(N), "v": x[:, 1]}),
    }


def trained(given, **how):
    federation = Federation.from_tables(given, label="y", **how)
    return federation.train("plug", encoder=MLP(hidden=()), optimizer=FAST, parameters={"embedding": 2}, **QUICK)


TURNS = np.arange(N) % 2
CASES = {
    "int": (pl.Series(TURNS * 7, dtype=pl.Int32), [0, 7], pl.Int64, np.int64),
    "bool": (pl.Series(TURNS == 1), [False, True], pl.Boolean, np.bool_),
    "float": (pl.Series(TURNS + 0.0).set(pl.Series(np.arange(N) == 3), None), [0.0, 1.0], pl.Float64, np.float64),
    "text": (pl.Series([f"{n}" for n in TURNS]), ["0", "1"], pl.String, np.dtype("<U1")),
    "enum": (
        pl.Series([f"c{n}" for n in TURNS], dtype=pl.Enum(["c0", "c1"])),
        ["c0", "c1"],
        pl.String,
        np.dtype("<U2"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_predicted_labels_have_the_type_of_the_given_labels(name, tmp_path):
    label, values, dtype, numpy_dtype = CASES[name]
    model = trained(tables(label))
    model.save(tmp_path)
    for each in (model, Model.load(tmp_path)):
        answers = each.predict(tables(label))
        labels = answers.labels()
        assert {type(found) for found in labels} == {type(values[0])}
        assert sum(a == values[t] for a, t in zip(labels, TURNS, strict=True)) > N // 2
        assert answers.frame()["prediction"].dtype == dtype
        assert answers.to_numpy().dtype == numpy_dtype
        assert answers.to_numpy().tolist() == labels


@pytest.mark.parametrize(("name", "empty"), [("int", math.nan), ("text", None)])
def test_a_missing_prediction_is_none_or_nan(name, empty):
    label = CASES[name][0]
    given = tables(label)
    without = given["a"].with_columns(pl.lit(None, pl.Float64).alias("u"))
    with pytest.warns(AnypartyWarning, match="the party counts as absent"):
        answers = trained(given).predict({"a": without, "b": given["b"].head(1)})
    assert answers.labels()[1:] == [None] * (N - 1)
    assert answers.frame()["prediction"].dtype == CASES[name][2]
    assert repr(answers.to_numpy()[1:].tolist()) == repr([empty] * (N - 1))
    assert answers.to_numpy()[0] == answers.labels()[0]


def test_regression_predicts_floating_point_numbers():
    answers = trained(tables(pl.Series(np.arange(N) * 1.5)), task="regression").predict(tables(pl.Series(np.arange(N))))
    assert answers.to_numpy().dtype == np.float64
    assert answers.to_numpy().tolist() == answers.labels()
