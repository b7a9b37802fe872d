"""The encoder check: its scores are scikit-learn's, and it distinguishes a useless encoder from a good one."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from anyparty.errors import AlignmentError, ConfigError, Diverged
from anyparty.methods.encoder_check import compare, cross_validated, inspect
from anyparty.networks.encoders import MLP, Autoencoder
from anyparty.networks.optimizer import Optimizer


def rows(n=200, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def test_scores_equal_those_of_scikit_learn():
    x, y = rows()
    folds = StratifiedKFold(5, shuffle=True, random_state=3)
    expected = cross_val_score(LogisticRegression(max_iter=1000), x, y, cv=folds, scoring="f1")
    found = compare(x, x, y, folds=5, seed=3, metric="f1")
    assert np.allclose(found.raw, expected)
    assert np.allclose(found.embedded, expected)
    assert found.lost == 0


@pytest.mark.parametrize(("names", "given"), [(("0", "1"), False), (("no", "yes"), False), (("no", "yes"), True)])
def test_class_weights_are_matched_by_name(names, given):
    """Labels may be class names, or positions with a list of names."""
    x, y = rows()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    weighed = LogisticRegression(max_iter=1000, class_weight={0: 1.0, 1: 9.0})
    expected = cross_val_score(weighed, x, y, cv=folds, scoring="balanced_accuracy")
    found = cross_validated(
        x, y if given or names[0] == "0" else np.array(names)[y], folds=5, metric="balanced_accuracy",
        settings={"class_weight": {names[0]: 1.0, names[1]: 9.0}}, classes=names if given else None,
    )  # fmt: skip
    assert np.allclose(found, expected)


def test_noise_loses_information_and_a_rotation_does_not():
    x, y = rows()
    rng = np.random.default_rng(1)
    noise = compare(x, rng.normal(size=(200, 8)), y)
    assert noise.lost > 0.25
    assert not noise.alike(0.1)
    turned = compare(x, x @ np.linalg.qr(rng.normal(size=(4, 4)))[0], y)
    assert turned.alike(0.01)


def test_scores_are_reported_after_every_epoch():
    x, y = rows()
    epochs = list(inspect(x, y, embedding=8, epochs=4, batch_size=16, folds=3))
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3, 4]
    assert epochs[-1].loss < epochs[0].loss / 2
    assert epochs[-1].scores.alike(0.05)
    again = list(inspect(x, y, embedding=8, epochs=2, batch_size=16, folds=3))
    assert [epoch.loss for epoch in again] == [epoch.loss for epoch in epochs[:2]]


def test_the_learning_rate_follows_the_optimizers_schedule():
    """With a factor near 0, the embeddings do not change after the first epoch."""
    x, y = rows()
    falls = Optimizer(lr=0.01, schedule="step", milestones=(1,), gamma=1e-12)
    first, *later = inspect(x, y, optimizer=falls, embedding=8, epochs=3, batch_size=200, folds=3)
    steady = list(inspect(x, y, optimizer=Optimizer(lr=0.01), embedding=8, epochs=3, batch_size=200, folds=3))
    assert first.loss == steady[0].loss
    assert later[0].loss == steady[1].loss  # the loss before its own step
    assert later[1].loss == pytest.approx(later[0].loss, rel=1e-6)
    assert steady[2].loss < 0.999 * steady[1].loss


def test_a_stochastic_encoder_gives_reproducible_scores():
    x, y = rows()
    drawn = MLP(hidden=(16,), dropout=0.5)
    one, two = (list(inspect(x, y, encoder=drawn, embedding=8, epochs=2, batch_size=16, folds=3, seed=3)) for _ in "ab")
    assert [epoch.loss for epoch in one] == [epoch.loss for epoch in two]
    assert np.array_equal(one[-1].scores.embedded, two[-1].scores.embedded)


def test_scores_use_embeddings_without_dropout(monkeypatch):
    x, y = rows()
    modes, encode = [], Autoencoder.encode
    monkeypatch.setattr(Autoencoder, "encode", lambda net, rows: modes.append(net.training) or encode(net, rows))
    epochs = list(inspect(x, y, encoder=MLP(hidden=(16,), dropout=0.5), embedding=8, epochs=2, batch_size=200, folds=3))
    assert len(epochs) == 2
    scored = [mode for mode in modes if not mode]
    assert len(scored) == 2  # once after each epoch
    assert True in modes  # training mode occurred as well


@pytest.mark.parametrize(
    ("y", "settings", "kind", "said"),
    [
        (
            [0] * 5 + [1] * 195,
            {"folds": 10},
            AlignmentError,
            "class 0 has 5 rows, so it would be absent from some of 10",
        ),
        ([1] * 200, {}, AlignmentError, "all 200 labels are 1"),
        ([0, 1] * 100, {"folds": 201}, AlignmentError, "200 rows are fewer than 201 folds; lower --folds"),
        ([0, 1] * 100, {"folds": 1}, ConfigError, "folds must be at least 2"),
        ([0, 1] * 100, {"metric": "accurcy"}, ConfigError, "accurcy"),
        ([0, 1, 2, 1] * 50, {"metric": "f1"}, ConfigError, "f1 has no value with 3 classes and logistic; .* f1_macro"),
        ([0, 1, 2, 1] * 50, {"metric": "roc_auc"}, ConfigError, "roc_auc has no value with 3 classes"),
        ([0, 1] * 100, {"classifier": "Forest"}, ConfigError, "no classifier 'Forest'"),
    ],
)
def test_invalid_arguments_are_refused(y, settings, kind, said):
    x, _ = rows()
    with pytest.raises(kind, match=said):
        compare(x, x, y, **settings)


@pytest.mark.filterwarnings("error")
def test_a_diverging_encoder_causes_a_clear_error():
    x, y = rows()
    fast = Optimizer(name="sgd", lr=1e9)
    with pytest.raises(Diverged, match=r"no longer numbers after epoch \d: lower the learning rate \(1e\+09\)"):
        list(inspect(x, y, epochs=5, optimizer=fast, folds=3))
