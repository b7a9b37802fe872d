"""Splits through the public API: masks, listed ids, columns, rare classes, and runs on disk."""

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run, federation_of_run, settings_of
from anyparty.config import Config
from anyparty.errors import ConfigError, ModelError, TableError
from anyparty.networks.encoders import MLP
from anyparty.problem.splits import TEST, TRAIN, VALIDATION

N = 200
QUICK = {"epochs": 1, "patience": None, "encoder": MLP(hidden=())}


def tables(rate=0.0, seed=0):
    random = np.random.default_rng(3)
    x, y, day = random.normal(size=(N, 2)), random.integers(2, size=N), random.permutation(N)
    there = np.random.default_rng(seed).random((N, 2)) >= rate
    ids = pl.Series("id", np.arange(N))
    return {
        "labels": pl.DataFrame([ids, pl.Series("y", y), pl.Series("patient", day // 4), pl.Series("day", day)]),
        "a": pl.DataFrame([ids, pl.Series("u", x[:, 0])]).filter(pl.Series(there[:, 0])),
        "b": pl.DataFrame([ids, pl.Series("v", x[:, 1])]).filter(pl.Series(there[:, 1])),
    }


def federation(given, **how):
    drop = {"labels": [name for name in ("patient", "day") if name not in dict(how.get("split") or {}).values()]}
    return Federation.from_tables(given, label="y", drop=drop, **how)


def held_out(of, number=TEST):
    use = of.split(of.config.train)
    return set(of.alignment.ids.filter(pl.Series(use == number)))


def test_curves_over_missing_rates_compare_the_same_rows():
    full = held_out(federation(tables()))
    assert len(full) == 40
    for rate in (0.3, 0.6):
        of = federation(tables(rate))
        there = set(of.alignment.ids.filter(pl.Series(of.observed.any(axis=1))))
        assert held_out(of) == full & there


def test_the_order_of_rows_does_not_matter():
    given = tables()
    shuffled = {name: frame[np.random.default_rng(1).permutation(N)] for name, frame in given.items()}
    assert held_out(federation(shuffled)) == held_out(federation(given))


@pytest.mark.parametrize("names", [list, np.array, lambda ids: pl.Series(list(ids)), lambda ids: map(str, ids)])
def test_listed_ids_define_the_split(names):
    parts = {"train": names(range(100)), "validation": names(range(100, 140)), "test": names(range(140, 190))}
    parts = {part: list(ids) if isinstance(ids, map) else ids for part, ids in parts.items()}
    model = federation(tables()).train("standard", split=parts, **QUICK)
    assert sorted(map(int, model.predict().ids)) == list(range(140, 190))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"train": [1, 2], "test": [2, 3]}, "id '2' is listed twice"),
        ({"train": [1], "test": [999]}, "no party has the id '999'"),
        ({"train": [1], "dev": [2]}, "there is no part 'dev'"),
        ({"train": "12", "test": [2]}, "expected a list of ids for 'train', got str"),
        ({"test": [2]}, "no row of the active party is for training"),
    ],
)
def test_invalid_lists_of_ids_are_refused(parts, sentence):
    with pytest.raises(ConfigError, match=sentence):
        federation(tables()).train("standard", split=parts, **QUICK)


def test_a_test_id_without_a_label_is_refused():
    given = tables()
    given["labels"] = given["labels"].with_columns(pl.when(pl.col("id") != 7).then("y").alias("y"))
    with pytest.raises(ConfigError, match="id '7' is for validation or test, and has no label"):
        federation(given).train("standard", split={"train": [1, 2], "test": [7]}, **QUICK)


def test_a_run_with_listed_ids_stores_no_ids(tmp_path):
    given = {}
    for name, frame in tables().items():
        given[name] = tmp_path / f"{name}.csv"
        frame.write_csv(given[name])
    parts = {"train": range(100), "test": range(100, 150)}
    federation(given).train("standard", split=parts, folder=tmp_path / "run", **QUICK)
    assert settings_of(tmp_path / "run").split.kind == "ids"
    with pytest.raises(ModelError, match="a run's folder stores no ids"):
        evaluate_run(tmp_path / "run")


@pytest.mark.parametrize(
    "split", [{"kind": "group", "group": "patient"}, {"kind": "time", "time": "day"}, {"parties": True}, "random"]
)
def test_a_run_finds_its_test_rows_again(tmp_path, split):
    given = {}
    for name, frame in tables(0.2).items():
        given[name] = tmp_path / f"{name}.csv"
        frame.write_csv(given[name])
    drop = {"labels": [name for name in ("patient", "day") if name not in str(split)]}
    of = Federation.from_tables(given, label="y", drop=drop, split=split)
    model = of.train("standard", folder=tmp_path / "run", **QUICK)
    assert "patient" not in of.tables["labels"].columns.columns
    assert set(model.predict().ids) == held_out(federation_of_run(tmp_path / "run")) == held_out(of)
    assert evaluate_run(tmp_path / "run").to_json() == model.evaluate().to_json()


def test_a_run_of_an_earlier_version_keeps_its_test_rows(tmp_path):
    given = {}
    for name, frame in tables().items():
        given[name] = tmp_path / f"{name}.csv"
        frame.write_csv(given[name])
    model = federation(given).train("standard", split="random", folder=tmp_path / "run", **QUICK)
    path = tmp_path / "run" / "config.toml"
    text = path.read_text()
    path.write_text(text[: text.index("[split]")] + text[text.index("[run]") if "[run]" in text else len(text) :])
    assert set(model.predict().ids) == held_out(federation_of_run(tmp_path / "run"))


def test_a_class_with_four_rows_is_in_every_part():
    """240 rows with 4 positives; half of the rows are missing at one of two parties."""
    random = np.random.default_rng(0)
    rare = random.permutation(240)[:4]
    label = np.where(np.isin(np.arange(240), rare), "1", "0")
    for seed in range(20):
        there = np.random.default_rng(seed).random((240, 2)) > 0.25
        given = {
            name: pl.DataFrame({"id": np.arange(240), name[0]: random.normal(size=240)}).filter(pl.Series(there[:, k]))
            for k, name in enumerate(("shop", "lab"))
        }
        bank = pl.DataFrame({"id": np.arange(240), "x": random.normal(size=240), "y": label})
        of = Federation.from_tables({"bank": bank, **given}, label="y")
        use = of.split(of.config.train.model_copy(update={"seed": seed}))
        positive = np.isin(of.alignment.ids.cast(pl.Int64).to_numpy(), rare)
        assert {TRAIN, VALIDATION, TEST} == set(use[positive].tolist())


def test_a_split_column_must_be_given_to_the_federation():
    with pytest.raises(ConfigError, match=r"column 'day' is read with the tables: give this split to Federation"):
        federation(tables()).train("standard", split={"kind": "time", "time": "day"}, **QUICK)
    with pytest.raises(TableError, match="name column 'dya', which is missing; did you mean 'day'"):
        Federation.from_tables(tables(), label="y", split={"kind": "time", "time": "dya"})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "group"}, 'kind = "group" needs the name of a column: group = "COLUMN"'),
        ({"kind": "time", "group": "x", "time": "t"}, 'group only applies to kind = "group", and kind is "time"'),
        ({"kind": "random", "parties": True}, "parties only applies to"),
        ({"kind": "groups"}, "split.kind"),
    ],
)
def test_inconsistent_split_settings_are_refused(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config.of({"split": values})
