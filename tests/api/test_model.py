"""A trained model: the parties that take part in an answer; saving and loading restore it exactly or raise an error."""

import inspect
import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import anyparty
from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.artifacts.model_files import write_manifest
from anyparty.config import Config
from anyparty.core.types import Task
from anyparty.errors import (
    AnypartyError,
    AnypartyWarning,
    ConfigError,
    ModelError,
    PredictionError,
    StorageError,
    TableError,
)
from anyparty.methods.method_registry import METHODS, method
from anyparty.networks.encoders import LSTM, MLP
from tests import worlds

IDS = {"bank": range(60), "shop": range(20, 80), "lab": [*range(30, 70), *range(80, 90)]}
SETTINGS = {"epochs": 2, "batch_size": 16, "validation": 0.0, "test": 0.2}


def tables():
    """Create three parties with overlapping ids: 0-19 only at bank, 30-59 at all three, 80-89 only at lab."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 90))
    frames = {
        "bank": pl.DataFrame({"id": np.arange(90), "income": x[0], "bad": np.where(x.sum(0) > 0, "yes", "no")}),
        "shop": pl.DataFrame({"id": np.arange(90), "visits": x[1], "town": random.choice(["Ulm", "Bonn"], 90)}),
        "lab": pl.DataFrame({"id": np.arange(90), "iron": x[2], "zinc": x[0] * x[1], "lead": x[1] - x[2]}),
    }
    return {name: frame.filter(pl.col("id").is_in(list(IDS[name]))) for name, frame in frames.items()}


def trained(name="laser", encoder=None, **parameters):
    made = Federation.from_tables(tables(), label="bad")
    parameters = parameters if name == "boosting" else {"embedding": 4, **parameters}
    return made.train(name, parameters=parameters, encoder=encoder or MLP(hidden=(5,)), **SETTINGS)


@pytest.fixture(scope="module")
def laser():
    return trained()


@pytest.fixture
def saved(laser, tmp_path):
    laser.save(tmp_path)
    return tmp_path


def answers(model, parties=None):
    return worlds.answers_of(model.predict(tables(), parties))


class TestProvenance:
    def who(self, predictions):
        return {
            int(i): {name for name, here in zip(predictions.blocks, row, strict=True) if here}
            for i, row in zip(predictions.ids, predictions.took_part.tolist(), strict=True)
        }

    def test_all_parties_that_hold_a_row_take_part(self, laser):
        expected = {i: {name for name in IDS if i in IDS[name]} for i in range(90)}
        assert self.who(laser.predict(tables())) == expected

    @pytest.mark.parametrize("parties", [("bank",), ("shop", "lab"), ("lab", "bank"), ("bank", "shop", "lab")])
    def test_only_requested_parties_take_part(self, laser, parties):
        answered = laser.predict(tables(), parties)
        assert self.who(answered) == {i: {name for name in parties if i in IDS[name]} for i in range(90)}
        assert [name for name, here in zip(answered.blocks, answered.asked, strict=True) if here] == [
            name for name in IDS if name in parties
        ]
        for n, i in enumerate(map(int, answered.ids)):
            known = any(i in IDS[name] for name in parties)
            assert bool(answered.answered[n]) is known
            assert (n in answered.reasons) is not known
            assert known or "has this row" in answered.reasons[n]
        assert torch.isnan(answered.scores[~answered.answered]).all()

    def test_a_party_without_a_table_is_absent(self, laser):
        """Not asking a party gives the same result as having no table of it, for the remaining rows."""
        without = {name: table for name, table in tables().items() if name != "lab"}
        one, two = laser.predict(without), laser.predict(tables(), ["bank", "shop"])
        remain = [two.ids.index(i) for i in one.ids]
        assert worlds.same_bits({"s": one.scores}, {"s": two.scores[remain]})
        assert torch.equal(one.took_part, two.took_part[remain])

    def test_a_prediction_works_without_the_active_party(self, laser):
        answered = laser.predict({"lab": tables()["lab"]})
        assert answered.answered.all()
        assert answered.took_part.sum().item() == len(IDS["lab"])

    def test_local_names_the_single_party_that_predicts(self):
        answered = trained("local").predict(tables())
        for n, i in enumerate(map(int, answered.ids)):
            first = next(name for name in IDS if i in IDS[name])
            assert self.who(answered)[i] == {first}, n

    def test_standard_vfl_gives_a_reason_for_missing_predictions(self):
        answered = trained("standard").predict(tables())
        for n, i in enumerate(map(int, answered.ids)):
            whole = all(i in IDS[name] for name in IDS)
            assert bool(answered.answered[n]) is whole
            assert whole or answered.reasons[n] == "Standard VFL needs every party's block of a row"
        frame = answered.frame()
        assert frame["prediction"].null_count() == 90 - 30
        assert frame["reason"].null_count() == 30

    def test_probabilities_come_with_their_ids(self, laser):
        answered = laser.predict(tables())
        p = answered.probabilities()
        assert p.columns == ["id", "p(no)", "p(yes)"]
        assert p["id"].to_list() == list(answered.ids)
        assert np.allclose(p.drop("id").to_numpy(), answered.scores.numpy())
        assert np.allclose(p.drop("id").to_numpy().sum(1), 1, atol=1e-5)

    def test_a_renamed_method_raises_an_error_with_its_new_name(self, laser):
        with pytest.raises(PredictionError, match=r"is now called predict\(tables, parties\)\.probabilities\(\)"):
            laser.predict_proba(tables())

    def test_no_public_result_is_an_array_without_ids(self):
        """Arrays belong to objects that also have the ids, such as ``Predictions`` and ``AlignedTables``."""
        public = {f"Model.{name}": each for name, each in vars(Model).items() if not name.startswith("_")}
        public |= {name: getattr(anyparty, name) for name in anyparty.__all__}
        returned = {name: str(inspect.signature(each).return_annotation)
                    for name, each in public.items() if inspect.isfunction(each)}  # fmt: skip
        assert {"Model.predict", "Model.embed", "Model.aligned", "impute", "log_likelihood"} <= returned.keys()
        assert [name for name, kind in returned.items() if "array" in kind.lower() or "Tensor" in kind] == []


class TestTablesAtPrediction:
    def test_column_order_and_extra_columns_do_not_change_predictions(self, laser):
        other = tables()
        other["shop"] = other["shop"].select("town", "id", "visits").with_columns(pl.lit(7).alias("extra"))
        assert worlds.same_bits(worlds.answers_of(laser.predict(other)), answers(laser))

    def test_a_missing_column_is_reported(self, laser):
        other = tables() | {"lab": tables()["lab"].drop("iron")}
        with pytest.raises(TableError, match=r"party 'lab'.*'iron'"):
            laser.predict(other)
        other["shop"] = other["shop"].drop("visits")
        with pytest.raises(TableError, match=r"party 'shop'.*'visits'.*\n.*party 'lab'.*'iron'"):
            laser.evaluate(other)

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_a_warning_about_a_table_points_to_the_callers_line(self, laser):
        other = tables()
        other["shop"] = other["shop"].with_columns(visits=None, town=None)
        for ask in (laser.predict, laser.evaluate):
            with pytest.warns(AnypartyWarning, match="are empty except for the id") as heard:
                ask(other)
            assert {warning.filename for warning in heard} == {__file__}

    def test_the_order_of_rows_does_not_change_predictions(self, laser):
        other = {name: table.reverse() for name, table in tables().items()}
        one, two = laser.predict(tables()), laser.predict(other)
        places = [two.ids.index(each) for each in one.ids]
        assert torch.allclose(one.scores, two.scores[places], atol=1e-6)
        assert torch.equal(one.took_part, two.took_part[places])

    def test_predictions_follow_the_active_table_and_then_the_others(self, laser):
        shuffled = {name: table.sample(fraction=1.0, shuffle=True, seed=3) for name, table in tables().items()}
        given = {name: shuffled[name] for name in ("lab", "shop", "bank")}  # the order of the arguments must not matter
        seen, wanted = set(), []
        for name in ("bank", "shop", "lab"):
            ids = [one for one in shuffled[name]["id"] if one not in seen]
            seen, wanted = seen | set(ids), wanted + ids
        answered = laser.predict(given)
        assert list(answered.ids) == answered.frame()["id"].to_list() == wanted
        assert answered.probabilities()["id"].to_list() == wanted
        shop = laser.predict({"lab": given["lab"], "shop": given["shop"]})
        assert list(shop.ids[:60]) == shuffled["shop"]["id"].to_list()
        held = laser.predict()  # on the training tables
        assert [int(one) for one in held.ids] == sorted(map(int, held.ids)), "not as text"

    @pytest.mark.parametrize(
        ("given", "parties", "sentence"),
        [
            (["bank", "shpo"], None, "the model has no party 'shpo'; did you mean 'shop'"),
            (["bank"], ["bnak"], "the model has no party 'bnak'; did you mean 'bank'"),
            (["bank"], ["shop"], "party 'shop' is listed in parties, but has no table"),
            ([], None, "no party with columns was selected"),
            (["bank"], [], "no party with columns was selected"),
            (["shop"], "shop", r"parties: expected a list of names, such as \['shop'\], got 'shop'"),
        ],
    )
    def test_invalid_parties_are_refused(self, laser, given, parties, sentence):
        with pytest.raises(PredictionError, match=sentence):
            laser.predict({name: tables().get(name) for name in given}, parties)

    def test_predict_without_tables_uses_the_test_rows_of_the_run(self, laser, saved):
        own = laser.predict()
        assert len(own) == laser.test_rows == 12
        of = laser.predict(tables())
        places = [of.ids.index(one) for one in own.ids]
        assert torch.allclose(own.scores, of.scores[places], atol=1e-6)
        assert laser.predict(parties=["lab"]).took_part.any(dim=0).tolist() == [False, False, True]
        for ask in (Model.load(saved).predict, Model.load(saved).evaluate):
            with pytest.raises(PredictionError, match=r"no test rows in memory: give tables.*evaluate_run\(folder\)"):
                ask()

    def test_scoring_needs_the_labels(self, laser):
        with pytest.raises(PredictionError, match="labels are at 'bank': give its table too"):
            laser.evaluate({"shop": tables()["shop"]})
        with pytest.raises(TableError, match=r"no column 'bad', named as label; .*; rows are scored by their labels"):
            laser.evaluate(tables() | {"bank": tables()["bank"].drop("bad")})

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_scoring_uses_only_the_labels_of_the_active_party(self):
        """Labels of other label holders are used in training, but not in evaluation."""
        given = tables()
        given["shop"] = given["shop"].with_columns(bad=pl.Series(["yes", "no"] * 30))
        own = {"bank": {}, "shop": {"label": "bad"}, "lab": {}}
        config = Config.of({"federation": {"label": "bad", "active": "bank"}, "parties": own})
        made = Federation.from_config(config, given)
        model = made.train("laser", parameters={"hosting": "labelers"}, **SETTINGS)
        plain = model.evaluate(given)
        assert model.evaluate({**given, "shop": given["shop"].drop("bad")}).to_json() == plain.to_json()

    def test_an_invalid_value_of_unseen_is_refused(self, laser):
        with pytest.raises(PredictionError, match="unseen: expected 'refuse' or 'wrong', got 'wrongg'"):
            laser.evaluate(tables(), unseen="wrongg")

    @pytest.mark.filterwarnings("ignore:the model was trained on")
    def test_an_unseen_class_is_refused_or_counts_as_wrong(self, laser):
        given = tables()
        given["bank"] = given["bank"].with_columns(
            bad=pl.when(pl.col("id") < 6).then(pl.lit("perhaps")).otherwise(pl.col("bad"))
        )
        with pytest.raises(TableError, match="training never saw the label 'perhaps' in row 1"):
            laser.evaluate(given)
        found, plain = laser.evaluate(given, unseen="wrong"), laser.evaluate(tables())
        assert found.unseen == {"perhaps": 6}
        assert found.overall["rows"] == plain.overall["rows"]
        right = laser.predict(tables()).labels()
        truth = dict(zip(given["bank"]["id"].to_list(), given["bank"]["bad"].to_list(), strict=True))
        ids = [int(i) for i in laser.predict(tables()).ids]
        share = np.mean([truth[i] == said for i, said in zip(ids, right, strict=True) if i in truth])
        assert found.overall["accuracy"] == pytest.approx(share)


class Own(nn.Module):
    """A user's network with a buffer, and with one tensor under two names."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.one, self.two = nn.Linear(inputs, inputs), nn.Linear(inputs, inputs)
        self.two.weight = self.one.weight
        self.norm, self.out = nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.out(self.norm(self.two(torch.tanh(self.one(x)))))


