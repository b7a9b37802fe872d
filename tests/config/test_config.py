"""Settings: valid ones are accepted; errors name the nearest valid name."""

import tomllib
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from anyparty import config
from anyparty.errors import ConfigError
from anyparty.networks.encoders import LSTM, MLP, ResNet

WHOLE = """
[federation]
label = "y"
active = "bank"
[parties.bank]
table = "tables/bank.csv"
optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 }
[parties.shop]
table = "shop.csv"
encoder = { hidden = [8] }
[encoder]
hidden = [32, 16]
[method]
name = "laser"
normalize = false
head_hidden = [4]
[train]
epochs = 7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "f.toml"
    file.write_text(WHOLE)
    return file


def test_what_is_written_is_read(path):
    read = config.load(path)
    assert read.parties["bank"].table == (path.parent / "tables/bank.csv").absolute()
    assert read.train.epochs == 7
    assert read.method.parameters == {"normalize": False, "head_hidden": (4,)}
    assert read.encoder_of("bank") == MLP(hidden=(32, 16))
    assert read.encoder_of("shop") == MLP(hidden=(8,))
    assert (read.optimizer_of("bank").name, read.optimizer_of("shop").name) == ("sgd", "adam")


def test_resolved_settings_read_back_to_the_same(path, tmp_path):
    read = config.load(path)
    again = tmp_path / "again.toml"
    again.write_text(read.to_toml())
    assert config.load(again) == read


@pytest.mark.parametrize(
    ("change", "value"),
    [("train.epochs=5", 5), ("train.patience = 3", 3), ("method.name=plug", "plug"), ('method.name="plug"', "plug")],
)
def test_set_changes_a_value(path, change, value):
    group, key = change.partition("=")[0].strip().split(".")
    assert getattr(getattr(config.load(path, [change]), group), key) == value


WRONG = (
    "train.epoch=5",
    "train.lr=0.1",
    "federation.table='x'",
    "trian.epochs=5",
    "parties.bank.tabel='x'",
    "optimizer.name=adma",
    "optimizer.momentm=0.9",
    "encoder.activation=rellu",
    "train.epochs=0",
    "train.epochs=true",
    "train.patience=false",
    "method.embedding=inf",
    "optimizer.lr=true",
    "encoder.hidden=[true]",
    "train.balance=yes",
    "train.metric=acuracy",
    "train.test=1.5",
    "train.batches=patterns",
    "epochs",
    "train.epochs.more=1",
    "encoder.kind=resnet",
    "encoder.kind=lstm",
    "federation.active=bnak",
)


def test_what_cannot_be(path, sentences):
    sentences.check("settings", {change: partial(config.load, path, [change]) for change in WRONG})


def test_two_unknown_settings(path):
    with pytest.raises(ConfigError) as stopped:
        config.load(path, ["train.epoch=5", "optimizer.momentm=0.9"])
    assert "'momentum'? No setting 'train.epoch'" in str(stopped.value)
    assert "?;" not in str(stopped.value)


def test_validation_and_test_must_leave_rows(path):
    with pytest.raises(ConfigError, match=r"validation 0\.5 and test 0\.5 leave no rows to train on"):
        config.load(path, ["train.validation=0.5", "train.test=0.5"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["train.validation=0", "train.metric=f1", "train.patience=1"],
            "'metric', 'patience' would do nothing without",
        ),
        (
            ["train.validation=0", "train.score_training=50"],
            "'score_training' would do nothing without validation rows",
        ),
        (["track.experiment=trial"], "experiment only applies to MLflow"),
        (["track.experiment=trial", "track.tensorboard=true"], "experiment only applies to MLflow"),
    ],
)
def test_what_would_do_nothing_is_named(tmp_path, changes, said):
    path = tmp_path / "credit.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=said):
        config.load(path, changes)
    kept = config.load(path, ["train.validation=0", "train.score_training=0", 'train.patience="none"'])
    path.write_text(kept.to_toml())
    assert config.load(path) == kept


def test_a_party_may_stand_only_once(path):
    path.write_text(WHOLE + '\n[parties.bank]\ntable = "other.csv"\n')
    with pytest.raises(ConfigError, match="a party's name may stand only once"):
        config.load(path)


def test_no_file_and_no_toml(tmp_path):
    with pytest.raises(ConfigError, match="no such settings file; `anyparty demo` writes one"):
        config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = b")
    with pytest.raises(ConfigError, match="this is not TOML"):
        config.load(tmp_path / "bad.toml")


def test_a_byte_order_mark_and_a_folder(path, tmp_path):
    path.write_text(WHOLE, encoding="utf-8-sig")
    assert config.load(path).train.epochs == 7
    with pytest.raises(ConfigError, match=r"is a folder; name a settings file in it$"):
        config.load(tmp_path)


def test_networks_by_kind(path):
    image = config.load(
        path, ["encoder.kind=resnet", "encoder.shape=[3, 8, 8]", "encoder.widths=[4, 8]", "encoder.depths=[1, 1]"]
    )
    assert image.encoder_of("bank") == ResNet(shape=(3, 8, 8), widths=(4, 8), depths=(1, 1))
    series = config.load(path, ["encoder.kind=lstm", "encoder.steps=12"])
    assert series.encoder_of("bank") == LSTM(steps=12)


def test_a_users_own_network_by_name(path):
    made = config.load(path, ["encoder.factory=torch.nn:Linear"]).encoder_of("bank")
    assert made is nn.Linear
    for text in ("torch.nn:Linaer", "no.such.module:f", "nothing"):
        with pytest.raises(ConfigError, match="cannot import factory"):
            config.load(path, [f"encoder.factory={text}"]).encoder_of("bank")


def test_no_patience_survives_its_file():
    """``None`` is saved as "none", because a setting that is left out of a file gets its default."""
    forever = config.Config.of({"train": {"patience": None}})
    assert forever.train.patience is None
    assert config.Config.of(tomllib.loads(forever.to_toml())).train.patience is None
    assert config.Config.of({"train": {"patience": "none"}}).train == forever.train


def test_a_class_may_be_named_as_a_number():
    assert config.Config.of({"federation": {"positive": 1}}).federation.positive == "1"


IDLE = (
    {"shape": (1, 4, 4)}, {"steps": 3}, {"memory": 7}, {"widths": (8,)},
    {"kind": "lstm", "steps": 4, "hidden": (8,)}, {"kind": "lstm", "steps": 4, "norm": True, "dropout": 0.1},
    {"kind": "resnet", "shape": (1, 4, 4), "activation": "tanh"}, {"kind": "resnet", "shape": (1, 4, 4), "memory": 3},
    {"factory": "my_nets:make", "hidden": (8,)}, {"factory": "my_nets:make", "kind": "lstm", "steps": 4},
)  # fmt: skip


def test_settings_that_another_network_has(sentences):
    everywhere = {f"encoder = {given}": {"encoder": given} for given in IDLE}
    at_a_party = {f"shop: encoder = {given}": {"parties": {"shop": {"encoder": given}}} for given in IDLE[4:]}
    calls = {case: partial(config.Config.of, values) for case, values in (everywhere | at_a_party).items()}
    sentences.check("settings-of-other-networks", calls)


def test_a_network_that_set_chooses_stands_for_the_files(path, tmp_path):
    """Settings of a replaced network in the file are ignored, but those in ``--set`` must apply to the new one."""
    series = ["encoder.kind=lstm", "encoder.steps=12"]
    found = config.load(path, [*series, "parties.shop.encoder.factory=anyparty.networks.encoders:MLP"])
    again = tmp_path / "again.toml"
    again.write_text(found.to_toml())
    assert config.load(again) == found
    assert config.load(again, ["encoder.kind=mlp", "encoder.hidden=[3]"]).encoder_of("bank") == MLP(hidden=(3,))
    assert config.load(again, ["parties.shop.encoder.kind=mlp"]).encoder_of("shop") == MLP()
    for order in (1, -1):
        with pytest.raises(ConfigError, match="'hidden' would do nothing with kind = 'lstm'"):
            config.load(path, [*series, "encoder.hidden=[3]"][::order])


def test_steps_without_milestones(path):
    with pytest.raises(ConfigError, match="schedule = 'step' would do nothing without milestones; say at which epochs"):
        config.load(path, ["optimizer.schedule=step"])
    assert config.load(path, ["optimizer.schedule=step", "optimizer.milestones=[5]"]).optimizer.milestones == (5,)


def test_errors_have_attributes_for_programs(path):
    with pytest.raises(ConfigError) as unknown:
        config.load(path, ["train.epoch=5"])
    assert (unknown.value.code, unknown.value.setting, unknown.value.file) == (
        "unknown-setting",
        "train.epoch",
        str(path),
    )
    with pytest.raises(ConfigError) as invalid:
        config.Config.of({"train": {"epochs": 0}})
    assert (invalid.value.code, invalid.value.setting, invalid.value.file) == ("invalid-value", "train.epochs", "")
