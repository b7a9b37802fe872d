"""The estimators for scikit-learn."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_iris, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from anyparty.api.federation import Federation
from anyparty.config import Config
from anyparty.errors import AnypartyWarning, ConfigError, PredictionError, TableError
from anyparty.sklearn import VerticalClassifier, VerticalRegressor

X, y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[y]
BLOCKS = {"sepal": [0, 1], "petal": [2, 3]}
FAST = {"epochs": 25, "lr": 0.02, "random_state": 0}


@pytest.fixture(scope="module")
def fitted() -> VerticalClassifier:
    return VerticalClassifier(**FAST).fit({"sepal": X[:, :2], "petal": X[:, 2:]}, NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [VerticalClassifier(epochs=30), VerticalRegressor(epochs=60)])
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator: VerticalClassifier | VerticalRegressor) -> None:
    check_estimator(estimator)


@pytest.mark.parametrize("estimator", [VerticalClassifier, VerticalRegressor])
def test_the_defaults_are_those_of_train(estimator: type[VerticalClassifier], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, given, used = Config(), estimator().get_params(), list[dict[str, Any]]()
    assert given["method"] == settings.method.name
    assert given["validation"] == settings.train.validation
    assert {given[name] for name in ("epochs", "batch_size", "hidden", "lr", "patience")} == {None}
    monkeypatch.setattr(Federation, "train", lambda _, __, **arguments: used.append(arguments))
    for method in ("sum", "laser"):
        estimator(method).fit(
            {"sepal": X[:, :2], "petal": X[:, 2:]}, X[:, 0] if estimator is VerticalRegressor else NAMES
        )
    for arguments in used:
        assert {name for name, value in arguments.items() if value is not None} == {"seed", "test", "validation"}


def test_a_dict_of_blocks_predicts_without_a_party(fitted: VerticalClassifier) -> None:
    assert fitted.score({"sepal": X[:, :2], "petal": X[:, 2:]}, NAMES) > 0.9
    assert fitted.score({"petal": X[:, 2:]}, NAMES) > 0.9
    assert set(fitted.predict({"sepal": X[:, :2]})) <= set(NAMES)
    assert fitted.predict_proba({"petal": X[:5, 2:]}).shape == (5, 3)
    assert pickle.loads(pickle.dumps(fitted)).predict({"petal": X[:5, 2:]}).tolist() == ["setosa"] * 5  # noqa: S301


def test_a_missing_block_is_a_missing_party(fitted: VerticalClassifier) -> None:
    """A row with an empty block gets the answer of the other party, whatever stands in other rows."""
    sepal, petal = X[:, :2].copy(), X[:, 2:]
    sepal[::2] = np.nan
    mixed = fitted.predict_proba({"sepal": sepal, "petal": petal})
    np.testing.assert_allclose(mixed[::2], fitted.predict_proba({"petal": petal})[::2], atol=1e-6)
    both = fitted.predict_proba({"sepal": X[:, :2], "petal": petal})
    np.testing.assert_allclose(mixed[1::2], both[1::2], atol=1e-6)


def test_a_row_that_nobody_has_gets_the_frequencies_or_an_error(fitted: VerticalClassifier) -> None:
    rows = X[:3].copy()
    rows[1] = np.nan
    blocks = {"sepal": rows[:, :2], "petal": rows[:, 2:]}
    with pytest.warns(AnypartyWarning, match="no answer for 1 of 3 rows"):
        np.testing.assert_allclose(fitted.predict_proba(blocks)[1], 1 / 3)
    strict = pickle.loads(pickle.dumps(fitted)).set_params(no_answer="raise")  # noqa: S301
    with pytest.raises(PredictionError, match="no answer for 1 of 3 rows"):
        strict.predict(blocks)


def test_model_selection_with_gaps() -> None:
    holed = X.copy()
    holed[:50:2, 2:] = np.nan  # the party "petal" lacks these rows
    steps = make_pipeline(StandardScaler(), VerticalClassifier(blocks=BLOCKS, **FAST))
    assert cross_val_score(steps, holed, y, cv=3).mean() > 0.85
    search = GridSearchCV(steps, {"verticalclassifier__method": ["laser", "local"]}, cv=2).fit(holed, y)
    assert search.predict(holed).dtype == y.dtype
    assert search.best_estimator_[-1].blocks_ == {"sepal": ["x0", "x1"], "petal": ["x2", "x3"]}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_with_names_and_categories(library: str) -> None:
    columns = {"sum": X[:, 2], "width": X[:, 3], "kind": np.where(y == 0, "a", "b")}
    frame = pd.DataFrame(columns, index=range(10, 160)) if library == "pandas" else pl.DataFrame(columns)
    blocks = {"shop": ["sum"], "bank": ["width", "kind"]}
    model = VerticalClassifier(blocks=blocks, **FAST).fit(frame, NAMES)
    assert model.score(frame, NAMES) > 0.9
    assert model.feature_names_in_.tolist() == ["sum", "width", "kind"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename({"sum": "total"}) if library == "polars" else frame.rename(columns={"sum": "total"}))


def test_a_regressor() -> None:
    A, b = make_regression(200, 6, noise=1.0, random_state=0)
    model = VerticalRegressor(blocks=2, epochs=60, lr=0.02, random_state=0).fit(A, b)
    assert model.score(A, b) > 0.8
    holed = A.copy()
    holed[0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnypartyWarning)
        assert model.predict(holed)[0] == pytest.approx(b.mean())


def test_mistakes(fitted: VerticalClassifier) -> None:
    with pytest.raises(ConfigError, match="'sepal' has column 7, but X has 4 columns"):
        VerticalClassifier(blocks={"sepal": [7]}).fit(X, y)
    with pytest.raises(TableError, match=r"different numbers of rows \(a: 150, b: 149\)"):
        VerticalClassifier().fit({"a": X, "b": X[:-1]}, y)
    with pytest.raises(PredictionError, match="there is no party 'petals'; did you mean 'petal'"):
        fitted.predict({"petals": X})
    with pytest.raises(TableError, match="party 'petal' has no column 'x0'"):
        fitted.predict({"petal": pd.DataFrame(X[:, 2:], columns=["length", "width"])})
    with pytest.raises(ConfigError, match="was fitted to a dict of frames"):
        fitted.predict(X)
    with pytest.raises(ConfigError, match="expected 'prior' or 'raise'"):
        VerticalClassifier(no_answer="nothing").fit(X, y)
