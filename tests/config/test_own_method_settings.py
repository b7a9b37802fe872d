"""A user's own method that settings name is trained, resumed, loaded, scored and reported like any other."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from anyparty import config as settings
from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.api.runs import evaluate_run, model_for_run, predict_run
from anyparty.errors import CodeNotAllowed, ConfigError, ModelError, NotGiven, ResumeError
from anyparty.methods.method_registry import method
from anyparty.methods.split.split_method import Split
from anyparty.report import party_set_scores
from anyparty.report.comparison import compare_variants
from anyparty.report.recorded_runs import RunScores, find_runs
from anyparty.report.sections import reproduce_section
from anyparty.training.callbacks import Callback
from tests import worlds
from tests.api.test_train_tables import tables, weights

ALLOW = ("rules_of_ours",)
RULE = """
from dataclasses import dataclass

from anyparty.methods.split.plug import Plug


@dataclass(frozen=True, kw_only=True)
class Mine(Plug):
    temperature: float = {temperature}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the module that settings name; a test may change it repeatedly."""
    monkeypatch.syspath_prepend(tmp_path / "code")
    (tmp_path / "code").mkdir()

    def write(**values):
        (tmp_path / "code" / "rules_of_ours.py").write_text(RULE.format(**values))
        sys.modules.pop("rules_of_ours", None)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change twice within its time stamp's resolution
    write(temperature=1.0)
    yield write
    sys.modules.pop("rules_of_ours", None)


@pytest.fixture
def toml(tmp_path, write):
    """Write settings and two tables beside them."""
    for name, frame in tables().items():
        frame.write_csv(tmp_path / f"{name}.csv")
    path = tmp_path / "mine.toml"
    path.write_text(
        '[federation]\nid = "id"\nlabel = "bad"\n'
        + "".join(f'[parties.{name}]\ntable = "{name}.csv"\n' for name in tables())
        + '[method]\nfactory = "rules_of_ours:Mine"\nembedding = 4\n[train]\nepochs = 2\n'
    )
    return path


class Stops(Callback):
    def on_epoch_end(self, record):
        if record["epoch"] == 1:
            raise KeyboardInterrupt


def trained(toml, **how):
    return Federation.from_config(settings.load(toml)).train(folder=toml.parent / "run", **how)


def same(one, other):
    return worlds.same_bits(weights(one), weights(other))


def test_a_run_is_whole_without_naming_the_method_again(toml):
    model, run = trained(toml), toml.parent / "run"
    assert model.method.can.title == "PlugVFL"
    with pytest.raises(CodeNotAllowed, match=r"config\.toml: method\.factory names the code 'rules_of_ours:Mine'"):
        model_for_run(run)
    again = model_for_run(run, allow_code=ALLOW)
    assert type(again.method.rule).__name__ == "Mine"
    assert same(again, model)
    assert evaluate_run(run, allow_code=ALLOW).overall == model.evaluate().overall
    assert len(predict_run(run, allow_code=ALLOW)) == 90
    with pytest.raises(NotGiven, match=r"a user-defined method; .*allow_code="):
        Model.load(run)  # a model alone names no code


def test_a_run_goes_on_with_the_same_method_alone(toml, write):
    whole = Federation.from_config(settings.load(toml)).train()
    with pytest.raises(KeyboardInterrupt):
        trained(toml, watch=Stops())
    write(temperature=2.0)  # the default in the code, which the settings do not set
    with pytest.raises(ResumeError, match=r"setting method\.own\.rule\.temperature: was 1\.0, is 2\.0"):
        trained(toml, resume=True)
    write(temperature=1.0)
    assert same(trained(toml, resume=True), whole)
    write(temperature=2.0)
    with pytest.raises(ModelError, match=r"rule\.temperature was 1\.0, is 2\.0"):
        evaluate_run(toml.parent / "run", allow_code=ALLOW)


def test_the_report_says_the_command_that_repeats_it(toml):
    trained(toml)
    (run,) = find_runs([toml.parent / "run"])
    assert run.method == "Mine"
    command = f"anyparty train {run.folder}/config.toml --run NEW-FOLDER --allow-code rules_of_ours"
    assert reproduce_section(run).text == [f"Repeat it with: {command}"]
    again = Federation.from_config(settings.load(run.folder / "config.toml", allow_code=ALLOW)).train()
    assert same(again, model_for_run(run.folder, allow_code=ALLOW))


def test_a_parameter_written_out_or_at_its_default_makes_one_variant(toml, monkeypatch):
    monkeypatch.setattr(party_set_scores, "RESAMPLES", 5)
    for name, changes in {"plain": [], "told": ["method.temperature=1"], "warm": ["method.temperature=2"]}.items():
        Federation.from_config(settings.load(toml, changes)).train(folder=toml.parent / name)
    found = find_runs([toml.parent / name for name in ("plain", "told", "warm")])
    (difference,), unlike = compare_variants(
        found, [RunScores.of(run, model=True, allow_code=ALLOW) for run in found], "accuracy"
    )
    assert unlike == ["told has the settings and the seed of plain"]
    assert (difference.one, difference.other) == (
        "Mine (method.own.rule.temperature = 1.0)", "Mine (method.own.rule.temperature = 2.0)",
    )  # fmt: skip


def test_the_settings_of_a_run_can_choose_another_method(toml):
    trained(toml)
    kept = toml.parent / "run" / "config.toml"
    assert settings.load(kept).method.own is not None
    shipped = settings.load(kept, ["method.name=plug"]).method
    assert (shipped.name, shipped.own) == ("plug", None)
    assert Federation.from_config(settings.load(kept, ["method.name=plug"])).train().named["name"] == "plug"


def test_code_that_is_gone_is_said(toml):
    trained(toml)
    (toml.parent / "code" / "rules_of_ours.py").unlink()
    sys.modules.pop("rules_of_ours")
    with pytest.raises(ConfigError, match=r"method\.factory: cannot import factory 'rules_of_ours:Mine': there is no"):
        evaluate_run(toml.parent / "run", allow_code=ALLOW)


def test_in_python_a_name_with_a_colon_is_the_users_own(toml):
    federation = Federation.from_config(settings.load(toml, ["method.factory=rules_of_ours:Nix"]))
    model = federation.train("rules_of_ours:Mine", parameters={"temperature": 0.5, "embedding": 3})
    assert (model.method.rule.temperature, model.method.embedding) == (0.5, 3)
    assert model.own["rule"]["temperature"] == 0.5
    shipped = federation.train("plug", parameters={"embedding": 3})
    assert shipped.named["name"] == "plug"
    given = federation.train(Split(rule=model.method.rule, embedding=3))
    assert same(given, model)
    with pytest.raises(ConfigError, match="cannot import factory 'rules_of_ours:Nix'"):
        federation.train()


def test_settings_choose_one_or_the_other(toml):
    assert settings.load(toml).method.name == "Mine"
    assert settings.load(toml, ["method.name=plug"]).method.factory is None
    over = settings.load(toml, ["method.factory=rules_of_ours:other.Name", "method.name=mine"]).method
    assert (over.name, over.factory) == ("mine", "rules_of_ours:other.Name")
    toml.write_text(toml.read_text().replace('factory = "rules_of_ours:Mine"', 'name = "laser"'))
    assert settings.load(toml, ["method.factory=rules_of_ours:Mine"]).method.name == "Mine"
    with pytest.raises(ConfigError, match="own only applies to a user-defined method, and 'laser' is built in"):
        settings.load(toml, ["method.own={class = 'Split'}"])
    assert method("plug").can.title == "PlugVFL"


def test_parameters_given_in_python_are_kept_as_a_file_holds_them(toml):
    federation, run = Federation.from_config(settings.load(toml)), toml.parent / "run"
    model = federation.train(parameters={"temperature": np.float32(0.5), "embedding": np.int64(3)}, folder=run)
    assert settings.load(run / "config.toml").method.parameters == {"temperature": 0.5, "embedding": 3}
    assert same(model_for_run(run, allow_code=ALLOW), model)


@pytest.mark.parametrize("value", [math.inf, {"a": math.nan}, [object()], object(), Path("there")])
def test_what_no_file_holds_is_refused_before_training(toml, value):
    federation = Federation.from_config(settings.load(toml))
    with pytest.raises(ConfigError, match=r"train: method: temperature: expected .*, got "):
        federation.train(parameters={"temperature": value}, folder=toml.parent / "run")
    assert not (toml.parent / "run").exists()


@pytest.mark.parametrize("made", [True, False])
def test_none_in_a_table_is_in_the_way_of_a_folder_alone(toml, made):
    """None is a valid setting of scikit-learn's classifiers, but a run's folder cannot store it."""
    federation = Federation.from_config(settings.load(toml))
    how = {"classifier": "DecisionTreeClassifier", "classifier_settings": {"max_depth": None}}
    given = [method("apc", **how)] if made else ["apc"]
    more = {} if made else {"parameters": how}
    assert federation.train(*given, **more).evaluate().overall["coverage"] > 0
    with pytest.raises(ConfigError, match=r"method\.classifier_settings\.max_depth = None cannot be saved .* leave it"):
        federation.train(*given, **more, folder=toml.parent / "run")
    assert not (toml.parent / "run" / "config.toml").exists()
