"""Cases 8, 14 and 19: wrong arguments, a label far from all others, and sentences that name the right reason."""

import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from anyparty import Model, config
from anyparty.api.federation import Federation
from anyparty.errors import AnypartyError
from tests.cases.conftest import clean

GIVEN = {"id": "customer", "label": "default", "active": "bank"}
SHOP = clean()["shop"]


@pytest.fixture(scope="module")
def model() -> Model:
    return Federation.from_tables(clean(), **GIVEN).train("laser", epochs=1)


def made(**options):
    return Federation.from_tables(clean(), **GIVEN | options)


class TestCase08PythonArguments:
    WRONG = {
        "id=0": (lambda _: made(id=0), ("id", "0")),
        "id=None": (lambda _: made(id=None), ("id", "None")),
        "drop={'shop': None}": (lambda _: made(drop={"shop": None}), ("drop", "None")),
        "types={'shop': 'numeric'}": (lambda _: made(types={"shop": "numeric"}), ("types", "numeric")),
        "from_tables(None)": (lambda _: Federation.from_tables(None, **GIVEN), ("tables", "None")),
        "predict({0: frame})": (lambda model: model.predict({0: SHOP}), ("0",)),
        "evaluate({0: frame})": (lambda model: model.evaluate({0: SHOP}), ("0",)),
        "parties=[0]": (lambda model: model.predict({"shop": SHOP}, parties=[0]), ("0",)),
        "save(None)": (lambda model: model.save(None), ("None",)),
        "load(None)": (lambda _: Model.load(None), ("None",)),
    }  # tests/api/test_wrong_arguments.py has the other arguments

    def test_each_ends_in_a_sentence(self, model):
        for name, (call, words) in self.WRONG.items():
            with pytest.raises(AnypartyError) as stopped:
                call(model)
            assert [word for word in words if word not in str(stopped.value)] == [], name

    def test_a_subclass_of_a_pandas_frame_is_a_frame(self):
        frame = type("GeoDataFrame", (pd.DataFrame,), {})(SHOP.to_pandas())
        assert Federation.from_tables(clean() | {"shop": frame}, **GIVEN).overlap.by_all == 240

    @pytest.mark.parametrize("start", [0, 1000])
    def test_an_index_without_a_name_may_hold_the_ids(self, start):
        frame = SHOP.to_pandas().drop(columns="customer").set_index(pd.RangeIndex(start, start + 240))
        with pytest.raises(AnypartyError) as stopped:
            Federation.from_tables(clean() | {"shop": frame}, **GIVEN)
        assert ("rename_axis" in str(stopped.value)) == bool(start)

    def test_a_list_of_one_id_column_is_that_column(self):
        assert made(id=["customer"]).overlap.by_all == 240


class TestCase14OneTargetOutlier:
    @pytest.mark.parametrize("outlier", ["1e6", "-1000000", "99999", "1e3"])
    def test_a_remark_on_the_command_line_and_in_python(self, trial, outlier):
        random = np.random.default_rng(0)
        trial.replace("bank", "default", [outlier if row == 3 else f"{random.normal():.3f}" for row in range(240)])
        said = trial.align()
        assert "far from all other" in said
        assert "default" in said
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            federation = trial.in_python()
            federation.train("laser", epochs=1)
        texts = " ".join(str(each.message) for each in remarks) + str(federation.overlap.notes)
        assert "far from all other" in texts or federation.remarks is not None

    @pytest.mark.parametrize("scale", [1.0, 1000.0])
    def test_honest_labels_have_no_remark(self, trial, scale):
        random = np.random.default_rng(0)
        trial.replace("bank", "default", [f"{scale * random.normal():.3f}" for _ in range(240)])
        assert "far from all other" not in trial.align()


GRADIENTS_OFF = partial(torch.set_grad_enabled, mode=False)
OTHER_NAMES = [("a0", "A0"), ("income", "Income"), ("u_1", "u_l"), ("größe", "GRÖSSE")]


