"""A run is recorded, repeated and resumed with the method, networks and optimizers that were passed in Python."""

import json
import tomllib
from dataclasses import fields

import pytest
from torch import nn

from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run
from anyparty.config import Config
from anyparty.errors import CodeNotAllowed, ModelError, ResumeError
from anyparty.methods.method_registry import METHODS, method, settings_of
from anyparty.methods.split.laser import Laser
from anyparty.methods.split.split_method import Split
from anyparty.networks.encoders import LSTM, MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.report.recorded_runs import find_runs
from tests import worlds
from tests.api.test_train_tables import weights

MADE = {"optimizer": Optimizer(name="sgd", lr=0.5), "encoder": {"bank": MLP(hidden=(7,)), "shop": LSTM(steps=1)}}


class Mine(Laser):
    """A user's own rule."""


def linear(inputs: int, outputs: int) -> nn.Module:
    """Make a user's own network."""
    return nn.Linear(inputs, outputs)


def kept(folder):
    return tomllib.loads((folder / "config.toml").read_text())


@pytest.mark.parametrize(
    "made",
    [
        *(method(name) for name in METHODS),
        method("laser", tasks="all", embedding=8, head_hidden=(4,)),
        method("plug", dropout=0.1, unlabelled="pseudo", sure=0.9),
        method("laser", pretrain="byol", unlabelled="pseudo"),
        method("apc", classify_on="either", classifier_settings={"C": 2.0}),
    ],
)
def test_a_built_in_method_is_restored_from_its_settings(made):
    for whole in (False, True):
        known = json.loads(json.dumps(settings_of(made, with_defaults=whole)))
        assert method(known.pop("name"), **known) == made
    defaults = {field.name for field in fields(made) if field.repr and field.name not in {"rule", "first", "method"}}
    assert defaults - {"pseudo"} <= known.keys()


def test_a_user_defined_method_has_no_settings(federation, tmp_path):
    for made in (Split(rule=Mine(), embedding=4), method("laser", make_head=linear)):
        assert settings_of(made) is None
    federation.train(Split(rule=Mine(), embedding=4), folder=tmp_path / "run", epochs=1)
    settings = kept(tmp_path / "run")["method"]
    assert settings.keys() == {"name", "own"}
    assert settings["name"] == "own: LASER-VFL"
    assert settings["own"].items() >= {"class": "Split", "embedding": 4, "hosting": "active"}.items()
    assert settings["own"]["rule"]["class"] == "Mine"
    (found,) = find_runs([tmp_path / "run"])
    assert found.method == "own: LASER-VFL"


def test_stored_networks_and_optimizers_repeat_the_run(federation, tmp_path):
    first = federation.train(method("plug", dropout=0.0), folder=tmp_path / "run", epochs=2, test=0.3, **MADE)
    settings = kept(tmp_path / "run")
    assert settings["method"] == {"name": "plug", "dropout": 0.0}
    assert settings["parties"]["bank"]["encoder"]["hidden"] == [7]
    assert settings["parties"]["shop"]["encoder"]["kind"] == "lstm"
    assert settings["parties"]["shop"]["optimizer"]["lr"] == 0.5
    assert evaluate_run(tmp_path / "run").overall["rows"] > 20
    again = Federation.from_config(Config.of(settings)).train(folder=tmp_path / "again")
    assert worlds.same_bits(weights(first), weights(again))


def test_a_run_cannot_be_resumed_with_other_optimizers(federation, tmp_path):
    federation.train("laser", folder=tmp_path / "run", epochs=2, **MADE)
    with pytest.raises(ResumeError, match=r"parties\.bank\.optimizer"):
        federation.train("laser", folder=tmp_path / "run", epochs=2, resume=True, encoder=MADE["encoder"])
    federation.train("laser", folder=tmp_path / "run", epochs=2, resume=True, **MADE)


def test_a_user_defined_network_is_stored_by_name(federation, tmp_path):
    """A network that a module defines is found again; the user must pass any other network."""
    federation.train("laser", folder=tmp_path / "held", epochs=1, test=0.3, encoder={"bank": linear})
    assert kept(tmp_path / "held")["parties"]["bank"]["encoder"]["factory"] == f"{__name__}:linear"
    with pytest.raises(CodeNotAllowed, match="allow it in this call"):
        evaluate_run(tmp_path / "held")
    assert evaluate_run(tmp_path / "held", allow_code=(__name__,)).overall["rows"] > 20
    federation.train(
        "laser",
        folder=tmp_path / "here",
        epochs=1,
        test=0.3,
        encoder={"bank": lambda i, o: nn.Linear(i, o, bias=False)},
    )
    assert "<lambda>" in kept(tmp_path / "here")["parties"]["bank"]["encoder"]["factory"]
    with pytest.raises(ModelError, match="party 'bank' was trained with a user-defined network"):
        evaluate_run(tmp_path / "here")
