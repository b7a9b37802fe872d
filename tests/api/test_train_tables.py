"""Train a model from tables: which rows may be used for what, and the error messages."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from anyparty.api.federation import Federation
from anyparty.api.runs import model_for_run
from anyparty.config import Config, TrainSettings
from anyparty.core.storage import read_json
from anyparty.errors import AnypartyWarning, ConfigError, Diverged, ModelError, ResumeError
from anyparty.methods.method_registry import method, settings_of
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.splits import TEST, TRAIN, VALIDATION
from anyparty.training.callbacks import Callback
from tests import worlds

SETTINGS = {"epochs": 3, "batch_size": 16, "seed": 3, "validation": 0.2, "test": 0.3, "keep": "last"}
SMALL = {"encoder": MLP(hidden=(6,)), "parameters": {"embedding": 4}}


def tables(rows=90, seed=0):
    """Create "bank" with ids 0..69 and the label, and "shop" with ids 20..89, a categorical column and gaps."""
    random = np.random.default_rng(seed)
    income, visits = random.normal(size=(2, rows))
    town = random.choice(["Ulm", "Bonn", "Kiel"], rows)
    label = np.where(income + visits > 0, "yes", "no")
    ids = np.arange(rows)
    bank = pl.DataFrame({"id": ids, "income": income, "age": random.integers(18, 90, rows), "bad": label})
    shop = pl.DataFrame({"id": ids, "visits": visits, "town": town})
    bank = bank.with_columns(pl.when(pl.col("id") % 7 == 1).then(None).otherwise(pl.col("age")).alias("age"))
    return {"bank": bank[:70], "shop": shop[20:].sample(fraction=1, shuffle=True, seed=1)}


def federation(given=None, **how):
    return Federation.from_tables(given or tables(), label="bad", **how)


def train(of=None, name="laser", **settings):
    return (of or federation()).train(name, **SMALL | SETTINGS | settings)


def weights(model):
    return worlds.weights({name: member.state for name, member in model.members.items()})


def prepared(model):
    return {name: member.prepare.to_json() for name, member in model.members.items()}


def changed(of, use, **columns):
    """Change these columns' cells in the rows of one use; leave the rest of the tables unchanged."""
    rows = of.split(TrainSettings(**SETTINGS)) == use
    ids = set(of.alignment.ids.filter(pl.Series(rows)).to_list())
    assert len(ids) > 10
    within = pl.col("id").cast(pl.String).is_in(list(ids))
    return {
        name: table.with_columns(
            pl.when(within).then(expression).otherwise(pl.col(column)).alias(column)
            for column, expression in columns.items()
            if column in table.columns
        )
        for name, table in tables().items()
    }