class TestCase19UnclearSentences:
    def test_parties_may_be_any_iterable(self, model):
        new = {"bank": clean()["bank"].drop("default"), "shop": SHOP}
        expected = model.predict(new, parties=["bank"]).scores
        for parties in ((name for name in ["bank"]), ("bank",), {"bank": 1}.keys(), iter(["bank"])):
            assert model.predict(new, parties=parties).scores.equal(expected)

    @pytest.mark.parametrize(
        ("trained", "now"), [("a0", "A0"), ("income", "Income"), ("u_1", "u_l"), ("größe", "GRÖSSE")]
    )
    def test_a_column_with_another_name(self, trained, now):
        bank = clean()["bank"].rename({"income": trained, "age": "a2"})
        model = Federation.from_tables({"bank": bank, "shop": SHOP}, **GIVEN).train("laser", epochs=1)
        new = bank.drop("default").rename({trained: now})
        with pytest.raises(AnypartyError) as stopped:
            model.predict({"bank": new, "shop": SHOP})
        assert repr(trained) in str(stopped.value)
        if now != "GRÖSSE":
            assert f"did you mean {now!r}" in str(stopped.value)
        assert "'a2'" not in str(stopped.value)

    @pytest.mark.parametrize("surrounding", [torch.no_grad, torch.inference_mode, GRADIENTS_OFF])
    def test_training_where_gradients_are_off(self, surrounding):
        federation = made()
        with surrounding():
            scores = federation.train("laser", epochs=1, seed=1).evaluate().overall
        assert scores == federation.train("laser", epochs=1, seed=1).evaluate().overall

    @pytest.mark.parametrize("device", ["mps", "cuda:99", "tpu", "gpu"])
    def test_a_device_that_is_not_there(self, device):
        with pytest.raises(AnypartyError) as stopped:
            made().train("laser", epochs=1, device=device)
        said = str(stopped.value)
        assert device in said
        assert len(said) < 250
        assert "Facebook" not in said

    @pytest.mark.parametrize("zoned", ["bank", "shop"])
    def test_ids_with_a_time_zone_at_one_party(self, zoned):
        moments = pd.Series(pd.date_range("2024-01-01", periods=240, freq="h"))
        tables = {name: pl.from_pandas(moments.to_frame("customer")).hstack(frame.drop("customer"))
                  for name, frame in clean().items()}  # fmt: skip
        tables[zoned] = tables[zoned].with_columns(pl.col("customer").dt.replace_time_zone("UTC"))
        with pytest.raises(AnypartyError, match="time zone"):
            Federation.from_tables(tables, **GIVEN).train("laser", epochs=1)

    SETTINGS = (
        "federation.id=7", "federation.id=[['a']]", "federation.id=['a', 'a']", "parties.shop.id=[]",
        "parties.shop.table=''", "parties.shop.table=3", "parties.shop=3", "parties.shop.drop='town'",
        "federation.id_normalize='strip-zeros'", "encoder.hidden=8", "encoder.hidden=[8.5]", "train.epochs=many",
        "train.epochs=0", "train.validation='10%'", "train.validation=1", "parties.shop.sheet=1.5",
        "parties.shop.types={town='int'}", "federation.classes=[]", "federation.classes={a=['0'], b=[]}",
        "federation.classes={a=['0'], b=['0', '1']}", "federation.classes=[[0], [1]]", "federation.classes=3",
        "parties.shop.missing={visits=[[1]]}",
    )  # fmt: skip

    def test_a_setting_of_another_type(self, trial, sentences):
        calls = {change: partial(config.load, trial.write(), [change]) for change in self.SETTINGS}
        said = {change: sentences.describe(change, call) for change, call in calls.items()}
        sentences.compare("settings-of-another-type", said)
        assert not re.search(r"Input should|valid tuple|tuple|<class|PartySettings", str(said))
