"""Labels that are partly or wholly empty: train from files, then predict with any set of parties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.imputation import impute, log_likelihood
from anyparty.api.model import Model
from anyparty.errors import PredictionError, TableError
from anyparty.networks.encoders import MLP
from tests.conftest import Call, write_tables
from tests.worlds import Ends

SMALL = {"embedding": 4, "top": 2, "hidden": (8,), "head_hidden": (8,), "samples": 3, "predict_samples": 6}
PRETRAINED = ["pretrain"] * 2 + ["train"] * 3
METHODS = {
    "false-vfl-1": (["method.top=2", "method.samples=3", "method.pretrain_epochs=2"], PRETRAINED),
    "false-vfl-2": (["method.top=2", "method.samples=3", "method.pretrain_epochs=2"], PRETRAINED),
    "fedhssl": (["method.pretrain_epochs=2"], PRETRAINED),
    "laser": (
        ["method.unlabelled=pseudo", "method.unlabelled_epochs=2", "method.sure=0.5", "train.patience=9"],
        ["train"] * 3 + ["pseudo"] * 2,
    ),
}


def blank(work: Path, keep: int) -> pl.DataFrame:
    """Empty the labels of bank.csv except for the first ``keep`` rows that the shop has too."""
    write_tables(work)
    bank = pl.read_csv(work / "bank.csv")
    place = pl.int_range(pl.len())
    known = (place >= 30) & (place < 30 + keep)
    bank = bank.with_columns(pl.when(known).then("default").alias("default"))
    bank.write_csv(work / "bank.csv")
    return bank


@pytest.mark.parametrize("name", METHODS)
def test_partly_labelled_files_can_be_trained_on(work: Path, call: Call, name: str) -> None:
    """Training works, and every subset of the parties gets predictions."""
    bank = blank(work, keep=40)
    assert bank["default"].null_count() == 60
    settings, stages = METHODS[name]
    changes = [word for each in (*settings, "method.embedding=4") for word in ("--set", each)]
    shown = call("train", "credit.toml", "--set", f"method.name={name}", *changes, "--run", "run")
    assert shown.exit_code == 0, shown.output
    history = json.loads((work / "run" / "record.json").read_text())["history"]
    assert [record["stage"] for record in history] == stages
    assert all(record["pseudo_labels"] > 0.5 for record in history if record["stage"] == "pseudo")
    for parties, rows in (("bank", 100), ("shop", 90), ("bank,shop", 120)):
        said = call("predict", "run", "--parties", parties, "--out", "answers.csv")
        assert said.exit_code == 0, said.output
        answers = pl.read_csv(work / "answers.csv")
        assert answers["prediction"].is_in(["yes", "no"]).sum() == rows
        assert set(" ".join(answers["parties"].drop_nulls()).split()) == set(parties.split(","))


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, pl.DataFrame]:
    """Return two tables whose label column is empty."""
    blank(tmp_path, keep=0)
    return {name: pl.read_csv(tmp_path / f"{name}.csv") for name in ("bank", "shop")}


def train(tables: dict[str, pl.DataFrame], method: str = "false-vfl-1", **more: Any) -> Model:
    made = Federation.from_tables(tables, id="customer", label="default")
    return made.train(method, parameters=SMALL, encoder=MLP(hidden=(8,)), epochs=2, **more)


class TestNoLabelsAtAll:
    @pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
    def test_without_labels_only_stage_1_runs_and_prediction_is_refused(
        self, empty: dict[str, pl.DataFrame], name: str
    ) -> None:
        model = train(empty, name)
        assert {record["stage"] for record in model.history} == {"pretrain"}
        for ask in (model.predict, model.evaluate):
            with pytest.raises(PredictionError, match="no row had a label in training, so the model cannot predict"):
                ask(empty)

    def test_a_loaded_model_without_labels_can_impute(self, empty: dict[str, pl.DataFrame], tmp_path: Path) -> None:
        train(empty).save(tmp_path / "model")
        model = Model.load(tmp_path / "model")
        assert np.isfinite(impute(model, empty, "shop").mean).all()
        assert log_likelihood(model, empty)["log_likelihood"].is_finite().all()

    def test_other_methods_refuse_tables_without_labels(self, empty: dict[str, pl.DataFrame]) -> None:
        made = Federation.from_tables(empty, id="customer", label="default")
        for name in ("fedhssl", "laser"):
            with pytest.raises(TableError, match="no row for training has a label"):
                made.train(name, epochs=1)

    def test_commands_train_without_labels_and_refuse_to_predict(self, work: Path, call: Call) -> None:
        blank(work, keep=0)
        shown = call("train", "credit.toml", "--set", "method.name=false-vfl-1", "--run", "run")
        assert shown.exit_code == 0, shown.output
        assert "No row has a label" in shown.output
        refused = call("predict", "run")
        assert refused.exit_code != 0
        assert "no row had a label in training" in refused.output


@pytest.mark.parametrize(("keep", "said"), [(100, True), (40, False)])
def test_stage_1_reports_that_it_saw_only_labelled_rows(work: Path, keep: int, said: bool) -> None:
    if keep == 100:
        write_tables(work)
    else:
        blank(work, keep)
    bank = pl.read_csv(work / "bank.csv")
    shop = pl.read_csv(work / "shop.csv").filter(pl.col("customer").is_in(bank["customer"].implode()))
    ends = Ends()
    train({"bank": bank, "shop": shop}, watch=ends)
    assert ("every row has a label, so that pretraining saw only labelled rows" in ends.reasons["pretrain"]) == said
    assert ends.reasons["train"] == "all epochs done"


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((), "every row is held by bank and shop: sets of parties without these are not learnt"),
        (("shop",), "every row is held by bank: sets of parties without these are not learnt"),
        (("shop", "bank"), None),
    ],
)
def test_stage_1_reports_sets_of_parties_without_rows(work: Path, without: tuple[str, ...], said: str | None) -> None:
    write_tables(work)
    both = {name: pl.read_csv(work / f"{name}.csv") for name in ("bank", "shop")}
    ids = sorted(set(both["bank"]["customer"]) & set(both["shop"]["customer"]))
    lost = {"shop": ids[:5], "bank": ids[5:9]}
    for name, table in both.items():
        keep = [one for one in ids if name not in without or one not in lost[name]]
        both[name] = table.filter(pl.col("customer").is_in(keep))
    ends = Ends()
    train(both, watch=ends)
    assert (said or "all epochs done") in ends.reasons["pretrain"]
    assert ("are not learnt" in ends.reasons["pretrain"]) == (said is not None)
