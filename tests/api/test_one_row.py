"""A dict in place of a table: the cells of one row."""

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.errors import TableError

N = 60
CELLS = {"bank": {"income": 0.5, "town": "Ulm"}, "shop": {"visits": -1.25}}


def tables():
    random = np.random.default_rng(0)
    bank = {
        "id": range(N),
        "income": random.normal(size=N),
        "town": ["Ulm", "Bonn"] * (N // 2),
        "y": ["no", "yes"] * 30,
    }
    return {"bank": pl.DataFrame(bank), "shop": pl.DataFrame({"id": range(N), "visits": random.normal(size=N)})}


@pytest.fixture(scope="module")
def model():
    return Federation.from_tables(tables(), label="y").train("laser", epochs=2)


def test_a_dict_is_one_row(model):
    frames = {party: pl.DataFrame([{"id": 7, **cells}]) for party, cells in CELLS.items()}
    expected = model.predict(frames).scores
    for tables_of_row in (CELLS, {party: {"id": 7, **cells} for party, cells in CELLS.items()}):
        found = model.predict(tables_of_row)
        torch.testing.assert_close(found.scores, expected, rtol=0, atol=0)
        assert found.frame()["parties"].to_list() == ["bank shop"]
    assert model.predict(CELLS).ids == (0,)
    assert model.predict({"shop": CELLS["shop"]}).frame()["parties"].to_list() == ["shop"]
    assert model.embed(CELLS)["bank"].height == 1
    assert model.evaluate({**CELLS, "bank": CELLS["bank"] | {"y": "no"}}).overall["rows"] == 1


def test_empty_cells_of_a_dict_are_missing(model):
    found = model.predict({"bank": {"income": None, "town": "Ulm"}})
    expected = model.predict({"bank": pl.DataFrame({"id": 0, "income": None, "town": "Ulm"})})
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"bank": {"income": [0.5, 1.0], "town": "Ulm"}},
            "a dict has the cells of one row, but the cell of column 'income'",
        ),
        ({"bank": {"income": np.zeros(2), "town": "Ulm"}}, "is a ndarray; give a data frame for several rows"),
        (
            {"bank": {"town": "Ulm"}},
            "party 'bank', data frame: the model was trained on 'income', which the table does not",
        ),
        (CELLS | {"shop": {"id": 3, "visits": 1.0}}, "party 'bank', data frame: there is no column 'id'"),
        (CELLS | {"shop": tables()["shop"]}, "party 'bank', data frame: there is no column 'id'"),
    ],
)
def test_a_dict_that_is_not_one_row_is_an_error(model, given, said):
    with pytest.raises(TableError, match=said):
        model.predict(given)


def test_all_missing_columns_are_listed(model):
    """The error named one column, and listed the table's other columns as known."""
    with pytest.raises(TableError) as stopped:
        model.predict({"bank": tables()["bank"].select("id", person="y")})
    assert "trained on 'income', 'town', which the table does not have; its other columns are: id, person" in str(
        stopped.value
    )
    wide = pl.DataFrame(
        {"id": range(N), **{f"c{k}": np.arange(N) % (k + 2) for k in range(12)}, "y": ["no", "yes"] * 30}
    )
    trained = Federation.from_tables({"bank": wide}, label="y").train("local", epochs=1)
    with pytest.raises(TableError) as stopped:
        trained.predict({"bank": wide.select("id", "c3")})
    assert all(f"'c{k}'" in str(stopped.value) for k in range(12) if k != 3)
