"""The table encoder interpolates between knots, takes its bins from training rows, and is saved with them."""

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.errors import ConfigError
from anyparty.networks.encoders import build
from anyparty.networks.table_encoder import PiecewiseLinear, TableEncoder, bounds_of


def encoded(x, bounds):
    """Return the piecewise-linear encoding of numbers as in Gorishniy et al. 2022, equation (1): [B] -> [B, m]."""
    low, high = bounds[:-1], bounds[1:]
    return ((x[:, None] - low) / (high - low)).clip(0, 1)


def test_it_equals_a_linear_layer_on_piecewise_linear_encodings():
    draw = np.random.default_rng(0)
    x = np.stack([draw.normal(size=500), draw.integers(0, 3, 500), np.zeros(500), draw.exponential(size=500)], 1)
    layer = PiecewiseLinear(4, 5, bins=8)
    layer.fit(torch.from_numpy(x))
    new = np.concatenate([x[:40], 3 * x[40:50] - 1])  # also beyond the bounds
    found = layer(torch.from_numpy(new).float()).detach().numpy()
    expected = layer.linear(torch.from_numpy(new).float()).detach().numpy().astype(float)
    for column in range(4):
        bounds = bounds_of(x[:, column], 8)
        assert len(bounds) <= 9
        steps = layer.steps[column, : len(bounds) - 1].detach().numpy()
        expected += encoded(new[:, column], bounds.astype(np.float32)) @ steps
    assert np.abs(found - expected).max() < 1e-4


def test_half_of_the_bounds_are_quantiles_and_half_are_spread_over_values():
    """In a column that is 91 % zero, quantiles alone would have hardly any bound above zero."""
    draw = np.random.default_rng(1)
    column = np.where(draw.random(10_000) < 0.91, 0.0, draw.exponential(size=10_000))
    bounds = bounds_of(column, 16)
    assert (bounds[0], bounds[-1]) == (0.0, column.max())
    assert (bounds > 0).sum() >= 8
    assert (np.diff(bounds) > 0).all()
    normal = draw.normal(size=10_000)
    quantiles = np.quantile(normal, np.linspace(0, 1, 8))
    assert np.isin(quantiles, bounds_of(normal, 16)).all()


def test_few_rows_and_many_columns_have_fewer_bins():
    """120 rows have two bins, of bounds at the ends and in the middle; 1,000 columns have four bins each."""
    layer = PiecewiseLinear(1, 5, bins=64)
    layer.fit(torch.rand(120, 1))
    assert int(layer.last) == 1
    assert build(TableEncoder(), 1000, 2)[0].steps.shape[1] == 4


def test_bins_are_fitted_when_the_encoder_is_built():
    x = torch.rand(100, 3) * 10
    plain, fitted = (build(TableEncoder(units=4, bins=4), 3, 2, sample=sample)[0] for sample in (None, x))
    assert plain.bounds.abs().max() < 2
    assert fitted.bounds.amax(dim=1).tolist() == x.amax(dim=0).tolist()
    copies = build(TableEncoder(units=4, bins=4), 3, 2, 3, sample=x)
    assert all(torch.equal(module[0].bounds, fitted.bounds) for module in copies.stack)


@pytest.mark.parametrize("given", [{"units": 0}, {"bins": 1}, {"drop": 1.0}, {"bins": 2.5}, {"units": True}])
def test_bad_parameters_are_refused(given):
    (name,) = given
    with pytest.raises(ConfigError, match=f"encoder: {name}"):
        TableEncoder(**given)


def tables(n=160):
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=n), draw.exponential(size=n)
    y = np.where((np.abs(a) > 0.7) == (b > 0.7), "yes", "no")
    ids = np.arange(n)
    bank = pl.DataFrame({"id": ids, "a": a, "town": draw.choice(["Ulm", "Bonn"], n), "y": y})
    return {"bank": bank, "shop": pl.DataFrame({"id": ids, "b": b}).filter(pl.col("id") % 5 > 0)}


@pytest.mark.parametrize("encoder", ["settings", "object"])
def test_a_model_with_table_encoders_is_saved_and_loaded(encoder, tmp_path):
    of = Federation.from_tables(tables(), id="id", label="y")
    if encoder == "settings":
        path = tmp_path / "settings.toml"
        path.write_text('[federation]\nid = "id"\nlabel = "y"\n[encoder]\nkind = "table"\nbins = 8\n'
                        + "".join(f"[parties.{name}]\n" for name in tables()))  # fmt: skip
        model = Federation.from_config(path, tables()).train("sum", epochs=3, folder=tmp_path / "run")
    else:
        model = of.train("sum", epochs=3, encoder=TableEncoder(bins=8), folder=tmp_path / "run")
    model.save(tmp_path / "model")
    for loaded in (Model.load(tmp_path / "model"), Model.load(tmp_path / "run")):
        assert loaded.predict(tables()).frame().equals(model.predict(tables()).frame())
        (first, *_) = loaded.members["shop"].state.modules["encoder"]
        assert first.bins == 8
        assert not torch.allclose(first.bounds, PiecewiseLinear(1, 1, 8).bounds)  # those of the training rows


def test_it_finds_what_is_not_monotone():
    """The label depends on the size of a number; a linear first layer needs many units for it."""
    of = Federation.from_tables(tables(600), id="id", label="y")
    model = of.train("sum", epochs=40, seed=1, encoder=TableEncoder(), batch_size=64, optimizer="adamw")
    assert model.evaluate().overall["accuracy"] > 0.8
