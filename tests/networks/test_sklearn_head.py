"""Scikit-learn's estimators as heads: the same numbers as in scikit-learn, saved and loaded without pickle."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from anyparty.core.types import Task
from anyparty.errors import AlignmentError, ConfigError, PredictionError
from anyparty.networks.objective import answers
from anyparty.networks.sklearn_head import FittedEstimator

THREE = Task(kind="classification", classes=("x", "y", "z"))
TWO = Task(kind="classification", classes=("no", "yes"))
NUMBER = Task(kind="regression", mean=3.0, scale=2.0)


def rows(classes=3, n=80, H=5):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(n, H, generator=generator)
    return u, (u[:, 0] * 2 + torch.randn(n, generator=generator)).argsort().argsort() * classes // n


def fitted(name, task, u, y, **settings):
    made = FittedEstimator(name, task, u.shape[1], settings, 7)
    made.fit(u, y)
    return made


@pytest.mark.parametrize(("task", "classes"), [(TWO, 2), (THREE, 3)])
def test_logistic_regression_is_scikit_learns(task, classes):
    u, y = rows(classes)
    expected = LogisticRegression(max_iter=1000).fit(u.double().numpy(), y.numpy()).predict_proba(u.double().numpy())
    found = answers(task, fitted("logistic", task, u, y)(u))
    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_ridge_is_scikit_learns():
    u, y = rows()
    expected = Ridge().fit(u.double().numpy(), y.float().numpy()).predict(u.double().numpy())
    assert np.abs(fitted("ridge", NUMBER, u, y.float())(u)[:, 0].numpy() - expected).max() < 1e-5


def test_any_other_is_scikit_learns():
    u, y = rows()
    x = u.double().numpy()
    forest = RandomForestClassifier(n_estimators=9, random_state=7).fit(x, y.numpy()).predict_proba(x)
    found = answers(THREE, fitted("RandomForestClassifier", THREE, u, y, n_estimators=9)(u))
    assert np.abs(found.numpy() - forest).max() < 1e-5
    svc = LinearSVC(random_state=7).fit(x, y.numpy()).predict(x)  # it has no probabilities
    found = answers(THREE, fitted("LinearSVC", THREE, u, y)(u))
    assert (found.argmax(dim=1).numpy() == svc).all()
    number = RandomForestRegressor(n_estimators=9, random_state=7).fit(x, y.double().numpy()).predict(x)
    found = fitted("RandomForestRegressor", NUMBER, u, y.float(), n_estimators=9)(u)
    assert np.abs(found[:, 0].numpy() - number).max() < 1e-5


@pytest.mark.parametrize("name", ["logistic", "KNeighborsClassifier", "RandomForestClassifier"])
def test_there_and_back(name):
    """A new module with another seed gives the same answers after loading, although it had stored no rows."""
    u, y = rows()
    before = fitted(name, THREE, u, y)
    after = FittedEstimator(name, THREE, 5, {}, 99)
    after.load_state_dict({key: value.clone() for key, value in before.state_dict().items()})
    assert torch.equal(before(u), after(u))
    assert torch.equal(after(u[:0]), torch.zeros(0, 3))


def test_a_class_that_no_row_has_gets_no_chance():
    u, y = rows(2)
    for name in ("logistic", "GaussianNB"):
        found = answers(THREE, fitted(name, THREE, u, y * 2)(u))  # only classes 0 and 2 occur
        assert not found[:, 1].any()
        assert torch.allclose(found.sum(dim=1), torch.ones(80))


def test_weights_of_classes_count():
    u, y = rows(2)
    heavy = Task(kind="classification", classes=("no", "yes"), weights=(1.0, 50.0))
    plain, weighted = (answers(task, fitted("logistic", task, u, y)(u))[:, 1].mean() for task in (TWO, heavy))
    assert weighted > plain + 0.2


def test_before_it_is_fitted_all_classes_are_alike():
    u, _ = rows()
    for name in ("logistic", "GaussianNB"):
        assert torch.allclose(answers(THREE, FittedEstimator(name, THREE, 5, {}, 0)(u)), torch.full((80, 3), 1 / 3))


def test_refusals():
    u, y = rows()
    with pytest.raises(ConfigError, match="no regressor 'GaussianNB'"):
        FittedEstimator("GaussianNB", NUMBER, 5, {}, 0)
    with pytest.raises(ConfigError, match=r"cannot be made with \{.trees.: 3\}"):
        FittedEstimator("RandomForestClassifier", THREE, 5, {"trees": 3}, 0)
    with pytest.raises(AlignmentError, match="all of one class, 'x'"):
        fitted("logistic", THREE, u, 0 * y)
    with pytest.raises(AlignmentError, match=r"'KNeighborsClassifier' refuses its 80 rows: .*n_neighbors"):
        fitted("KNeighborsClassifier", THREE, u, y, n_neighbors=-1)


@pytest.mark.parametrize(
    ("name", "settings"), [("KNeighborsClassifier", {}), ("RadiusNeighborsClassifier", {"radius": 1e-9})]
)
def test_a_classifier_that_refuses_when_it_is_asked_is_named(name, settings):
    u, y = rows(classes=2, n=4)
    made = fitted(name, TWO, u, y, **settings)
    with pytest.raises(PredictionError, match=f"classifier: '{name}', fitted to 4 rows, gives no answer for 4: "):
        made(u + 5)


def test_a_regressor_gives_the_same_bits_when_it_is_loaded():
    u, y = rows()
    y = y.float() / 7
    made, again = (
        fitted("KNeighborsRegressor", NUMBER, u, y),
        FittedEstimator("KNeighborsRegressor", NUMBER, u.shape[1], {}, 7),
    )
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(u), made(u))


def test_weights_of_classes_go_by_their_names_there_and_back():
    u, y = rows(2)
    weights = {"no": 1.0, "yes": 8.0}
    made = fitted("RandomForestClassifier", TWO, u, y, class_weight=weights, n_estimators=10)
    x = u.double().numpy()
    theirs = RandomForestClassifier(10, class_weight={0: 1.0, 1: 8.0}, random_state=7).fit(x, y.numpy())
    assert np.abs(answers(TWO, made(u)).numpy() - theirs.predict_proba(x)).max() < 1e-4
    again = FittedEstimator("RandomForestClassifier", TWO, u.shape[1], {"class_weight": weights, "n_estimators": 10}, 7)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(u), made(u))
    assert torch.isfinite(fitted("RandomForestClassifier", TWO, u, y, class_weight="balanced", n_estimators=5)(u)).all()


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 2.0}, {"yes": 2.0}, {"yes": 2.0, "no": 1.0, "perhaps": 1.0}])
def test_weights_of_other_classes_are_refused(weights):
    with pytest.raises(ConfigError, match=r"class_weight has a weight for each class by its name, .* are 'no', 'yes'"):
        FittedEstimator("LinearSVC", TWO, 5, {"class_weight": weights}, 7)


def test_balance_is_refused_where_a_classifier_takes_no_weights():
    u, y = rows(2)
    balanced = Task(kind="classification", classes=("no", "yes"), weights=(1.0, 3.0))
    with pytest.raises(
        ConfigError, match=r"train.balance = true weights rows, but scikit-learn's KNeighborsClassifier"
    ):
        fitted("KNeighborsClassifier", balanced, u, y)