@pytest.mark.filterwarnings("ignore:.* cells far from all others")
class TestHeldOutRows:
    WILD = {"income": pl.lit(1e4), "visits": pl.lit(-1e4), "age": pl.lit(None), "town": pl.lit("Atlantis")}
    LABELS = {"bad": pl.lit("yes")}  # a stratified split would depend on them

    @pytest.mark.parametrize(("split", "more"), [("stratified", {}), ("random", LABELS)])
    def test_test_rows_do_not_affect_training_or_preprocessing(self, split, more):
        """Test rows may hold any cells and labels without changing a bit of the weights, means or lists of levels."""
        of = federation(split=split)
        other = federation(changed(of, TEST, **self.WILD, **more), split=split)
        assert np.array_equal(of.split(TrainSettings(**SETTINGS)), other.split(TrainSettings(**SETTINGS)))
        one, two = train(of), train(other)
        assert prepared(one) == prepared(two)
        assert worlds.same_bits(weights(one), weights(two))
        assert [r["validation"] for r in one.history] == [r["validation"] for r in two.history]

    def test_validation_rows_do_not_affect_training_or_preprocessing(self):
        of = federation(split="random")
        other = federation(changed(of, VALIDATION, **self.WILD, **self.LABELS), split="random")
        one, two = train(of), train(other)
        assert prepared(one) == prepared(two)
        assert worlds.same_bits(weights(one), weights(two))
        assert [r["validation"] for r in one.history] != [r["validation"] for r in two.history]

    def test_held_out_rows_do_not_affect_the_mean_and_scale_of_the_label(self):
        of = federation()
        tests = pl.Series(of.split(TrainSettings(**SETTINGS)) == TEST)
        wild = pl.col("id").cast(pl.String).is_in(of.alignment.ids.filter(tests).to_list())
        models = []
        for factor in (1e3, 1.0):
            number = pl.col("id") * 1.5 * pl.when(wild).then(factor).otherwise(1.0)
            given = tables() | {"bank": tables()["bank"].with_columns(number.alias("bad"))}
            models.append(train(Federation.from_tables(given, label="bad", task="regression")))
        assert models[0].task == models[1].task
        assert models[0].task.mean > 0
        assert worlds.same_bits(weights(models[0]), weights(models[1]))

    def test_training_rows_affect_training_and_preprocessing(self):
        """Verify the two tests above: the same change to training rows does change the model."""
        of = federation()
        other = federation(changed(of, TRAIN, income=pl.col("income").abs(), visits=pl.col("visits") ** 2))
        one, two = train(of), train(other)
        assert prepared(one) != prepared(two)
        assert not worlds.same_bits(weights(one), weights(two))

    def test_the_order_of_rows_in_a_file_does_not_matter(self):
        given = tables()
        shuffled = {name: table.sample(fraction=1, shuffle=True, seed=5) for name, table in given.items()}
        one, two = train(federation(given)), train(federation(shuffled))
        for name, tensor in weights(one).items():  # sums are taken in another order, so means differ in their last bits
            assert torch.allclose(tensor, weights(two)[name], atol=1e-5), name

    def test_held_out_rows_are_the_test_rows(self):
        model = train()
        evaluation = model.evaluate()
        use = federation().split(TrainSettings(**SETTINGS))
        assert evaluation.overall["rows"] == (use == TEST).sum()


class TestRefusals:
    def test_diverged_training_is_reported(self):
        with pytest.raises(Diverged, match=r"epoch \d+, batch \d+.*learning rate"):
            train(optimizer=Optimizer(name="sgd", lr=1e30), epochs=20)

    @pytest.mark.parametrize("party", ["bank", "shop"])
    @pytest.mark.parametrize("name", ["laser", "combinatorial"])
    def test_a_network_of_the_wrong_width_is_refused(self, name, party):
        """The error is raised in the party's own process, before any message is sent."""
        with pytest.raises(ConfigError, match=rf"party '{party}': its encoder should give \[.*4\], it gives \[.*9\]"):
            train(name=name, encoder={party: lambda inputs, _: nn.Linear(inputs, 9)})

    def test_a_network_for_an_unknown_party_is_refused(self):
        with pytest.raises(ConfigError, match="there is no party 'shpo'; did you mean 'shop'"):
            train(encoder={"shpo": MLP()})

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"epochs": 0}, "epochs"),
            ({"epoch": 3}, "no setting 'epoch'; did you mean 'epochs'"),
            ({"validation": 0.6, "test": 0.5}, "leave no rows to train on"),
            ({"metric": "acuracy"}, "no metric 'acuracy'; did you mean 'accuracy'"),
            ({"metric": "rmse"}, "rmse"),
            ({"device": "abacus"}, "device"),
            ({"batches": "sorted"}, "batches"),
        ],
    )
    def test_invalid_settings_are_refused(self, settings, sentence):
        with pytest.raises(ConfigError, match=sentence):
            train(**settings)

    @pytest.mark.parametrize(
        ("name", "parameters", "sentence"),
        [
            ("lazer", {}, "no method 'lazer'; did you mean 'laser'"),
            ("laser", {"embeding": 3}, "no parameter 'embeding'; did you mean 'embedding'"),
            ("laser", {"embedding": "wide"}, "embedding"),
        ],
    )
    def test_invalid_methods_and_parameters_are_refused(self, name, parameters, sentence):
        with pytest.raises(ConfigError, match=sentence):
            train(name=name, parameters=parameters)

    def test_parameters_beside_a_method_object_are_refused(self):
        """They would be ignored."""
        with pytest.raises(ConfigError, match=r"parameters \('embedding'\) only apply to a method's name"):
            federation().train(method("laser", embedding=4), parameters={"embedding": 8}, **SETTINGS)

    def test_given_parameters_override_those_of_the_settings(self):
        settings = {"federation": {"label": "bad"}, "parties": {"bank": {}, "shop": {}},
                    "method": {"name": "plug", "embedding": 4, "dropout": 0.5}}  # fmt: skip
        model = Federation.from_config(Config.of(settings), tables()).train(parameters={"embedding": 3}, **SETTINGS)
        assert model.named == settings_of(method("plug", embedding=3, dropout=0.5), with_defaults=True)


