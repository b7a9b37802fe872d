"""Rows that a model was trained on, and that are scored again: a remark counts them, and no other rows."""

import warnings

import numpy as np
import polars as pl
import pytest

from anyparty import Model
from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run
from anyparty.errors import AnypartyWarning

N = 120
SETTINGS = {"epochs": 1, "seed": 3}


def tables():
    """Return tables with random labels; every tenth row has no label, and the shop lacks the first thirty rows."""
    random = np.random.default_rng(0)
    ids = [f"c{n:03d}" for n in range(N)]
    label = pl.Series("y", [None if n % 10 == 0 else ("no", "yes")[random.integers(2)] for n in range(N)])
    bank = pl.DataFrame({"id": ids, "income": random.normal(size=N), "y": label})
    return {"bank": bank, "shop": pl.DataFrame({"id": ids, "visits": random.normal(size=N)})[30:]}


def part(frames, ids):
    return {name: frame.filter(pl.col("id").is_in(list(ids))) for name, frame in frames.items()}


def counted(evaluate, *given, **settings):
    """Return the remarks of an evaluation on training rows."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", AnypartyWarning)
        evaluate(*given, **settings)
    return [str(each.message).split(";")[0] for each in heard if "trained on" in str(each.message)]


@pytest.fixture(scope="module")
def federation():
    return Federation.from_tables(tables(), label="y")


@pytest.fixture(scope="module")
def model(federation):
    return federation.train("laser", **SETTINGS)


@pytest.fixture(scope="module")
def ids(federation):
    """The ids of the labelled rows of each part of the split."""
    rows = federation.rows(seed=SETTINGS["seed"]).filter("labelled")
    return {use: rows.filter(use=use)["id"].to_list() for use in ("train", "validation", "test")}


def test_training_rows_are_counted_exactly(model, ids):
    said = [f"the model was trained on {len(ids['train'])} of the {sum(map(len, ids.values()))} scored rows"]
    assert counted(model.evaluate, tables()) == said
    assert counted(model.evaluate, {name: frame.reverse() for name, frame in tables().items()}) == said
    assert counted(model.evaluate, {"bank": tables()["bank"]}) == said
    some = part(tables(), ids["train"][:7] + ids["test"])
    assert counted(model.evaluate, some) == [f"the model was trained on 7 of the {7 + len(ids['test'])} scored rows"]


def test_no_other_row_is_counted(model, ids):
    assert not counted(model.evaluate)
    for use in ("validation", "test"):
        assert not counted(model.evaluate, part(tables(), ids[use]))
    bank = tables()["bank"]
    unlabelled = bank.filter(pl.col("y").is_null()).with_columns(y=pl.Series(["no", "yes"] * 6))
    assert not counted(model.evaluate, {"bank": unlabelled})
    measured_again = bank.with_columns(income=pl.col("income") + 1)  # other rows may have the same numbers as ids
    assert not counted(model.evaluate, {"bank": measured_again})
    assert not counted(model.evaluate, {"bank": bank.with_columns(y=bank["y"].replace({"no": "yes", "yes": "no"}))})


def test_rows_of_arrays_are_compared_by_their_numbers():
    random = np.random.default_rng(0)
    X, y = {name: random.normal(size=(N, 3)) for name in "ab"}, random.integers(2, size=N)
    federation = Federation.from_arrays(X, y)
    trained = federation.rows(seed=3)["use"].to_list().count("train")
    model = federation.train("laser", **SETTINGS)
    assert counted(model.evaluate, X, y=y) == [f"the model was trained on {trained} of the {N} scored rows"]
    assert not counted(model.evaluate, {name: x + 1 for name, x in X.items()}, y=y)


@pytest.fixture
def files(tmp_path):
    for name, frame in tables().items():
        frame.write_csv(tmp_path / f"{name}.csv")
    return {name: tmp_path / f"{name}.csv" for name in tables()}


def test_a_run_counts_its_training_rows_in_other_tables(tmp_path, files, ids):
    folder = tmp_path / "run"
    Federation.from_tables(files, label="y").train("laser", folder=folder, **SETTINGS)
    some = part(tables(), ids["train"][:7] + ids["test"])
    said = [f"the model was trained on 7 of the {7 + len(ids['test'])} scored rows"]
    assert counted(evaluate_run, folder, some) == said
    assert not counted(evaluate_run, folder, part(tables(), ids["test"] + ids["validation"]))
    assert not counted(Model.load(folder).evaluate, some), "the files of a model hold no ids"
    files["bank"].write_text(files["bank"].read_text() + "c999,0.5,yes\n")
    assert not counted(evaluate_run, folder, some), "the training rows are no longer known"


def test_a_run_of_frames_reports_the_one_table_that_it_knows(tmp_path):
    folder = tmp_path / "run"
    Federation.from_tables(tables(), label="y").train("laser", folder=folder, **SETTINGS)
    other = tables() | {"shop": tables()["shop"][:50]}
    assert counted(evaluate_run, folder, other) == [
        "the table of party 'bank' is the one that the model was trained on, so the model has seen most of its rows"
    ]