class TestSaveAndLoad:
    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_a_loaded_model_predicts_bit_for_bit_the_same(self, name, tmp_path):
        hidden = {} if name in {"apc", "vfedtrans", "boosting"} else {"head_hidden": (3,)}
        model = trained(name, **hidden)
        model.save(tmp_path)
        loaded = Model.load(tmp_path)
        assert worlds.same_bits(answers(loaded), answers(model))
        assert loaded.method == model.method
        assert (loaded.task, loaded.roster, loaded.seed, loaded.best_epoch) == (
            model.task, model.roster, model.seed, model.best_epoch
        )  # fmt: skip

    @pytest.mark.parametrize("encoder", [MLP(hidden=(4, 3), activation="gelu", norm=True, dropout=0.2), LSTM(steps=1)])
    def test_encoders_described_by_settings_are_restored(self, encoder, tmp_path):
        model = trained(encoder=encoder)
        model.save(tmp_path)
        assert worlds.same_bits(answers(Model.load(tmp_path)), answers(model))

    def test_a_user_defined_encoder_must_be_given_to_load(self, tmp_path):
        model = trained(encoder={"shop": Own})
        model.save(tmp_path)
        with pytest.raises(
            ModelError, match=r"party 'shop' was trained with a user-defined network.*encoders=\{'shop': "
        ):
            Model.load(tmp_path)
        assert worlds.same_bits(answers(Model.load(tmp_path, encoders={"shop": Own})), answers(model))
        with pytest.raises(ModelError, match=r"(?s)shop.*its weights do not fit"):
            Model.load(tmp_path, encoders={"shop": MLP()})

    def test_a_user_defined_method_must_be_given_to_load(self, tmp_path):
        made = method("laser", embedding=4, make_head=Own)
        model = Federation.from_tables(tables(), label="bad").train(made, **SETTINGS)
        model.save(tmp_path)
        with pytest.raises(ModelError, match="trained with a user-defined method; give it"):
            Model.load(tmp_path)
        assert worlds.same_bits(answers(Model.load(tmp_path, method=made)), answers(model))
        with pytest.raises(ModelError, match=r"the one that was trained: embedding was 4, is 6; pass that one"):
            Model.load(tmp_path, method=method("laser", embedding=6, make_head=Own))
        about = json.loads((tmp_path / "model.json").read_text())
        assert about.pop("own")["make_head"] == "Own"
        (tmp_path / "model.json").write_text(json.dumps(about))  # as saved by an earlier version
        seal(tmp_path)
        assert worlds.same_bits(answers(Model.load(tmp_path, method=made)), answers(model))
        said = r"bank/model.safetensors: its weights do not[^\n]* shape 4 × [^\n]* shape 6 × [^\n]*; give"
        with pytest.raises(ModelError, match=said):
            Model.load(tmp_path, method=method("laser", embedding=6, make_head=Own))

    def test_a_function_among_the_parameters_is_refused(self):
        """A function cannot be saved in a file, so the model could not be saved."""
        with pytest.raises(ConfigError, match=r"make_head is a function.*train\(method\('laser', make_head=...\)\)"):
            trained(make_head=nn.Linear)

    def test_a_regression_model_is_restored(self, tmp_path):
        given = tables()
        given["bank"] = given["bank"].with_columns(pl.col("income").mul(3).add(7).alias("bad"))
        model = Federation.from_tables(given, label="bad", task="regression").train("laser", **SETTINGS)
        model.save(tmp_path)
        assert worlds.same_bits(answers(Model.load(tmp_path)), answers(model))

    @pytest.mark.parametrize("name", ["laser", "local", "ensemble", "false-vfl-1", "apc"])
    def test_a_large_offset_of_the_label_shifts_only_the_predictions(self, name):
        """Near 1.7e9, single precision made all numbers, all answers and all epochs' scores equal."""
        found = []
        for offset in (0.0, 1.7e9):
            given = tables()
            given["bank"] = given["bank"].with_columns(pl.col("income").mul(10).add(offset).alias("bad"))
            made = Federation.from_tables(given, label="bad", task="regression")
            model = made.train(name, **SETTINGS | {"validation": 0.2})
            answered = model.predict(given)
            shown = answered.frame()["prediction"].drop_nulls().to_numpy() - offset
            found.append((shown, [rmse for each in model.history if (rmse := each.get("validation", {}).get("rmse"))]))
        (near, first), (far, second) = found
        assert far == pytest.approx(near, abs=1e-3)
        assert np.unique(far).size > len(far) / 2
        assert second == pytest.approx(first, abs=1e-3)

    def test_a_loaded_model_saves_the_same_files(self, saved, tmp_path):
        Model.load(saved).save(tmp_path / "again")
        for path in sorted((tmp_path / "again").rglob("*.*")):
            assert path.read_bytes() == (saved / path.relative_to(tmp_path / "again")).read_bytes(), path

    def test_a_model_may_be_saved_again_into_its_own_folder(self, saved, laser):
        before = {path: path.read_bytes() for path in saved.rglob("*.*") if path.is_file()}
        laser.save(saved)
        Model.load(saved).save(saved)
        assert {path: path.read_bytes() for path in saved.rglob("*.*") if path.is_file()} == before

    def test_another_model_is_overwritten_only_on_request(self, saved):
        other = trained(tasks="all")
        before = (saved / "model.json").read_bytes()
        with pytest.raises(ModelError, match=r"already holds a model \(model.json\) other than this .*replace=True"):
            other.save(saved)
        assert (saved / "model.json").read_bytes() == before
        Model.load(saved)
        other.save(saved, replace=True)
        assert worlds.same_bits(answers(Model.load(saved)), answers(other))

    def test_another_run_is_overwritten_only_on_request(self, laser, tmp_path):
        made = Federation.from_tables(tables(), label="bad")
        own = made.train("laser", folder=tmp_path, parameters={"embedding": 3}, **SETTINGS)
        own.save(tmp_path)
        assert (tmp_path / "record.json").exists(), "its own model may be saved there again"
        with pytest.raises(ModelError, match=r"already holds a run \(record.json\) other than this model"):
            laser.save(tmp_path)
        laser.save(tmp_path, replace=True)
        assert worlds.same_bits(answers(Model.load(tmp_path)), answers(laser))
        assert not {"record.json", "config.toml"} & {path.name for path in tmp_path.iterdir()}, "they tell of another"

    def test_an_unfinished_run_is_not_overwritten(self, laser, tmp_path):
        (tmp_path / "record.json").write_text("{}")
        with pytest.raises(ModelError, match="already holds a run"):
            laser.save(tmp_path)

    def test_a_file_as_the_model_folder_is_refused(self, laser, tmp_path):
        file = tmp_path / "lab.csv"
        file.write_text("id")
        for folder in (file, file / "model"):
            with pytest.raises(StorageError, match=r"lab\.csv: this is a file; name a folder$"):
                laser.save(folder)
        assert file.read_text() == "id"

    def test_default_parameters_are_saved(self, tmp_path):
        """A later version may have other defaults than the model was trained with."""
        model = trained("false-vfl-1", embedding=4, top=2)
        model.save(tmp_path)
        file = tmp_path / "model.json"
        kept = json.loads(file.read_text())["method"]
        assert {name: kept[name] for name in ("embedding", "floor", "samples")} == {
            "embedding": 4, "floor": 0.1, "samples": 10,
        }  # fmt: skip
        file.write_text(file.read_text().replace('"floor": 0.1', '"floor": 0.3'))
        seal(tmp_path)
        assert Model.load(tmp_path).method.floor == 0.3

    def test_a_model_with_a_parameter_without_effect_can_be_loaded(self, tmp_path):
        """Earlier versions accepted such parameters."""
        model = trained("vfedtrans", student_hidden=(5,))
        model.save(tmp_path)
        file = tmp_path / "model.json"
        file.write_text(file.read_text().replace('"head_hidden": []', '"head_hidden": [3]'))
        seal(tmp_path)
        loaded = Model.load(tmp_path)
        assert loaded.method.head_hidden == (3,)
        with pytest.raises(ConfigError, match="'head_hidden' would do nothing without classifier = 'head'"):
            method("vfedtrans", head_hidden=(3,))
        loaded.save(tmp_path / "again")
        assert Model.load(tmp_path / "again").method == loaded.method

    def test_each_party_folder_holds_only_its_own_weights(self, saved, laser):
        """No party's folder holds the weights of another party."""
        for name, member in laser.members.items():
            home = saved / "parties" / name
            assert sorted(path.name for path in home.iterdir()) == ["model.safetensors", "party.json"]
            size = sum(t.numel() * 4 for m in member.state.modules.values() for t in m.state_dict().values())
            assert size < (home / "model.safetensors").stat().st_size < size + 1500


