"""The rows that training may use: ``train.rows`` selects by the parties that hold them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from anyparty.alignment.overlap import Overlap
from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run, federation_of_run
from anyparty.config import Config
from anyparty.errors import ConfigError, TableError
from anyparty.experiments.compare import compare
from anyparty.networks.encoders import MLP
from anyparty.problem.splits import TEST, TRAIN, UNUSED, VALIDATION
from anyparty.training.callbacks import Callback

N = 240
QUICK = {"epochs": 2, "patience": None, "encoder": MLP(hidden=())}


class Stages(Callback):
    """The number of training rows of each stage."""

    def __init__(self):
        self.rows = {}

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        self.rows[stage] = rows


def tables(classes=2):
    """Return tables of three parties; the label party's rows are partly without labels."""
    random = np.random.default_rng(5)
    ids = np.arange(N)
    y = pl.Series("y", ids % classes).set(pl.Series(ids % 5 == 0), None)
    whole = {
        "bank": pl.DataFrame({"id": ids, "income": random.normal(size=N), "y": y}),
        "shop": pl.DataFrame({"id": ids, "spent": random.normal(size=N)}),
        "clinic": pl.DataFrame({"id": ids, "pulse": random.normal(size=N)}),
    }
    return {name: frame.filter(pl.Series(random.random(N) < 0.7)) for name, frame in whole.items()}


def federation(given=None, **how):
    return Federation.from_tables(given or tables(), label="y", active="bank", **how)


def holders(given):
    """Return each id's parties."""
    return {n: {name for name, frame in given.items() if n in frame["id"]} for n in range(N)}


def kind_of(given, kind):
    """Return the ids of a kind, by the definition."""
    wanted = {
        "any": bool,
        "active": lambda there: "bank" in there,
        "all": lambda there: len(there) == 3,
    }
    return {n for n, there in holders(given).items() if wanted[kind](there)}  # fmt: skip


def same(one, other):
    """Return whether two models predict the same numbers for the test rows."""
    return np.array_equal(one.predict().scores, other.predict().scores, equal_nan=True)


def used(of, rows, code):
    use = of.split(of.config.train.model_copy(update={"rows": rows}))
    return set(of.alignment.ids.filter(pl.Series(use == code)).cast(int))


@pytest.mark.parametrize("kind", ["any", "active", "all"])
def test_only_training_rows_are_restricted_to_the_kind(kind):
    given = tables()
    of = federation(given)
    assert used(of, kind, TRAIN) == used(of, "any", TRAIN) & kind_of(given, kind)
    assert used(of, kind, UNUSED) == used(of, "any", TRAIN) - kind_of(given, kind)
    for code in (VALIDATION, TEST):
        assert used(of, kind, code) == used(of, "any", code) != set()


@pytest.mark.parametrize("kind", ["any", "active", "all"])
def test_stages_with_and_without_labels_train_on_these_rows(kind):
    given, stages = tables(), Stages()
    of = federation(given)
    of.train("laser", rows=kind, watch=stages, parameters={"pretrain": "simsiam"}, **QUICK)
    labelled = set(given["bank"].drop_nulls("y")["id"])
    assert stages.rows["train"] == len(used(of, kind, TRAIN) & labelled)
    allowed = used(of, "any", TRAIN) | used(of, "any", VALIDATION)
    assert stages.rows["pretrain"] in {len(used(of, kind, TRAIN)), len(allowed & kind_of(given, kind))}
    assert len(used(of, kind, TRAIN)) > stages.rows["train"]


def test_the_default_kind_of_rows_is_any():
    of = federation()
    assert of.config.train.rows == "any"
    assert same(of.train("laser", **QUICK), of.train("laser", rows="any", **QUICK))


def test_the_kind_does_not_affect_a_method_that_needs_all_parties():
    of = federation()
    models = [of.train("standard", rows=kind, **QUICK) for kind in ("any", "active", "all")]
    assert all(same(model, models[0]) for model in models)
    assert not same(*(of.train("laser", rows=kind, **QUICK) for kind in ("any", "all")))


