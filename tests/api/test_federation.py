"""Build a federation from several tables: the active party, the label's party, and errors."""

import io
import re
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console

from anyparty import Federation
from anyparty.config import Config
from anyparty.core.types import Task
from anyparty.errors import (
    AlignmentError,
    AnypartyWarning,
    ConfigError,
    PredictionError,
    ResumeError,
    StorageError,
    TableError,
)
from anyparty.methods.schedules.flex import Flex
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.problem import balanced
from anyparty.problem.splits import TEST, TRAIN
from anyparty.tables.table import read_table
from anyparty.training.callbacks import Callback

N = 120


def tables(**labels: str) -> dict[str, pl.DataFrame]:
    """Create tables of two parties with the same ids; ``labels`` names a label column by party."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4))
    y = (x[:, 0] + x[:, 2] > 0).astype(int)
    ids = [f"u{i}" for i in range(N)]
    made = {
        "bank": pl.DataFrame({"id": ids, "a": x[:, 0], "b": x[:, 1]}),
        "shop": pl.DataFrame({"id": ids, "c": x[:, 2], "d": x[:, 3]}),
    }
    return {name: f.with_columns(pl.Series(labels[name], y)) if name in labels else f for name, f in made.items()}


def test_the_party_with_the_label_is_the_active_party():
    federation = Federation.from_tables(tables(shop="y"), label="y")
    assert federation.roster.active == "shop"
    assert federation.roster.blocks == ("bank", "shop")
    assert [party.labels for party in federation.roster.parties] == [False, True]


def test_a_party_may_hold_only_labels():
    frames = tables()
    frames["boss"] = pl.DataFrame({"id": frames["bank"]["id"], "y": ["yes", "no"] * (N // 2)})
    federation = Federation.from_tables(frames, label="y")
    assert federation.roster.active == "boss"
    assert federation.roster.blocks == ("bank", "shop")
    assert federation.train(epochs=1).predict({"bank": frames["bank"].head(3)}).answered.all()


def test_settings_may_exclude_the_columns_of_a_party():
    """Settings may declare a party without columns, as they must if parties run at separate sites."""
    config = Config.of({"federation": {"label": "y"}, "parties": {"bank": {"columns": False}, "shop": {}}})
    federation = Federation.from_config(config, tables(bank="y"))
    assert federation.roster.blocks == ("shop",)
    model = federation.train(epochs=1)
    assert model.members["bank"].prepare is None
    assert model.evaluate().asked == ("shop",)


@pytest.mark.parametrize(
    ("labels", "how", "error", "said"),
    [
        ("shop", {"label": "y", "active": "bank"}, TableError, "no label column 'y'; party 'shop' has it"),
        ("shop bank", {"label": "y", "active": "bank"}, TableError, "'shop' also holds the label column 'y'"),
        ("shop bank", {"label": "y"}, ConfigError, "'bank', 'shop' have the label column 'y': name the active party"),
        ("shop", {"label": "z"}, TableError, "no party's table has the label column 'z'"),
        ("shop", {"label": "yy"}, TableError, "label column 'yy'; check its name, federation.label; did you mean 'y'?"),
        ("shop", {"label": "yy", "active": "shop"}, TableError, "'yy'; no party has it; did you mean 'y'?"),
        ("shop", {}, ConfigError, "no label: name the column to predict"),
        ("shop", {"label": "y", "active": "shpo"}, ConfigError, "not among the parties; did you mean 'shop'"),
    ],
)
def test_ambiguous_or_missing_label_parties_are_refused(labels, how, error, said):
    with pytest.raises(error) as caught:
        Federation.from_tables(tables(**dict.fromkeys(labels.split(), "y")), **how)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"drop": {"shp": ["c"]}}, "drop: there is no party 'shp'; did you mean 'shop'?"),
        ({"types": {"bnk": {"a": "categorical"}}}, "types: there is no party 'bnk'; did you mean 'bank'?"),
        ({"id": {"bank": "id", "shop": "id", "labor": "id"}}, "id: there is no party 'labor'; known are: bank, shop"),
        ({"drop": {"shop": "cd"}}, "drop['shop']: expected a list of names, such as ['cd'], got 'cd'"),
        ({"id": {"bank": "id"}}, "id has no column for party 'shop'; name one for every party"),
    ],
)
def test_arguments_that_do_not_fit_the_tables_are_refused(how, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        Federation.from_tables(tables(shop="y"), label="y", **how)


def test_id_columns_may_differ_between_parties():
    frames = tables(shop="y")
    frames["bank"] = frames["bank"].rename({"id": "customer"})
    federation = Federation.from_tables(frames, label="y", id={"bank": "customer", "shop": "id"})
    assert federation.overlap.by_all == N


@pytest.mark.parametrize(("most", "widths"), [(3, (3, 3)), ({"shop": 4}, (N, 4))])
def test_max_levels_limits_the_levels_of_a_column(most, widths):
    kinds = {"code": "categorical"}
    frames = {name: frame.with_columns(code="k" + pl.int_range(N).cast(pl.String))
              for name, frame in tables(shop="y").items()}  # fmt: skip
    federation = Federation.from_tables(
        frames, label="y", types={"bank": kinds, "shop": kinds}, max_levels=most,
        drop={"bank": ["a", "b"], "shop": ["c", "d"]},
    )  # fmt: skip
    with pytest.warns(AnypartyWarning, match="max_levels"):
        model = federation.train(epochs=1, validation=0.0, test=0.0)
    assert tuple(model.members[name].prepare.width for name in ("bank", "shop")) == widths
    with pytest.raises(ConfigError, match=r"max_levels: there is no party 'shp'; did you mean 'shop'"):
        Federation.from_tables(frames, label="y", max_levels={"shp": 3})
    with pytest.raises(ConfigError, match=r"max_levels.*expected at least 2"):
        Federation.from_tables(frames, label="y", max_levels=1)


def test_a_misspelt_label_of_a_wide_table_does_not_list_all_columns():
    frames = tables(shop="y")
    frames["bank"] = pl.DataFrame({"id": frames["bank"]["id"], **{f"x{i:03d}": [1.0] * N for i in range(500)}})
    with pytest.raises(TableError, match=r"federation\.label; known are: c, d, id, x000, .* and 464 more$"):
        Federation.from_tables(frames, label="qqqqqq")


def test_the_errors_of_all_tables_are_reported_together():
    frames = tables(shop="y")
    frames["bank"] = frames["bank"].with_columns(a=pl.Series([f"{i} kg" for i in range(N)]))
    frames["shop"] = frames["shop"].with_columns(id=pl.lit("u1"))
    with pytest.raises(TableError) as caught:
        Federation.from_tables(frames, label="y")
    first, second = str(caught.value).splitlines()
    assert first.startswith("party 'bank', data frame: column 'a'")
    assert second.startswith("party 'shop', data frame: id column 'id'")


def test_a_table_of_an_unknown_party_is_refused():
    config = Config.of({"federation": {"label": "y"}, "parties": {"bank": {}}})
    with pytest.raises(ConfigError, match=r"tables: there is no party 'shop'"):
        Federation.from_config(config, tables(bank="y"))


def test_an_encoder_for_an_unknown_party_is_refused():
    with pytest.raises(ConfigError, match=r"encoder: there is no party 'shp'; did you mean 'shop'\?"):
        Federation.from_tables(tables(bank="y"), label="y").train(encoder={"shp": MLP()})


@pytest.mark.parametrize(("named", "said"), [
    ("lr", r"'lr' is not a setting of \[train\]: use optimizer=Optimizer\(lr=...\)"),
    ("learning_rate", r"'learning_rate' is not a setting of \[train\]: use optimizer=Optimizer\(lr=...\)"),
    ("hidden", r"'hidden' is not a setting of \[train\]: use encoder=MLP\(hidden=...\)"),
    ("embedding", r"'embedding' is not a setting of \[train\]: use parameters=\{'embedding': ...\}"),
    ("epoch", r"train: no setting 'epoch'; did you mean 'epochs'\?"),
])  # fmt: skip
def test_a_misplaced_setting_is_reported_with_its_correct_place(named, said):
    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(ConfigError, match=said):
        federation.train("laser", **{named: 1})


@pytest.mark.parametrize(("arguments", "said"), [
    ({"parameters": ["embedding"]}, r"parameters: expected a dict, got \['embedding'\]"),
    ({"schedule": "flex", "clock": 3}, r"clock: expected a dict, got 3"),
    ({"folder": ""}, r"folder: expected the name of a folder, such as \"runs/first\", got ''; leave it out"),
    ({"folder": 3}, "folder: expected the name of a folder, .*, got 3"),
])  # fmt: skip
def test_arguments_of_wrong_types_are_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(ConfigError, match=said):
        federation.train("laser", epochs=1, **arguments)
    assert not list(tmp_path.iterdir())


def test_tables_must_be_a_dict_by_party():
    with pytest.raises(ConfigError, match=r"tables: expected a dict, got \['a.csv'\]"):
        Federation.from_tables(["a.csv"], label="y")  # type: ignore[arg-type]


def test_resuming_needs_a_folder():
    with pytest.raises(ConfigError, match="resume = True needs the folder of the run"):
        Federation.from_tables(tables(shop="y"), label="y").train(epochs=1, resume=True)


def test_resuming_with_the_parties_in_another_order_is_refused(tmp_path):
    frames = tables(shop="y")
    Federation.from_tables(frames, label="y").train(folder=tmp_path, epochs=1)
    turned = Federation.from_tables(dict(reversed(frames.items())), label="y")
    with pytest.raises(ResumeError, match="another order: it was bank, shop, is shop, bank"):
        turned.train(folder=tmp_path, epochs=1, resume=True)


def test_a_second_label_column_may_be_dropped_or_declared():
    both = tables(shop="y", bank="y")
    assert Federation.from_tables(both, label="y", active="bank", drop={"shop": ["y"]}).roster.labelers == ("bank",)
    config = Config.of(
        {"federation": {"label": "y", "active": "bank"}, "parties": {"bank": {}, "shop": {"label": "y"}}}
    )
    assert Federation.from_config(config, both).roster.labelers == ("bank", "shop")


@pytest.mark.parametrize(
    ("federation", "own", "error", "said"),
    [
        (
            {"label": "y", "active": "bank"},
            {"shop": {"label": "d"}},
            TableError,
            "(data frame), which would be a feature beside its own label 'd': drop it there, or set label = 'y' in",
        ),
        (
            {"label": "y", "active": "bank"},
            {"bank": {"label": "a"}, "shop": {"label": "y"}},
            TableError,
            "'bank' also holds the label column 'y' (data frame), which would be a feature beside its own label 'a'",
        ),
        (
            {"label": "yy", "active": "bank"},
            {"bank": {"label": "y"}},
            ConfigError,
            "federation.label = 'yy' has no effect: the active party 'bank' has its own label, 'y'; remove one of",
        ),
        (
            {"label": "y", "active": "bank"},
            {"bank": {"label": "a", "drop": ["y"]}, "shop": {"drop": ["y"]}},
            ConfigError,
            "federation.label = 'y' has no effect: the active party 'bank' has its own label, 'a'",
        ),
        (
            {"label": "y"},
            {"shop": {"label": "d", "drop": ["y"]}},
            ConfigError,
            "party 'bank' has the label column 'y', party 'shop' has the label column 'd': name the active party",
        ),
        ({}, {"bank": {"label": "y"}, "shop": {"label": "y"}}, ConfigError, "'shop' have the label column 'y': name"),
    ],
)
def test_an_undeclared_second_label_column_is_refused(federation, own, error, said):
    config = Config.of({"federation": federation, "parties": {"bank": {}, "shop": {}} | own})
    with pytest.raises(error, match=re.escape(said)):
        Federation.from_config(config, tables(shop="y", bank="y"))


def test_a_label_with_a_single_class_is_refused():
    frames = tables()
    frames["bank"] = frames["bank"].with_columns(y=pl.lit("same"))
    with pytest.raises(TableError, match="class"):
        Federation.from_tables(frames, label="y").train(epochs=1)


@pytest.mark.parametrize(("rare", "named"), [("yes", "'yes'"), (2.5, "'2.5'")])
def test_a_training_set_with_one_class_lists_the_held_out_labels(rare, named):
    """The error's first part counts all labels; the rest says that the others are in validation and test rows."""
    frames = tables()
    common = "no" if rare == "yes" else 0.5
    frames["bank"] = frames["bank"].with_columns(y=pl.Series([rare] + [common] * (N - 1)))
    federation = Federation.from_tables(frames, label="y", split="random")
    said = f"the others, such as {named}, are all among the rows for validation and test: give another train.seed"
    with pytest.raises(TableError, match=f"all labels for training are .*; {said}"):
        federation.train(epochs=1, seed=0, validation=0.45, test=0.5)


