"""Embeddings come with the ids of their rows, in the order of the party's table."""

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.errors import AnypartyWarning, PredictionError
from anyparty.methods.method_registry import METHODS
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer

N, CLUSTERS = 80, 4
QUICK = {"epochs": 3, "batch_size": 16, "validation": 0.0, "patience": None, "keep": "last", "seed": 1}


def tables():
    """Create two parties whose rows are not in the order of their ids; the values are close to the row's class."""
    random = np.random.default_rng(5)
    y = random.integers(CLUSTERS, size=N)
    ids = random.permutation(N)
    values = np.eye(CLUSTERS)[y] * 8 + random.normal(size=(N, CLUSTERS))
    a = pl.DataFrame({"id": ids, "u": values[:, 0], "v": values[:, 1], "y": y})
    b = pl.DataFrame({"id": ids, "w": values[:, 2], "x": values[:, 3]})
    return {"a": a, "b": b[random.permutation(N)[:60]]}


def trained(name="standard"):
    federation = Federation.from_tables(tables(), label="y")
    return federation.train(name, encoder=MLP(hidden=(8,)), optimizer=Optimizer(lr=0.03), **QUICK)


@pytest.fixture(scope="module")
def standard():
    return trained()


def neighbours(h, y):
    """Return the share of rows whose nearest other row has the same label."""
    distance = torch.cdist(h, h).fill_diagonal_(torch.inf)
    return float((y[distance.argmin(dim=1).numpy()] == y).mean())


def test_embeddings_are_returned_with_the_correct_ids(standard):
    given = tables()
    frames = standard.embed(given)
    assert list(frames) == ["a", "b"]
    for name, frame in frames.items():
        assert frame["id"].to_list() == given[name]["id"].to_list()
    h = torch.from_numpy(frames["a"].drop("id").to_numpy())
    assert neighbours(h, given["a"]["y"].to_numpy()) > 0.6  # rows that are ordered differently: about .25


def test_aligned_rows_are_in_the_order_of_the_active_table(standard):
    given = tables()
    rows, alignment, _, _ = standard.aligned(given)
    assert tuple(map(int, alignment.ids)) == standard.predict(given).ids
    assert rows["a"].block.position.tolist() == list(range(N))
    assert tuple(map(int, rows["a"].names)) == standard.predict(given).ids


def test_embed_returns_only_the_requested_parties(standard):
    assert list(standard.embed(tables(), parties=["b"])) == ["b"]
    with pytest.raises(PredictionError, match="no party 'c'"):
        standard.embed(tables(), parties=["c"])


def test_embed_without_tables_uses_the_test_rows_of_the_run(standard):
    own = standard.embed()["a"]
    assert set(own["id"]) == set(standard.predict().ids)
    every = standard.embed(tables())["a"]
    same = every.filter(pl.col("id").is_in(own["id"].to_list()))
    assert same["id"].to_list() == own["id"].to_list()
    assert np.allclose(same.drop("id").to_numpy(), own.drop("id").to_numpy(), atol=1e-6)


def test_a_row_without_cells_has_no_embedding(standard):
    given = tables()
    b = given["b"].with_columns(pl.when(pl.int_range(60) > 0).then(pl.col("w", "x")))
    with pytest.warns(AnypartyWarning, match="1 of 60 rows are empty"):
        frame = standard.embed({"b": b})["b"]
    assert frame["id"].to_list() == b["id"].to_list()
    assert frame["h0"].null_count() == 1
    assert frame["h0"][0] is None


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"boosting"}))
def test_every_network_returns_embeddings(name):
    model = trained(name)
    found = model.embed(tables())
    assert found["a"].height == N
    assert not found["a"].drop("id").null_count().sum_horizontal().item()