class Stop(Exception):  # noqa: N818
    pass


class Stops(Callback):
    def __init__(self, at=3):
        self.at = at

    def on_epoch_end(self, record):
        if record["epoch"] == self.at:
            raise Stop


class StopsAtTheEnd(Callback):
    def on_run_end(self, status, evaluation, error):
        raise Stop


class TestResuming:
    def run(self, folder, of=None, **settings):
        return train(of, folder=folder, epochs=6, checkpoint_every=2, patience=None, **settings)

    def test_a_run_resumes_from_its_folder(self, tmp_path):
        whole = self.run(tmp_path / "whole")
        with pytest.raises(Stop):
            self.run(tmp_path / "run", watch=Stops())
        resumed = self.run(tmp_path / "run", resume=True)
        assert worlds.same_bits(weights(whole), weights(resumed))
        assert [record["epoch"] for record in resumed.history] == [1, 2, 3, 4, 5, 6]

    def test_a_twice_interrupted_run_records_each_epoch_once(self, tmp_path):
        for at, resume in ((7, False), (5, True)):  # both times the last checkpoint is that of the fourth epoch
            with pytest.raises(Stop):
                train(None, folder=tmp_path, epochs=9, checkpoint_every=4, watch=Stops(at), resume=resume)
        assert [each["epoch"] for each in read_json(tmp_path / "record.json")["history"]] == [1, 2, 3, 4, 5]

    def test_resuming_with_other_settings_is_refused(self, tmp_path):
        with pytest.raises(Stop):
            self.run(tmp_path, watch=Stops())
        with pytest.raises(
            ResumeError,
            match=r"^cannot resume, other settings: setting train.batch_size: was 16, is 8; restore them",
        ):
            self.run(tmp_path, resume=True, batch_size=8)

    def test_resuming_with_other_tables_is_refused(self, tmp_path):
        with pytest.raises(Stop):
            self.run(tmp_path, watch=Stops())
        with pytest.raises(ResumeError, match=r"tables changed since the run began: party shop"):
            self.run(tmp_path, of=federation(tables() | {"shop": tables(seed=4)["shop"]}), resume=True)

    def test_resuming_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(ResumeError, match="no run to resume"):
            self.run(tmp_path, resume=True)

    def test_a_folder_with_a_run_is_not_overwritten(self, tmp_path):
        self.run(tmp_path)
        with pytest.raises(
            ResumeError,
            match=r"holds a run already: resume it .*resume=True.*folder=\.\.\.",
        ):
            self.run(tmp_path)

    @pytest.mark.parametrize("record", [None, "{}"])
    def test_a_folder_with_a_saved_model_is_not_overwritten(self, tmp_path, record):
        """A stopped run there would present the model as its own; in a kit, a record may lie beside the model."""
        train(epochs=1).save(tmp_path)
        before = (tmp_path / "model.json").read_bytes()
        if record is not None:
            (tmp_path / "record.json").write_text(record)
        with pytest.raises(ConfigError, match=r"already holds a model \(model\.json\).* or move the model"):
            self.run(tmp_path)
        assert (tmp_path / "model.json").read_bytes() == before
        assert not (tmp_path / "config.toml").exists()

    def test_another_model_is_not_taken_for_that_of_a_stopped_run(self, tmp_path):
        with pytest.raises(Stop):
            self.run(tmp_path / "run", watch=Stops())
        train(epochs=1).save(tmp_path / "other")
        shutil.copytree(tmp_path / "other", tmp_path / "run", dirs_exist_ok=True)
        with pytest.raises(ModelError, match="this run has not finished; resume it"):
            model_for_run(tmp_path / "run")
        finished = self.run(tmp_path / "run", resume=True)
        assert worlds.same_bits(weights(model_for_run(tmp_path / "run")), weights(finished))
        with pytest.raises(Stop):  # the run fails after its model is written
            self.run(tmp_path / "run", resume=True, watch=StopsAtTheEnd())
        assert read_json(tmp_path / "run" / "record.json")["status"] == "failed"
        assert model_for_run(tmp_path / "run").best_epoch == finished.best_epoch

    @pytest.mark.parametrize("left", ["", '{"format": 1, "hist', "\0" * 40], ids=["empty", "cut", "zeros"])
    def test_a_truncated_record_is_replaced_on_resume(self, tmp_path, left):
        whole = self.run(tmp_path / "whole")
        with pytest.raises(Stop):
            self.run(tmp_path / "run", watch=Stops())
        record = tmp_path / "run" / "record.json"
        record.write_text(left)
        with pytest.raises(ResumeError, match="holds a run already: resume it"):
            self.run(tmp_path / "run")
        with pytest.warns(AnypartyWarning, match=r"record\.json: truncated, for example by a power failure; "), \
             pytest.raises(Stop):  # fmt: skip
            self.run(tmp_path / "run", resume=True, watch=Stops(5))
        assert [each["epoch"] for each in read_json(record)["history"]] == [1, 2, 3, 4, 5]
        resumed = self.run(tmp_path / "run", resume=True)
        assert worlds.same_bits(weights(whole), weights(resumed))
        assert read_json(record)["status"] == "done"

    @pytest.mark.parametrize("draws", [None, 1, 3])
    def test_a_run_of_other_random_numbers_is_not_resumed(self, tmp_path, draws):
        """Version 0.1 wrote no format of random numbers. The model of such a run predicts as before."""
        finished = self.run(tmp_path / "run")
        record = tmp_path / "run" / "record.json"
        values = read_json(record) | {"draws": draws}
        record.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
        before = record.read_bytes()
        with pytest.raises(
            ResumeError, match=f"random numbers of format {draws or 1}, .* draws format 2, .* train again"
        ):
            self.run(tmp_path / "run", resume=True)
        assert record.read_bytes() == before
        assert worlds.same_bits(weights(model_for_run(tmp_path / "run")), weights(finished))


class TestSingleParty:
    def test_a_single_party_trains_evaluates_and_predicts(self, tmp_path):
        of = federation({"bank": tables()["bank"]})
        for name in ("laser", "local", "standard", "combinatorial", "plug", "ensemble"):
            model = train(of, name)
            assert model.evaluate().overall["coverage"] == 1.0
            assert model.predict({"bank": tables()["bank"]}).answered.all()


def test_a_method_with_a_user_defined_head_trains():
    model = federation().train(method("laser", embedding=4, make_head=nn.Linear), encoder=MLP(hidden=(5,)), **SETTINGS)
    assert model.named is None
    assert model.evaluate().overall["coverage"] == 1.0
