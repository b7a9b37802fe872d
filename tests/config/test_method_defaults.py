"""A method's own defaults fill the settings that are not given, and only those."""

import tomllib

import numpy as np
import polars as pl
import pytest

from anyparty import Federation, Model
from anyparty.config import Config
from anyparty.config.loader import changed
from anyparty.config.schema import METHOD_DEFAULTS
from anyparty.networks.optimizer import Optimizer

SUM = METHOD_DEFAULTS["sum"]


def resolved(**values):
    return Config.of(values).with_method_defaults()


def test_the_default_method_has_its_own_settings():
    config = resolved()
    assert config.method.name == "sum"
    assert config.method.parameters == SUM["method"]
    assert (config.encoder, config.optimizer) == (SUM["encoder"], SUM["optimizer"])
    assert {name: getattr(config.train, name) for name in SUM["train"]} == SUM["train"]


def test_settings_that_are_given_win():
    config = resolved(method={"embedding": 8}, train={"epochs": 3, "patience": 5}, optimizer={"lr": 0.01})
    assert config.method.parameters == {"embedding": 8}
    assert (config.train.epochs, config.train.patience, config.train.batch_size) == (3, 5, "auto")
    assert config.optimizer == Optimizer(lr=0.01)
    assert config.encoder.kind == "table"


@pytest.mark.parametrize("values", [{"method": {"name": "laser"}}, {"schedule": {"name": "flex"}}])
def test_other_methods_and_schedules_keep_the_general_defaults(values):
    config = Config.of(values)
    assert config.with_method_defaults() == config
    assert (config.train.epochs, config.train.batch_size, config.encoder.kind) == (100, 128, "mlp")


def test_saved_settings_do_not_change():
    """They hold every setting, so that they mean the same if a later version has other defaults."""
    for config in (resolved(), resolved(method={"name": "laser"}), resolved(train={"epochs": 7})):
        saved = Config.of(tomllib.loads(config.to_toml()))
        assert saved == saved.with_method_defaults() == config


def test_a_change_of_the_method_changes_the_defaults():
    assert changed(Config(), {"train.seed": 1}).train.epochs == SUM["train"]["epochs"]
    assert changed(Config(), {"train.seed": 1, "method.name": "laser"}).train.epochs == 100
    assert changed(Config(), {"optimizer.lr": 0.02}).optimizer.name == SUM["optimizer"].name


@pytest.fixture(scope="module")
def federation():
    draw, ids = np.random.default_rng(0), [f"c{n}" for n in range(300)]
    a, b = draw.normal(size=(2, 300))
    label = np.where(a + b + draw.normal(size=300) > 0, "yes", "no")
    bank = pl.DataFrame({"id": ids, "a": a, "label": label})
    return Federation.from_tables({"bank": bank, "shop": pl.DataFrame({"id": ids, "b": b})[:200]}, label="label")


def test_a_model_without_a_named_method_is_calibrated(federation, tmp_path):
    model = federation.train(folder=tmp_path / "run")
    assert model.method.can.title == "Sum"
    assert len(model.history) == SUM["train"]["epochs"]
    assert model.task.temperature == model.history[model.best_epoch - 1]["temperature"] != 1
    loaded = Model.load(tmp_path / "run")
    assert loaded.task.temperature == model.task.temperature
    tables = {"shop": pl.DataFrame({"id": ["c1", "c2"], "b": [0.1, 2.0]})}
    assert loaded.predict(tables).frame().equals(model.predict(tables).frame())


def test_arrays_keep_the_former_default():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 2, 3))
    of = Federation.from_arrays({"left": x, "right": x[:, :, 0]}, np.where(x[:, 0, 0] > 0, "yes", "no"))
    model = of.train(epochs=1)
    assert model.method.can.title == "LASER-VFL"
    assert model.task.temperature == 1