def test_training_equals_that_on_the_listed_rows():
    given = tables()
    of = federation(given)
    parties = {name: {"scale": False} for name in given}
    of = replace(of, config=of.config.model_copy(update={"parties": Config.of({"parties": parties}).parties}))
    labelled = set(given["bank"].drop_nulls("y")["id"])
    parts = {"train": used(of, "all", TRAIN) & labelled, "validation": used(of, "any", VALIDATION),
             "test": used(of, "any", TEST)}  # fmt: skip
    listed = of.train("laser", split={part: sorted(ids) for part, ids in parts.items()}, **QUICK)
    kind = of.train("laser", rows="all", **QUICK)
    assert same(kind, listed)


@pytest.mark.filterwarnings("ignore:clinic shares no row")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({**tables(), "clinic": tables()["clinic"].with_columns(pl.col("id") + 10_000)}, "no row with a label"),
        ({**tables(3), "shop": tables(3)["shop"].filter(pl.col("id") % 3 != 2)}, "no row of class '2'"),
    ],
)
def test_a_kind_without_a_labelled_row_of_each_class_is_refused(given, sentence):
    of = federation(given)
    with pytest.raises(
        TableError, match=f"train.rows = 'all' leaves {sentence} for training; write train.rows = 'any'"
    ):
        of.train("laser", rows="all", **QUICK)


def test_class_weights_use_only_rows_of_the_kind():
    given = tables()
    given["shop"] = given["shop"].filter((pl.col("id") % 2 == 0) | (pl.col("id") < 60))
    of = federation(given)
    weights = {kind: of.train("laser", rows=kind, balance=True, **QUICK).task.weights for kind in ("any", "all")}
    bank = given["bank"].drop_nulls("y").filter(pl.col("id").is_in(used(of, "all", TRAIN)))
    counts = [bank.filter(pl.col("y") == c).height for c in (0, 1)]
    assert weights["all"] == pytest.approx([sum(counts) / (2 * count) for count in counts])
    assert weights["all"] != weights["any"]


def test_an_unknown_kind_names_the_kinds():
    with pytest.raises(ConfigError, match=r"train: rows: .*'any', 'active' or 'all'"):
        federation().train("laser", rows="both", **QUICK)


def test_a_run_finds_its_rows_again_and_records_the_counts(tmp_path):
    given = {}
    for name, frame in tables().items():
        given[name] = tmp_path / f"{name}.csv"
        frame.write_csv(given[name])
    of = federation(given)
    model = of.train("laser", rows="all", folder=tmp_path / "run", **QUICK)
    again = federation_of_run(tmp_path / "run")
    assert again.config.train.rows == "all"
    assert used(again, "all", TRAIN) == used(of, "all", TRAIN)
    assert evaluate_run(tmp_path / "run").to_json() == model.evaluate().to_json()


def test_the_overlap_counts_each_kind():
    given = tables()
    overlap = federation(given).overlap
    labelled = set(given["bank"].drop_nulls("y")["id"])
    ids = {kind: kind_of(given, kind) for kind in ("any", "active", "all")}
    assert overlap.kinds == {kind: (len(rows), len(rows & labelled)) for kind, rows in ids.items()}
    assert Overlap.from_json(overlap.to_json()) == overlap


def test_a_label_party_without_columns_counts_its_own_rows():
    given = tables()
    given["bank"] = given["bank"].drop("income")
    of = federation(given)
    assert of.overlap.kinds["all"][0] == len(kind_of(given, "all")) < of.overlap.by_all
    assert used(of, "all", TRAIN) == used(of, "any", TRAIN) & kind_of(given, "all")


def test_compare_accepts_the_kind_of_rows():
    found = compare(federation(), ["laser", "standard"], seeds=1, missing=[0.0, 0.3], rows="all", epochs=1)
    assert not found.failed
