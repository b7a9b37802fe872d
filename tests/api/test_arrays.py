"""A federation of arrays: rows first, a mask of who has which row, and no party for the labels."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from anyparty import Federation
from anyparty.api.imputation import impute, log_likelihood
from anyparty.core.display import html_of
from anyparty.core.seeds import Seeds
from anyparty.data.missingness import missing
from anyparty.errors import PredictionError, TableError
from anyparty.report.page import key_facts
from anyparty.report.recorded_runs import RunScores, find_runs

N = 60
QUICK = {"epochs": 2, "batch_size": 16, "seed": 1}


def arrays():
    """Create a table [N, 3] and images [N, 1, 4, 4] that know the label, the mask and the labels."""
    random = np.random.default_rng(0)
    y = random.integers(2, size=N)
    a = random.normal(size=(N, 3)) + 3 * y[:, None]
    b = random.normal(size=(N, 1, 4, 4)).astype(np.float32) - 3 * y[:, None, None, None]
    observed = random.random((N, 2)) > 0.3
    observed[:3] = [[False, True], [True, False], [False, False]]
    return {"a": a, "b": b}, observed, y


def image(inputs, width):
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, width))


def small(inputs, width):
    return nn.Linear(inputs, width)


def test_labels_do_not_count_as_a_party():
    X, observed, y = arrays()
    federation = Federation.from_arrays(X, y, observed=observed)
    held = observed.sum(axis=0)
    assert federation.roster.names == federation.roster.blocks == ("a", "b")
    assert repr(federation) == f"<Federation of a: {held[0]} rows, b: {held[1]} rows; 'a' leads; task: classification>"
    assert federation.overlap.held == {"a": held[0], "b": held[1]}
    assert federation.overlap.rows == federation.overlap.labelled == N
    assert not federation.overlap.notes
    np.testing.assert_array_equal(federation.observed[federation.alignment.ids.cast(pl.Int64).arg_sort()], observed)


@pytest.mark.filterwarnings("ignore:the model was trained on")
def test_images_train_and_answers_keep_the_order_of_rows():
    X, observed, y = arrays()
    federation = Federation.from_arrays(X, y, observed=observed, active="b")
    model = federation.train("laser", encoder={"a": small, "b": image}, **QUICK | {"epochs": 30})
    assert model.evaluate().overall["accuracy"] > 0.9
    found = model.predict({"a": X["a"], "b": torch.from_numpy(X["b"])})
    assert found.frame()["id"].to_list() == list(range(N))
    assert (found.to_numpy() == y).mean() > 0.9
    assert model.evaluate(X, y=y).overall["accuracy"] == pytest.approx((found.to_numpy() == y).mean())
    gaps = {name: np.where(observed[:, k].reshape(-1, *[1] * (x.ndim - 1)), x, np.nan)
            for k, (name, x) in enumerate(X.items())}  # fmt: skip
    partly = model.predict(gaps)
    assert partly.frame()["id"].to_list() == list(range(N))
    np.testing.assert_array_equal(partly.answered.numpy(), observed.any(axis=1))
    assert model.predict({"a": X["a"], "b": np.full_like(X["b"], np.nan)}).answered.all()


def test_a_mask_and_rows_of_nan_mean_the_same_missing_rows():
    X, observed, y = arrays()
    gaps = {name: torch.from_numpy(np.where(observed[:, k].reshape(-1, *[1] * (x.ndim - 1)), x, np.nan))
            for k, (name, x) in enumerate(X.items())}  # fmt: skip
    masked, holes = Federation.from_arrays(X, y, observed=observed), Federation.from_arrays(gaps, torch.from_numpy(y))
    assert {name: table.fingerprint for name, table in masked.tables.items()} == {
        name: table.fingerprint for name, table in holes.tables.items()
    }
    first, second = (each.train("laser", **QUICK).evaluate().overall for each in (masked, holes))
    assert first == second


def test_arrays_and_tables_train_the_same_weights():
    X, _, y = arrays()
    frames = {name: pl.DataFrame(x.reshape(N, -1), [f"x{c}" for c in range(x[0].size)]).with_columns(id=np.arange(N))
              for name, x in X.items()}  # fmt: skip
    frames["a"] = frames["a"].with_columns(label=pl.Series(y))
    one = Federation.from_arrays(X, y).train("laser", **QUICK)
    other = Federation.from_tables(frames, label="label").train("laser", **QUICK)
    torch.testing.assert_close(one.predict().scores, other.predict().scores, rtol=0, atol=0)


def test_ids_missing_labels_and_scaling_are_applied():
    X, observed, _ = arrays()
    names = [f"p{n:03d}" for n in range(N)][::-1]
    y = np.linspace(0, 1, N)
    y[5] = np.nan
    federation = Federation.from_arrays(X, y, observed=observed, ids=names, scale={"a": False}, task="regression")
    assert federation.overlap.labelled == N - 1
    model = federation.train("standard", **QUICK)
    assert model.members["a"].prepare.numeric.scale is None
    assert model.members["b"].prepare.numeric.scale is not None
    assert set(model.predict().ids) <= set(names)
    assert model.predict(X).frame()["id"].to_list() == list(range(N)), "arrays have no ids"


WRONG = (
    lambda X, **_: {"arrays": list(X.values())},
    lambda **_: {"arrays": {}},
    lambda X, **_: {"arrays": X | {"b": X["a"][:, 0]}},
    lambda X, **_: {"arrays": X | {"b": X["a"][:, :0]}},
    lambda X, **_: {"arrays": X | {"b": X["b"][:7]}},
    lambda X, **_: {"arrays": X | {"b": X["a"].astype(str)}},
    lambda X, **_: {"arrays": X | {"b": pl.DataFrame(X["a"])}},
    lambda y, **_: {"y": y[:, None]},
    lambda y, **_: {"y": y[:9]},
    lambda observed, **_: {"observed": observed.T},
    lambda observed, **_: {"observed": observed.astype(int)},
    lambda observed, **_: {"observed": observed & [True, False]},
    lambda **_: {"ids": range(9)},
    lambda **_: {"active": "c"},
    lambda **_: {"scale": {"c": True}},
)  # fmt: skip


def test_errors_name_the_argument_and_the_shapes(sentences):
    X, observed, y = arrays()
    changes = [change(X=X, y=y, observed=observed) for change in WRONG]
    whole = {"arrays": X, "y": y, "observed": observed}
    calls = {
        f"{n}: {next(iter(given))}": partial(Federation.from_arrays, **whole | given)
        for n, given in enumerate(changes, 1)
    }
    sentences.check("arrays", calls)


def test_a_party_with_only_labels_is_not_counted_as_a_block():
    X, _, y = arrays()
    ids = pl.Series("id", np.arange(N))
    frames = {name: pl.DataFrame(x.reshape(N, -1)).insert_column(0, ids) for name, x in X.items()}
    federation = Federation.from_tables({**frames, "labels": pl.DataFrame([ids, pl.Series("y", y)])}, label="y")
    assert repr(federation) == "<Federation of a: 60 rows, b: 60 rows; labels at 'labels'; task: classification>"


def test_labels_are_an_error_beside_tables():
    X, _, y = arrays()
    model = Federation.from_arrays(X, y).train("laser", **QUICK)
    with pytest.raises(TableError, match="y: labels belong into the table of 'a'"):
        model.evaluate({"a": pl.DataFrame({"id": [1]})}, y=y)


def test_the_report_does_not_count_the_labels_as_a_party(tmp_path):
    X, _, y = arrays()
    ids = pl.Series("id", np.arange(N))
    frames = {name: pl.DataFrame(x.reshape(N, -1)).insert_column(0, ids) for name, x in X.items()}
    federation = Federation.from_tables({**frames, "labels": pl.DataFrame([ids, pl.Series("y", y)])}, label="y")
    federation.train("laser", folder=tmp_path / "run", **QUICK)
    (run,) = find_runs([tmp_path / "run"])
    assert dict(key_facts(run, RunScores(reason="not loaded")))["parties"] == "2"


@pytest.mark.parametrize("method", ["laser", "plug", "standard", "ensemble", "combinatorial", "local"])
def test_rows_that_no_party_holds_do_not_train_and_get_no_prediction(method):
    X, _, y = arrays()
    observed = missing("mcar", p=0.5, keep_empty=True).draw(Seeds(0), "train", N, 2).observed
    empty = ~observed.any(axis=1)
    assert empty.any()
    made = partial(Federation.from_arrays, X, observed=observed, split="random")  # a stratified split reads labels
    federation = made(y)
    assert f"{1 - observed.mean():.1%}" in html_of(federation.overlap.render())
    assert "white-space:pre;" in html_of("a table")  # Jupyter would wrap the lines of a table otherwise
    model = federation.train(method, **QUICK)
    other = made(np.where(empty, 1 - y, y)).train(method, **QUICK)
    assert [epoch["loss"] for epoch in model.history] == [epoch["loss"] for epoch in other.history]
    gaps = {name: np.where(observed[:, k].reshape(-1, *[1] * (x.ndim - 1)), x, np.nan)
            for k, (name, x) in enumerate(X.items())}  # fmt: skip
    answers = model.predict(gaps)
    assert not answers.answered.numpy()[empty].any()
    assert all(answers.reasons[row] for row in np.flatnonzero(empty))


MASKS = {
    "array": lambda observed: observed,
    "tensor": torch.from_numpy,
    "mapping": lambda observed: {"b": observed[:, 1], "a": torch.from_numpy(observed[:, 0])},
    "polars": lambda observed: pl.DataFrame({"b": observed[:, 1], "a": observed[:, 0]}),
    "pandas": lambda observed: pl.DataFrame({"b": observed[:, 1], "a": observed[:, 0]}).to_pandas(),
}


@pytest.mark.filterwarnings("ignore:the model was trained on")
@pytest.mark.parametrize("kind", MASKS)
def test_prediction_uses_the_mask_of_rows_that_parties_have(kind):
    """Without the mask, both parties counted as present where one was absent in training."""
    X, observed, y = arrays()
    mask = MASKS[kind](observed)
    model = Federation.from_arrays(X, y, observed=mask, active="b").train("laser", **QUICK)
    gaps = {name: np.where(observed[:, k].reshape(-1, *[1] * (x.ndim - 1)), x, np.nan)
            for k, (name, x) in enumerate(X.items())}  # fmt: skip
    predicted, expected = model.predict(X, observed=mask), model.predict(gaps)
    torch.testing.assert_close(predicted.scores, expected.scores, rtol=0, atol=0, equal_nan=True)
    assert predicted.frame()["parties"].to_list() == expected.frame()["parties"].to_list()
    scored = model.evaluate(X, y=y, observed=mask)
    assert scored.to_json() == model.evaluate(gaps, y=y).to_json()
    assert {count: values["rows"] for count, values in scored.by_count.items()} == {
        count: (observed.sum(axis=1) == count).sum() for count in (0, 1, 2)
    }
    embedded, blank = model.embed(X, observed=mask), model.embed(gaps)
    assert embedded["a"]["id"].to_list() == np.flatnonzero(observed[:, 0]).tolist()
    assert all(embedded[name].equals(blank[name]) for name in "ab")


def test_a_party_may_have_no_row_to_predict():
    X, observed, y = arrays()
    model = Federation.from_arrays(X, y).train("laser", **QUICK)
    for name, column in (("a", [True, False]), ("b", [False, True])):
        lone = model.predict(X, observed=np.ones((N, 2), dtype=bool) & column)
        torch.testing.assert_close(lone.scores, model.predict({name: X[name]}).scores, rtol=0, atol=0)
    assert not model.predict(X, observed=np.zeros((N, 2), dtype=bool)).answered.any()
    only_b = model.predict({"b": X["b"]}, observed=observed[:, 1:])
    assert only_b.answered.numpy().tolist() == observed[:, 1].tolist()


def test_imputation_uses_the_mask():
    X, observed, y = arrays()
    model = Federation.from_arrays(X, y, observed=observed).train("false-vfl-1", **QUICK)
    filled = impute(model, X, "a", observed=observed)
    assert filled.ids == tuple(np.flatnonzero(~observed[:, 0]).tolist())
    assert filled.unknown == int((~observed).all(axis=1).sum())
    assert filled.table()["x0"].null_count() == filled.unknown
    likely = log_likelihood(model, X, observed={"a": observed[:, 0], "b": observed[:, 1]})
    assert likely["log_likelihood"].is_null().to_list() == (~observed).all(axis=1).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask.T, r"observed: expected booleans of shape \(60, 2\), .* order a, b, got bool of .*60\)"),
        (lambda mask: mask[:9], r"observed: expected booleans .* got bool of shape \(9, 2\)"),
        (lambda mask: {"a": mask[:, 0], "bb": mask[:, 1]}, "observed: there is no party 'bb'; did you mean 'b'"),
        (lambda mask: {"a": mask[:, 0]}, "observed: expected a mask for every party, got none for 'b'"),
        (lambda mask: {"a": mask[:, 0], "b": mask[:9, 1]}, r"observed: party 'b': expected .* \(60,\), .* \(9,\)"),
        (lambda mask: pl.DataFrame({"a": mask[:, 0], "b": [1] * N}), "observed: party 'b': expected booleans"),
        (lambda mask: pl.DataFrame({"a": mask[:, 0], "b": [None, *[True] * 59]}), "observed: party 'b': expected"),
    ],
)
def test_a_wrong_mask_is_an_error(change, message):
    X, observed, y = arrays()
    model = Federation.from_arrays(X, y, observed=observed).train("laser", **QUICK)
    for use in (
        lambda wrong: Federation.from_arrays(X, y, observed=wrong),
        lambda wrong: model.predict(X, observed=wrong),
        lambda wrong: model.evaluate(X, y=y, observed=wrong),
        lambda wrong: model.embed(X, observed=wrong),
    ):
        with pytest.raises(TableError, match=message):
            use(change(observed))


def test_a_mask_is_for_arrays():
    X, observed, y = arrays()
    model = Federation.from_arrays(X, y, observed=observed).train("laser", **QUICK)
    frame = pl.DataFrame(X["a"], ["x0", "x1", "x2"]).with_columns(id=np.arange(N))
    with pytest.raises(TableError, match="observed: masks are for arrays; leave rows that a party lacks out"):
        model.predict({"a": frame}, observed=observed[:, :1])
    with pytest.raises(PredictionError, match="observed: masks are for arrays; give tables, too"):
        model.predict(observed=observed)