def test_the_repr_of_a_model_holds_no_weights_ids_or_cells(laser, saved):
    assert repr(laser) == (
        "<Model of LASER-VFL for classification, parties bank, shop, lab; 'bank' leads; 2 epochs; 12 test rows>"
    )
    assert repr(Model.load(saved)) == "<Model of LASER-VFL for classification, parties bank, shop, lab; 'bank' leads>"


def test_the_repr_of_an_evaluation_holds_no_label(laser):
    found = laser.evaluate()
    assert repr(found) == (
        f"<Evaluation of 12 rows, 100.0% answered: accuracy {found.overall['accuracy']:#.4g}; asked: bank, shop, lab>"
    )
    number = replace(
        found, task=Task(kind="regression", mean=1234.5, scale=67.8), overall=found.overall | {"rmse": 3.0}
    )
    assert "rmse 3.000" in repr(number)
    assert not [each for each in ("1234", "67.8", "mean") if each in repr(number)]


def seal(folder):
    """Write the manifest again, as a person who changes a model on purpose would."""
    write_manifest(folder, [path.name for path in (folder / "parties").iterdir()])


class TestRefusals:
    def load(self, folder, sentence):
        with pytest.raises(ModelError, match=sentence):
            Model.load(folder)

    def test_a_missing_model_is_reported(self, tmp_path):
        self.load(tmp_path / "nowhere", r"model.json: no such file; is .*nowhere a saved model")

    @pytest.mark.parametrize("file", ["party.json", "model.safetensors"])
    def test_a_missing_file_is_reported(self, saved, file):
        (saved / "parties" / "shop" / file).unlink()
        self.load(saved, rf"shop/{file}: no such file")

    def test_a_missing_party_folder_is_reported(self, saved):
        shutil.rmtree(saved / "parties" / "lab")
        self.load(saved, "lab/party.json: no such file")

    @pytest.mark.parametrize("file", ["model.json", "parties/shop/party.json", "parties/shop/model.safetensors"])
    def test_truncated_files_are_refused(self, saved, file):
        path, manifest = saved / file, (saved / "manifest.json").read_bytes()
        whole = path.read_bytes()
        for share in (0.0, 0.3, 0.98):
            (saved / "manifest.json").write_bytes(manifest)
            path.write_bytes(whole[: int(share * len(whole))])
            self.load(saved, path.name)
            seal(saved)  # with a valid manifest, the file itself is found damaged
            self.load(saved, path.name)

    def test_invalid_encoders_and_devices_are_refused(self, saved):
        with pytest.raises(
            ModelError, match=r"an encoder is given for 'shopp', which is not a party .* did you mean 'shop'"
        ):
            Model.load(saved, encoders={"shopp": torch.nn.Linear})
        with pytest.raises(ModelError, match=r"encoders: expected a dict by party, such as \{'bank': ...\}, got"):
            Model.load(saved, encoders=torch.nn.Linear)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="device: 'tpu9' cannot be used here"):
            Model.load(saved, device="tpu9")

    @pytest.mark.parametrize("file", ["model.json", "parties/shop/party.json"])
    def test_invalid_json_files_are_refused(self, saved, file):
        for content in ("[1, 2]", "3", "null", "{}", '{"format": 1}', '{"hello": "world"}', "\udcff"):
            (saved / file).write_bytes(content.encode(errors="surrogateescape"))
            seal(saved)
            self.load(saved, "json")

    def test_an_unsupported_format_version_is_refused(self, saved):
        about = json.loads((saved / "model.json").read_text())
        (saved / "model.json").write_text(json.dumps(about | {"format": 99}))
        self.load(saved, "a model in the newer format 99; this version reads formats 3 to 4")

    def test_weights_of_another_party_are_refused(self, saved):
        """Their shapes fit: shop (with two towns) and lab both have blocks of three columns."""
        parties = saved / "parties"
        shutil.copy(parties / "lab" / "model.safetensors", parties / "shop" / "model.safetensors")
        self.load(saved, r"shop/model\.safetensors: this is not the file that the model was saved with")
        seal(saved)
        self.load(saved, "shop/model.safetensors: these are the weights of party 'lab', not of 'shop'")

    def test_weights_of_another_run_are_refused(self, saved, tmp_path):
        trained(tasks="all").save(tmp_path / "other")
        shutil.copy(tmp_path / "other" / "parties" / "shop" / "model.safetensors", saved / "parties" / "shop")
        seal(saved)
        self.load(saved, "shop/model.safetensors: these are not the weights of party 'shop' that the model was saved")

    @pytest.mark.parametrize("file", ["model.json", "parties/shop/party.json"])
    def test_fields_of_wrong_types_cause_only_our_own_errors(self, saved, file):
        """With three wrong values in turn in each field, the model either answers or raises one of our errors."""
        whole = json.loads((saved / file).read_text())
        values = (None, "text", {}, 3, [], {"a": 1}, -1, [1], 1.5)
        for place, path, k in ((place, path, k) for place, path in enumerate(_paths(whole)) for k in range(3)):
            value = values[(place + k) % 3 * 3 + k]
            broken = json.loads(json.dumps(whole))
            at = broken
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            (saved / file).write_text(json.dumps(broken))
            seal(saved)
            try:
                Model.load(saved).predict(tables())
            except (AnypartyError, AnypartyWarning):  # such as a level that does not occur in any table
                pass
            except Exception as error:
                pytest.fail(f"{file} with {value!r} at {path}: {error!r}")


def _paths(value, before=()):
    """Yield the path to each field, as a tuple of keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*before, key)
        yield from _paths(inner, (*before, key))
