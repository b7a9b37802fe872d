"""The description of a user's own method: it is saved, and a different method is not mistaken for it."""

import json
import tomllib
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import date
from enum import Enum
from functools import partial

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn

from anyparty.api.model import Model
from anyparty.api.runs import evaluate_run, model_for_run, predict_run
from anyparty.core.object_description import DEEPEST, described
from anyparty.core.types import MessageSpec
from anyparty.errors import CodeNotAllowed, ConfigError, ModelError, NotGiven, PredictionError, ResumeError
from anyparty.methods.method_registry import differences, method
from anyparty.methods.schedules.flex import Flex
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.split_method import Split
from anyparty.training.callbacks import Callback
from tests import worlds
from tests.api.test_train_tables import tables, weights


@dataclass(frozen=True, kw_only=True)
class Mine(Plug):
    """A user's own rule."""

    temperature: float = 1.0
    words: tuple[str, ...] = ("a", "b")
    told: str = field(default="", compare=False)
    shown: str = field(default="", repr=False)


class Other(Mine):
    """Another rule."""


class Colour(Enum):
    RED = 1


class Plain:
    """Not a dataclass; ``calls`` is not a parameter."""

    def __init__(self, width, names=()):
        self.width, self.names, self.calls = width, names, 7


class Net(nn.Module):
    def __init__(self, width, inner=None):
        super().__init__()
        self.width, self.layer = width, nn.Linear(width, 1)


@dataclass
class Any:
    value: object = None


def linear(inputs, outputs):
    """Make a user's own network."""
    return nn.Linear(inputs, outputs)


MADE = Split(rule=Mine(temperature=0.5), embedding=4)
OTHERS = {"embedding": replace(MADE, embedding=5), "rule.temperature": replace(MADE, rule=Mine(temperature=5.0)),
          "rule.words": replace(MADE, rule=Mine(temperature=0.5, words=("a",)))}  # fmt: skip
CODE = MessageSpec(tag="code", frm="block", to="active", holds="codes", learns="something")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.5, 0.5), (True, True), (None, "None"), (float("inf"), "inf"), (np.float32(0.5), 0.5), (np.int64(3), 3),
        ((1, (2.5, "x")), [1, [2.5, "x"]]), ({"b": (1,), 2: None}, {"b": [1], "2": "None"}), ({"y", "x"}, ["x", "y"]),
        (Colour.RED, "Colour.RED"), (linear, "linear"), (lambda x: x, "<lambda>"), (Mine, "Mine"),
        (torch.relu, torch.relu.__qualname__), (date(2020, 1, 2), "datetime.date(2020, 1, 2)"),
        (partial(linear, 3, outputs=2), {"class": "partial", "of": "linear", "args": [3], "outputs": 2}),
        (Plain(3, (1,)), {"class": "Plain", "width": 3, "names": [1]}), (Net(3), {"class": "Net", "width": 3}),
        (object(), {"class": "object"}), (CODE, "code: block → active"), (Any(2), {"class": "Any", "value": 2}),
        (nn.Parameter(torch.zeros(2)), "Parameter torch.float32 [2]"), (torch.float64, "torch.float64"),
    ],
)  # fmt: skip
def test_values_are_described_as_data(value, kept):
    told = described(Any(value))["value"]
    assert told == kept
    assert tomllib.loads(tomli_w.dumps({"value": told})) == json.loads(json.dumps({"value": told})) == {"value": told}


def test_tensors_and_arrays_with_different_values_differ():
    for one, other in ((torch.arange(3), torch.arange(3) + 1), (np.zeros(2), np.ones(2))):
        assert described(Any(one)) == described(Any(one + 0)) != described(Any(other))


def test_descriptions_hold_no_memory_addresses():
    """Descriptions hold no addresses, even if an object prints them, and end for an object that contains itself."""

    class Shows:
        def __repr__(self):
            return f"<of {object()!r}>"

    class Fails:
        def __repr__(self):
            raise ValueError

    itself = []
    itself.append(itself)
    made = described(Any([Shows(), Fails(), itself, linear.__get__(3)]))
    assert "0x" not in repr(made)
    assert made["value"][:2] == ["<of <object object>>", "Fails"]
    assert repr(made).count("[") < DEEPEST + 4