def test_a_federation_describes_its_columns_and_its_task():
    federation = Federation.from_tables(tables(shop="y"), label="y")
    assert federation.predicted().startswith("task: classification, classes 0, 1; positive is 1")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(federation.reading)
    assert [line.count("number") for line in console.export_text().splitlines() if "number" in line] == [1] * 4
    assert federation.remarks is None


def test_a_class_that_is_read_as_missing_causes_a_warning():
    frames = tables()
    frames["bank"] = frames["bank"].with_columns(y=pl.Series(["yes", "None"] * (N // 2)))
    federation = Federation.from_tables(frames, label="y")
    with (
        pytest.warns(AnypartyWarning, match=r"60 of 120 cells .* are 'None' \(60\)"),
        pytest.raises(TableError, match=r"all labels for training are 'yes'; .* 60 of 120 cells .* are 'None' \(60\)"),
    ):
        federation.train(epochs=1)


def test_no_overlap_is_refused():
    frames = tables(bank="y")
    frames["shop"] = frames["shop"].with_columns(id=pl.lit("other ") + pl.col("id"))
    with pytest.raises(AlignmentError, match="no id is known to two parties"):
        _ = Federation.from_tables(frames, label="y").overlap


def test_the_split_depends_only_on_the_seed():
    federation = Federation.from_tables(tables(bank="y"), label="y")
    settings = federation.config.train
    use = federation.split(settings)
    assert (use == TEST).sum() == round(0.2 * N)
    assert (federation.split(settings) == use).all()
    assert (federation.split() == use).all()
    assert (federation.split(settings.model_copy(update={"seed": 1})) != use).any()


def test_rows_are_listed_with_their_ids_and_their_use():
    frames = tables(bank="y")
    frames["shop"] = frames["shop"].tail(70).sample(fraction=1, shuffle=True, seed=0)
    federation = Federation.from_tables(frames, label="y")
    found = federation.rows(seed=3, test=0.4)
    assert found.columns == ["id", "bank", "shop", "labelled", "use"]
    assert set(found.filter("shop")["id"]) == set(frames["shop"]["id"])
    settings = federation.config.train.model_copy(update={"seed": 3, "test": 0.4})
    assert found.filter(use="test")["id"].equals(federation.alignment.ids.filter(federation.split(settings) == TEST))
    model = federation.train("standard", seed=3, test=0.4, epochs=1)
    assert sorted(model.predict().ids) == sorted(found.filter(use="test")["id"])
    with pytest.raises(ConfigError, match="seeed"):
        federation.rows(seeed=3)


def test_standard_vfl_without_a_complete_row_is_refused():
    frames = tables(bank="y")
    frames["bank"], frames["shop"] = frames["bank"].head(70), frames["shop"].tail(70)
    frames["third"] = frames["bank"].head(40).select("id", e="a")
    federation = Federation.from_tables(frames, label="y")
    with pytest.raises(AlignmentError, match="trains on labelled rows that all parties have, and there is none"):
        federation.train("standard", epochs=1)


def test_balance_ignores_classes_without_training_rows():
    """As in scikit-learn, the training rows have a mean weight of 1."""
    y = ["often"] * 60 + ["rare"] * 20 + ["later"] * 20
    use = np.array([TRAIN] * 80 + [TEST] * 20, dtype=np.int8)
    table = read_table(pl.DataFrame({"id": range(100), "y": y}), party="bank", id="id", label="y")
    task = Task(kind="classification", classes=("often", "rare", "later"))
    weights = balanced(table, np.flatnonzero(use == TRAIN), task)
    assert weights[:2] == pytest.approx((80 / (2 * 60), 80 / (2 * 20)))


def test_balance_gives_each_class_the_same_total_weight():
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=(N, 2)), [str(i) for i in range(N)]
    y = np.where(np.arange(N) < 12, "rare", "often")
    frames = {"bank": pl.DataFrame({"id": ids, "a": x[:, 0], "y": y}), "shop": pl.DataFrame({"id": ids, "b": x[:, 1]})}
    federation = Federation.from_tables(frames, label="y")
    how = {"epochs": 30, "test": 0.0, "validation": 0.0, "optimizer": Optimizer(lr=0.01)}
    plain, even = federation.train(**how), federation.train(balance=True, **how)
    assert even.task.weights == pytest.approx((N / (2 * 108), N / (2 * 12)))
    assert plain.task.weights == ()
    answers = [model.predict(frames) for model in (plain, even)]
    chosen = [answer.labels().count("rare") / N for answer in answers]
    assert chosen[0] < 0.25
    assert chosen[1] > 0.35
    for answer in answers:  # the probabilities are those of the table, a tenth of whose rows are rare
        assert answer.scores[:, 1].mean().item() == pytest.approx(0.1, abs=0.05)
    assert (federation.split(even_settings(federation)) == TRAIN).all()


def even_settings(federation: Federation):
    return federation.config.train.model_copy(update={"test": 0.0, "validation": 0.0})


def test_an_unavailable_device_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="'cuda' cannot be used here"):
        Federation.from_tables(tables(bank="y"), label="y").train(device="cuda", epochs=1)


@pytest.mark.parametrize("name", ["", "..", "/x", "a/b", "a, b", "a=b", " a", "a\nb"])
def test_invalid_party_names_are_refused(name):
    rows = pl.DataFrame({"id": ["1", "2", "3"], "x": [1, 2, 3], "y": [0, 1, 0]})
    with pytest.raises(ConfigError, match="a party's name is text of 1 to 100 bytes"):
        Federation.from_tables({"bank": rows, name: rows.select("id", z="x")}, id="id", label="y")


def test_networks_and_optimizers_of_wrong_types_are_refused():
    rows = pl.DataFrame({"id": [str(n) for n in range(40)], "x": range(40), "y": [0, 1] * 20})
    federation = Federation.from_tables({"bank": rows, "shop": rows.select("id", z="x")}, id="id", label="y")
    with pytest.raises(ConfigError, match=r"party 'bank': encoder should be a function of \(inputs, outputs\)"):
        federation.train(epochs=1, encoder=5)
    with pytest.raises(ConfigError, match=r"party 'shop': optimizer should be an Optimizer, such as"):
        federation.train(epochs=1, optimizer={"shop": 5})


def test_balance_is_refused_for_regression():
    rows = pl.DataFrame({"id": [str(n) for n in range(40)], "x": range(40), "y": [n / 3 for n in range(40)]})
    federation = Federation.from_tables({"bank": rows, "shop": rows.select("id", z="x")}, id="id", label="y")
    with pytest.raises(ConfigError, match="balance = true weighs classes, and numbers are predicted here"):
        federation.train(epochs=1, balance=True)


def test_methods_and_callbacks_of_wrong_types_are_refused():
    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(ConfigError, match="method: expected a name, or a method such as"):
        federation.train(object(), epochs=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="watch: expected a Callback"):
        federation.train(epochs=1, watch=print)  # type: ignore[arg-type]


def test_an_unknown_method_of_a_callback_is_reported():
    class Typo(Callback):
        def on_epoch_ended(self, record):
            raise AssertionError

    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(ConfigError, match=r"nothing calls Typo.on_epoch_ended; did you mean 'on_epoch_end'\?"):
        federation.train(epochs=1, watch=Typo())


def test_a_schedule_object_as_an_argument_is_refused():
    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(ConfigError, match=r"schedule: expected a name, .*, got Flex.*; pass a schedule object as"):
        federation.train("standard", epochs=1, schedule=Flex())


def test_settings_may_be_given_as_a_file_name(tmp_path):
    file = tmp_path / "hosp.toml"
    file.write_text('federation.label = "y"\nparties.bank.table = "bank.csv"\nparties.shop.table = "shop.csv"\n')
    for name, frame in tables(bank="y").items():
        frame.write_csv(tmp_path / f"{name}.csv")
    for named in (file, str(file)):
        assert Federation.from_config(named).roster.names == ("bank", "shop")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such settings file"):
        Federation.from_config("nowhere.toml")
    with pytest.raises(ConfigError, match=r"expected the name of a settings file, or config\.load\(.*got dict; Config"):
        Federation.from_config({"federation": {}})  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", ["", "run"])
def test_a_file_as_the_run_folder_is_refused(tmp_path, inside):
    file = tmp_path / "lab.csv"
    file.write_text("id")
    federation = Federation.from_tables(tables(bank="y"), label="y")
    with pytest.raises(StorageError, match=r"lab\.csv: this is a file; name a folder$"):
        federation.train(epochs=1, folder=str(file / inside))
    assert file.read_text() == "id"


def test_prediction_tables_need_the_name_of_their_party():
    model = Federation.from_tables(tables(bank="y"), label="y").train(epochs=1)
    for wrong in (tables()["bank"], "bank.csv"):
        with pytest.raises(PredictionError, match=r"expected a table by the name of its party, \{'bank': \.\.\.\}"):
            model.predict(wrong)


def test_unused_labels_of_a_second_party_cause_a_warning():
    federation = Federation.from_config(
        Config.of({"federation": {"label": "y", "active": "bank"}, "parties": {"bank": {}, "shop": {"label": "y"}}}),
        tables(bank="y", shop="y"),
    )
    for name, parameters in (("laser", {}), ("plug", {})):
        with pytest.warns(
            AnypartyWarning, match="labels of party 'shop' are not used: only those of the active party 'bank'"
        ):
            federation.train(name, parameters=parameters, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnypartyWarning)
        for more in ({}, {"pretrain": "simsiam"}):
            federation.train("laser", parameters={"hosting": "labelers", **more}, epochs=1)


def test_predicting_an_empty_row_causes_a_warning():
    model = Federation.from_tables(tables(bank="y"), label="y").train(epochs=1)
    empty = pl.DataFrame({"id": ["u1", "u2"], "c": [None, 1.0], "d": [None, None]})
    with pytest.warns(AnypartyWarning, match="party 'shop', data frame: 1 of 2 rows are empty except for the id"):
        model.predict({"shop": empty})


def test_laser_regression_has_a_hidden_layer_by_default():
    """A linear head on a mean cannot learn this label, which is the sum of four columns at several parties."""
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(400, 4)), [f"u{n}" for n in range(400)]
    frames = {name: pl.DataFrame({"id": ids, "x": x[:, k]}) for k, name in enumerate("abcd")}
    frames["a"] = frames["a"].with_columns(y=x.sum(axis=1))
    federation = Federation.from_tables(frames, label="y")
    off = [
        federation.train("laser", parameters=parameters, epochs=60).evaluate().overall["rmse"]
        for parameters in ({}, {"head_hidden": ()})
    ]
    assert off[0] < off[1] / 1.5


def test_the_repr_of_public_objects_holds_no_row():
    """Ids and cells of customers must not appear in logs."""
    bank = pl.DataFrame({"id": [f"secret{n}" for n in range(20)], "income": range(1000, 1020), "y": ["no", "yes"] * 10})
    of = Federation.from_tables({"bank": bank, "shop": bank.drop("y")}, label="y")
    assert repr(of) == "<Federation of bank: 20 rows, shop: 20 rows; 'bank' leads; task: classification>"
    assert repr(of.tables["bank"]) == "<Table of party 'bank' (data frame): 20 rows, 1 columns, and the label>"
