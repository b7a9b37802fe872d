"""A federation keeps the cells that its tables had when it was made, whatever happens to them afterwards."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from anyparty import Federation

N = 40
IDS = [f"k{i:02d}" for i in range(N)]


def arrays():
    random = np.random.default_rng(0)
    u = random.normal(size=N)
    return {"u": u, "whole": np.arange(N), "small": u.astype(np.float32), "flag": u > 1, "y": (u > 0).astype(np.int64)}


def overwrite(held):
    for name, array in held.items():
        array[:] = 1 - array if name == "y" else 0


def by_loc(held, frame):
    frame.loc[:, ["u", "whole", "small"]] = 0
    frame.loc[:, "y"] = 1 - frame["y"].to_numpy()


def by_position(held, frame):
    for name in ("u", "whole", "y"):
        frame.iat[0, frame.columns.get_loc(name)] = 1 - frame[name].iat[0]


def by_array(held, frame):
    overwrite(held)


def in_place(held, frame):
    frame[0, "u"], frame[0, "y"] = 99.0, 1 - frame[0, "y"]
    frame.drop_in_place("whole")


@pytest.mark.parametrize(
    ("make", "edit"),
    [
        (lambda held: pd.DataFrame({"id": IDS} | held), by_loc),
        (lambda held: pd.DataFrame({"id": IDS} | held), by_position),
        (lambda held: pd.DataFrame({"id": IDS} | held, copy=False), by_array),
        (lambda held: pd.DataFrame({"id": IDS} | held).set_index("id"), by_loc),
        (lambda held: pl.DataFrame({"id": IDS} | held), by_array),
        (lambda held: pl.DataFrame({"id": IDS} | held), in_place),
        (lambda held: pl.LazyFrame({"id": IDS} | held), by_array),
    ],
)
def test_later_edits_of_a_table_do_not_change_the_federation(make, edit):
    held = arrays()
    frame = make(held)
    federation = Federation.from_tables({"bank": frame, "shop": pl.DataFrame({"id": IDS, "w": range(N)})}, label="y")
    table, whole = federation.tables["bank"], arrays()
    before = table.fingerprint
    edit(held, frame)
    assert table.label.cast(pl.Int64).to_list() == whole["y"].tolist()
    np.testing.assert_array_equal(table.columns["u"].to_numpy(), whole["u"])
    np.testing.assert_array_equal(table.columns["small"].to_numpy(), whole["small"])
    assert table.columns["whole"].to_list() == whole["whole"].tolist()
    again = Federation.from_tables({"bank": make(arrays()), "shop": federation.tables["shop"].columns.with_columns(
        id=pl.Series(IDS))}, label="y").tables["bank"]  # fmt: skip
    assert again.fingerprint == before


def test_later_edits_of_files_or_arguments_do_not_change_the_federation(tmp_path):
    file = tmp_path / "bank.parquet"
    pl.DataFrame({"id": IDS} | arrays()).write_parquet(file)
    tables, drop = {"bank": file, "shop": pl.DataFrame({"id": IDS, "w": range(N)})}, {"bank": ["flag"]}
    federation = Federation.from_tables(tables, label="y", drop=drop)
    tables.clear()
    drop["bank"].append("u")
    pl.DataFrame({"id": IDS, "u": [0.0] * N, "y": [0, 1] * (N // 2)}).write_parquet(file)
    assert federation.tables["bank"].columns["u"].to_list() == arrays()["u"].tolist()
    assert federation.config.parties["bank"].drop == ("flag",)
    assert federation.label("bank").to_list() == arrays()["y"].tolist()