def test_a_class_sent_by_value_is_described_as_any_other():
    """joblib sends classes of notebooks and scripts as code; their MISSING is not that of dataclasses."""

    @dataclass(frozen=True)
    class Sent:
        a: float
        b: int = 2
        c: tuple[int, ...] = field(default_factory=tuple)

    for each in fields(Sent):
        for name in ("default", "default_factory"):
            if getattr(each, name) is MISSING:
                setattr(each, name, type(MISSING)())
    assert described(Sent(0.5)) == {"class": "Sent", "a": 0.5, "b": 2, "c": []}
    assert described(Sent(0.5), with_defaults=False) == {"class": "Sent", "a": 0.5}


def test_fields_declared_without_effect_are_not_described():
    assert not {"told", "shown"} & described(Mine(told="x", shown="y")).keys()


def test_a_new_field_with_its_default_makes_no_difference():
    kept = described(MADE)
    del kept["rule"]["temperature"]
    assert differences(kept, replace(MADE, rule=Mine())) == {}
    assert differences(kept, MADE) == {"rule.temperature": (None, 0.5)}
    table = described(Any({"a": 1}))
    assert differences(table, Any({"a": 1, "b": 2})) == {"value": ({"a": 1}, {"a": 1, "b": 2})}


class Stops(Callback):
    def on_epoch_end(self, record):
        if record["epoch"] == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_cannot_be_resumed_with_another_method(federation, tmp_path, name):
    how = {"epochs": 2, "folder": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        federation.train(MADE, watch=Stops(), **how)
    with pytest.raises(ResumeError, match=rf"cannot resume, other settings: setting method\.own\.{name}: was "):
        federation.train(OTHERS[name], resume=True, **how)
    with pytest.raises(ResumeError, match=r"setting method\.own\.rule\.class: was 'Mine', is 'Other'"):
        federation.train(replace(MADE, rule=Other(temperature=0.5)), resume=True, **how)
    resumed = federation.train(replace(MADE, rule=Mine(temperature=0.5, told="anew")), resume=True, **how)
    whole = federation.train(MADE, epochs=2)
    assert worlds.same_bits(weights(resumed), weights(whole))


def test_a_run_without_a_description_is_matched_by_title(federation, tmp_path):
    """An earlier version did not save a description; a resumed run saves it."""
    how = {"epochs": 2, "folder": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        federation.train(MADE, watch=Stops(), **how)
    path = tmp_path / "run" / "config.toml"
    settings = tomllib.loads(path.read_text())
    kept = settings["method"].pop("own")
    path.write_text(tomli_w.dumps(settings))
    federation.train(MADE, resume=True, **how)
    assert tomllib.loads(path.read_text())["method"]["own"] == kept == described(MADE)


@pytest.fixture
def run(federation, tmp_path):
    federation.train(MADE, epochs=1, test=0.3, folder=tmp_path / "run", encoder={"bank": partial(nn.Linear)})
    return tmp_path / "run"


ENCODERS = {"bank": linear}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_cannot_be_loaded_with_another_method(run, name):
    with pytest.raises(ModelError, match=rf"differs from the one that was trained: {name} was .*; pass that one"):
        Model.load(run, method=OTHERS[name], encoders=ENCODERS)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(MADE, rule=Other(temperature=0.5)), "rule.class was 'Mine', is 'Other'; pass"),
        (method("laser", pretrain="byol"), "class was 'Split', is 'Pretrained'"),
        (MADE.rule, r"expected a method, such as Split\(rule=\.\.\.\)"),
        ("laser", "expected a method, such as .*, got 'laser'"),
    ],
)
def test_a_model_cannot_be_loaded_with_a_method_of_another_class(run, other, said):
    with pytest.raises(ModelError, match=said):
        Model.load(run, method=other, encoders=ENCODERS)


def test_a_model_can_be_loaded_with_its_method_under_a_schedule(run):
    first = Model.load(run, method=MADE, encoders=ENCODERS)
    again = Model.load(run, method=Scheduled(split=MADE, schedule=Flex()), encoders=ENCODERS)
    assert worlds.same_bits(worlds.answers_of(first.predict(tables())), worlds.answers_of(again.predict(tables())))
    assert first.own == described(MADE)
    again.save(run)  # the model is the same


def test_a_model_of_a_built_in_method_accepts_no_other_method(federation, tmp_path):
    federation.train("laser", epochs=1).save(tmp_path / "model")
    assert "own" not in json.loads((tmp_path / "model" / "model.json").read_text())
    assert Model.load(tmp_path / "model", method=method("laser")).named["name"] == "laser"
    Model.load(tmp_path / "model", method=Split(rule=Laser()))
    with pytest.raises(ModelError, match=r"trained with 'laser', but another .*, Split\(rule=Mine\); leave it out"):
        Model.load(tmp_path / "model", method=MADE)
    with pytest.raises(ModelError, match=r"trained: embedding was 64, is 3; pass that one, or leave it out"):
        Model.load(tmp_path / "model", method=method("laser", embedding=3))


def test_a_run_is_evaluated_with_the_given_method_and_encoders(run):
    given = {"method": MADE, "encoders": ENCODERS}
    kept = json.loads((run / "record.json").read_text())["evaluation"]["overall"]
    assert evaluate_run(run, **given).to_json()["overall"] == kept
    assert len(predict_run(run, **given)) == len(predict_run(run, tables(), **given)) == 90
    assert model_for_run(run, **given).own == described(MADE)


@pytest.mark.parametrize("ask", [evaluate_run, predict_run, model_for_run, Model.load])
def test_a_missing_method_or_encoder_is_requested(run, ask):
    with pytest.raises(NotGiven, match=r"user-defined method; .*method=\.\.\.\), also to evaluate_run"):
        ask(run, encoders=ENCODERS)
    with pytest.raises(NotGiven, match=r"party 'bank' was trained with a .*encoders=\{'bank': \.\.\.\}\), also to"):
        ask(run, method=MADE)
    said = r"evaluate_run\(folder\), or predict_run\(folder\); pass method=\.\.\. and encoders=\.\.\. to these"
    with pytest.raises(PredictionError, match=said):
        Model.load(run, method=MADE, encoders=ENCODERS).evaluate()


def test_a_given_encoder_is_not_imported(federation, tmp_path):
    federation.train("laser", epochs=1, test=0.3, folder=tmp_path / "run", encoder={"bank": linear})
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace(f"{__name__}:linear", "gone:linear"))
    with pytest.raises(CodeNotAllowed, match="names the code 'gone:linear'"):
        evaluate_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="there is no module 'gone'"):
        evaluate_run(tmp_path / "run", allow_code=("gone",))
    assert evaluate_run(tmp_path / "run", encoders=ENCODERS).overall["rows"] > 20


def test_a_record_stores_the_declared_messages(run, federation, tmp_path):
    declared = json.loads((run / "record.json").read_text())["declared"]
    assert [each["tag"] for each in declared] == [each.tag for each in MADE.can.messages]
    assert all(each.keys() == {"tag", "frm", "to", "holds", "learns", "when", "consent"} for each in declared)
    federation.train("laser", epochs=1, folder=tmp_path / "shipped")
    shipped = json.loads((tmp_path / "shipped" / "record.json").read_text())
    assert shipped["title"] == "LASER-VFL"
    assert [each["tag"] for each in shipped["declared"]] == [each.tag for each in method("laser").can.messages]


@pytest.mark.parametrize("name", ["gates:Attention", "own: Attention"])
def test_a_code_path_as_a_method_name_causes_a_helpful_error(name):
    said = r"no method .*; a method of your own is factory = 'module:name', or given in Python, train\(METHOD\)"
    with pytest.raises(ConfigError, match=said):
        method(name)
